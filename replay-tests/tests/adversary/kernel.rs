//! Out of a sandbox without any policy: root inside is root of nothing.

use fluxvm_replay_tests::shared;

use crate::row::Attempt;
use crate::row::Control::Means;
use crate::row::Layer::Capabilities;
use crate::row::Layer::FirstProcess;
use crate::row::Layer::GuestDaemon;
use crate::row::Layer::GuestToken;
use crate::row::Layer::Namespace;
use crate::row::Layer::RightsOfNobody;
use crate::row::all_are_stopped;
use crate::row::equip;

/// Asks the guest daemon for a path without a token, and fails with the status unless it is 200.
macro_rules! guest_daemon {
    ($path:literal) => {
        concat!(
            "python3 -c 'import socket, sys; s=socket.socket(1); s.connect(\"\\0fluxvm-agentd\"); ",
            "s.sendall(b\"GET ",
            $path,
            " HTTP/1.1\\r\\nHost: g\\r\\nConnection: close\\r\\n\\r\\n\"); ",
            "w=s.recv(4096).split()[1].decode(); sys.exit(None if w==\"200\" else w)'"
        )
    };
}

/// Runs Python with what [`crate::row::CALLS`] defines.
macro_rules! python {
    ($code:literal) => {
        concat!(
            "python3 -c 'exec(open(\"/tmp/calls.py\").read()); ",
            $code,
            "'"
        )
    };
}
pub(crate) use python;

/// Means that are there: any call.
const A_CALL: &str = python!("did(libc.getppid())");

const ATTEMPTS: [Attempt; 23] = [
    Attempt {
        name: "read what only the host's root may read",
        layer: RightsOfNobody,
        line: "cat /etc/shadow",
        control: Means("cat /etc/passwd"),
    },
    Attempt {
        name: "mount the host's disk",
        layer: Capabilities,
        line: "mount -t ext4 /dev/vda /mnt",
        control: Means("mount -t tmpfs none /mnt && umount /mnt"),
    },
    Attempt {
        name: "write to the machine's settings",
        layer: Capabilities,
        line: "mount -o remount,rw /sys && echo 0 >/sys/kernel/mm/ksm/run",
        control: Means("mount -t tmpfs none /mnt && umount /mnt"),
    },
    Attempt {
        name: "take the masks away",
        layer: Namespace,
        line: "umount /dev/null || umount /home || umount /root",
        control: Means("mount -t tmpfs none /mnt && umount /mnt"),
    },
    Attempt {
        name: "go into the namespaces of the first process",
        layer: Capabilities,
        line: "nsenter -t 1 -m true",
        control: Means("unshare -Urm true"),
    },
    Attempt {
        name: "make a device node of the host's disk",
        layer: Capabilities,
        line: "mknod /tmp/disk b 8 0",
        control: Means("mknod /tmp/pipe p"),
    },
    Attempt {
        name: "set what the host's kernel runs for a crash",
        layer: Capabilities,
        line: "echo '|/tmp/x' >/proc/sys/kernel/core_pattern",
        control: Means("cat /proc/sys/kernel/core_pattern"),
    },
    Attempt {
        name: "give the kernel orders",
        layer: Capabilities,
        line: "echo h >/proc/sysrq-trigger",
        control: Means("echo 10 >/proc/self/oom_score_adj"),
    },
    Attempt {
        name: "read the kernel's memory",
        layer: Capabilities,
        line: "head -c 1 /proc/kcore",
        control: Means("head -c 1 /proc/self/maps"),
    },
    Attempt {
        name: "read the machine's memory",
        layer: Namespace,
        line: "head -c 1 /dev/mem",
        control: Means("head -c 1 /dev/zero"),
    },
    Attempt {
        name: "read the kernel's log",
        layer: Namespace,
        line: "head -c 1 /dev/kmsg",
        control: Means("head -c 1 /dev/urandom"),
    },
    Attempt {
        name: "load a module",
        layer: Capabilities,
        line: python!("call(N[\"finit_module\"], 0, b\"\", 0)"),
        control: Means(A_CALL),
    },
    Attempt {
        name: "restart the machine",
        layer: Namespace,
        line: python!("did(libc.reboot(0))"),
        control: Means(A_CALL),
    },
    Attempt {
        name: "set the clock",
        layer: Capabilities,
        line: python!("did(libc.clock_settime(0, (ctypes.c_long*2)(1,1)))"),
        control: Means(python!(
            "did(libc.clock_gettime(0, (ctypes.c_long*2)(1,1)))"
        )),
    },
    Attempt {
        name: "trace the guest daemon",
        layer: Capabilities,
        line: python!("did(libc.ptrace(16, 1, None, None))"),
        control: Means(python!(
            "p=os.fork(); p or os.execlp(\"sleep\",\"sleep\",\"9\"); did(libc.ptrace(16, p, None, None)); os.kill(p,9)"
        )),
    },
    Attempt {
        name: "read the guest daemon's memory",
        layer: Capabilities,
        line: "head -c 1 /proc/1/mem",
        control: Means("head -c 1 /proc/self/cmdline"),
    },
    Attempt {
        name: "read the guest daemon's variables",
        layer: Capabilities,
        line: "cat /proc/1/environ",
        control: Means("cat /proc/self/environ"),
    },
    Attempt {
        name: "take the guest daemon's descriptors",
        layer: Capabilities,
        line: "cat /proc/1/fd/0",
        control: Means("cat /proc/self/fd/0"),
    },
    Attempt {
        name: "go out through the first process's root",
        layer: Capabilities,
        line: "ls /proc/1/root/",
        control: Means("ls /proc/self/root/"),
    },
    Attempt {
        name: "command the guest daemon without its token",
        layer: GuestToken,
        line: guest_daemon!("/v1/exec/procs"),
        control: Means(guest_daemon!("/v1/health")),
    },
    Attempt {
        name: "end the first process",
        layer: FirstProcess,
        line: "kill -STOP 1; kill -KILL 1; kill -0 1 && { echo alive; exit 1; }",
        control: Means("sleep 30 & kill -KILL $!"),
    },
    Attempt {
        name: "raise one's own limits",
        layer: Capabilities,
        line: "ulimit -n 1000000",
        control: Means("ulimit -n 100"),
    },
    Attempt {
        name: "find a descriptor that the daemon left open",
        layer: GuestDaemon,
        line: "python3 -c 'import os,sys; n=len([f for f in os.listdir(\"/proc/self/fd\") if int(f)>2]); \
               sys.exit(None if n>1 else \"nothing left\")'",
        control: Means("exec 9</dev/null; ls /proc/self/fd/9"),
    },
];

#[test]
fn root_inside_is_root_of_nothing() {
    let daemon = shared();
    let api = daemon.api();
    let free = api.create();
    equip(api, &free);
    all_are_stopped(api, &free, &free, &ATTEMPTS);
    api.remove(&free);
}
