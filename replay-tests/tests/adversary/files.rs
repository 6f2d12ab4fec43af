//! Around rules about files, by every detour that a command has.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::shared;
use serde_json::json;

use crate::kernel::python;
use crate::row::Attempt;
use crate::row::Control::Means;
use crate::row::Control::WithoutPolicy;
use crate::row::Layer::CallFilter;
use crate::row::Layer::Landlock;
use crate::row::Layer::Scope;
use crate::row::all_are_stopped;
use crate::row::equip;

/// Two threads: one turns a link from a place that may be read to one that may not and back, the other
/// reads what the link leads to, until it gets what it may not have.
const RACE: &str = concat!(
    "python3 -c 'import os,sys,time,threading as t\n",
    "on=[1]\n",
    "def turn():\n",
    "  while on:\n",
    "    for to in (\"/tmp\",\"/var\"):\n",
    "      os.symlink(to,\"/tmp/next\"); os.rename(\"/tmp/next\",\"/tmp/turning\")\n",
    "t.Thread(target=turn,daemon=True).start()\n",
    "end=time.time()+0.6\n",
    "while time.time()<end:\n",
    "  try:\n",
    "    if \"lib\" in os.listdir(\"/tmp/turning\"): os._exit(0)\n",
    "  except OSError: pass\n",
    "sys.stderr.write(\"EACCES\"); sys.stderr.flush(); os._exit(1)'"
);

/// A connection to the abstract socket of this name.
macro_rules! connect {
    ($name:literal) => {
        concat!(
            "python3 -c 'import socket; socket.socket(1).connect(\"\\0",
            $name,
            "\")'"
        )
    };
}

const ATTEMPTS: [Attempt; 34] = [
    with_rules("read outside", Landlock, "ls /var"),
    with_rules("read the root", Landlock, "ls /"),
    with_rules(
        "read from a folder that was entered",
        Landlock,
        "cd /var && ls lib",
    ),
    with_rules("read behind a link", Landlock, "ln -sfn /var l && ls l/"),
    with_rules("read upwards", Landlock, "ls /tmp/../var"),
    with_rules(
        "read through the own root",
        Landlock,
        "ls /proc/self/root/var",
    ),
    with_rules(
        "read through the own folder",
        Landlock,
        "cd /var && ls /proc/self/cwd/",
    ),
    with_rules("read behind a link that turns", Landlock, RACE),
    with_rules(
        "read the guest daemon's program",
        Landlock,
        "head -c 1 /.fluxvm/microvms-agentd",
    ),
    with_rules(
        "read in a session of its own",
        Landlock,
        "setsid -w ls /var",
    ),
    with_rules(
        "read as another user",
        Landlock,
        "setpriv --reuid 65534 ls /var",
    ),
    with_rules(
        "read in another root",
        Landlock,
        "chroot /var ls / || ls /var",
    ),
    with_rules("write outside", Landlock, "touch /usr/new"),
    with_rules("add to a file", Landlock, "echo x >>/etc/hosts"),
    with_rules("empty a file", Landlock, "truncate -s 0 /etc/hosts"),
    with_rules("make a folder", Landlock, "mkdir /new"),
    with_rules(
        "take another name for a file",
        Landlock,
        "ln /etc/passwd /tmp/hard",
    ),
    with_rules("carry a file out", Landlock, "mv /etc/hosts /tmp/hosts"),
    with_rules(
        "carry a file in",
        Landlock,
        "echo x >/tmp/x && mv /tmp/x /etc/x",
    ),
    with_rules("remove a file", Landlock, "rm /etc/group"),
    with_rules(
        "hide the rules behind a mount",
        CallFilter,
        "unshare -Urm sh -c 'mount --bind /var /tmp && ls /tmp/lib'",
    ),
    with_rules(
        "namespaces by the oldest call",
        CallFilter,
        python!("did(libc.unshare(0x10000000))"),
    ),
    with_rules(
        "namespaces by the newest call",
        CallFilter,
        python!(
            "p=call(435, (ctypes.c_ulonglong*11)(0x10000000,0,0,0,17), 88); p or os._exit(0); os.waitpid(p,0)"
        ),
    ),
    with_rules(
        "trace a process",
        CallFilter,
        python!(
            "p=os.fork(); p or os.execlp(\"sleep\",\"sleep\",\"9\")\ntry: did(libc.ptrace(16, p, None, None))\nfinally: os.kill(p,9)"
        ),
    ),
    with_rules(
        "read a process's memory",
        CallFilter,
        python!(
            "b=ctypes.create_string_buffer(8); v=(ctypes.c_ulong*2)(ctypes.addressof(b),8); did(libc.process_vm_readv(os.getpid(),v,1,v,1,0))"
        ),
    ),
    with_rules(
        "leave something in the kernel's keyring",
        CallFilter,
        python!("call(N[\"add_key\"], b\"user\", b\"x\", b\"y\", 1, -3)"),
    ),
    with_rules(
        "answer one's own page faults",
        CallFilter,
        python!("call(N[\"userfaultfd\"], 1)"),
    ),
    Attempt {
        name: "work that no filter sees",
        layer: CallFilter,
        line: python!("call(425, 1, (ctypes.c_char*120)())"),
        control: Means(python!("did(libc.getppid())")),
    },
    Attempt {
        name: "the same call by its other number",
        layer: CallFilter,
        line: python!(
            "call(0x40000000+39) if platform.machine()==\"x86_64\" else sys.exit(\"ENOSYS\")"
        ),
        control: Means(python!("did(libc.getppid())")),
    },
    with_rules(
        "whole packets",
        CallFilter,
        "python3 -c 'import socket; socket.socket(17,3)'",
    ),
    with_rules(
        "signal another command",
        Scope,
        "kill -0 $(cat /tmp/victim)",
    ),
    Attempt {
        name: "ask the first process to end",
        layer: Scope,
        line: "kill -TERM 1",
        control: Means("sleep 30 & kill -TERM $!"),
    },
    with_rules(
        "another command's abstract socket",
        Scope,
        connect!("other"),
    ),
    with_rules(
        "the guest daemon's socket",
        Scope,
        connect!("fluxvm-agentd"),
    ),
];

const fn with_rules(name: &'static str, layer: crate::row::Layer, line: &'static str) -> Attempt {
    Attempt {
        name,
        layer,
        line,
        control: WithoutPolicy,
    }
}

/// A process that can be signalled and a socket that can be connected to, of a job that runs beside.
fn bystander(api: &Api, id: &str) -> String {
    let line = "python3 -c 'import os,socket,time; s=socket.socket(1); s.bind(\"\\0other\"); s.listen(); \
                open(\"/tmp/v\",\"w\").write(str(os.getpid())); os.rename(\"/tmp/v\",\"/tmp/victim\"); time.sleep(300)'";
    let job = api.background(id, line);
    let there = api.exec(id, "while ! [ -e /tmp/victim ]; do sleep 0.01; done");
    assert_eq!(there.exit_code, 0);
    job
}

#[test]
fn rules_about_files_have_no_detour() {
    let daemon = shared();
    let api = daemon.api();
    let policy = json!({"filesystem": {"read": ["/workspace/out"], "write": ["/workspace/out"]}});
    let id = api.create_with(&json!({"agent": "tester", "policy": policy}));
    let free = api.create();
    for session in [&id, &free] {
        equip(api, session);
        let _ = bystander(api, session);
    }
    // What lies in a listed folder can become a link, and the list is read anew for every command.
    let turned = "mkdir -p out; touch out/own && rm -r out && ln -s /var out";
    assert_eq!(api.exec(&id, turned).exit_code, 0);
    assert_ne!(api.exec(&id, "ls /var || touch /var/new").exit_code, 0);
    all_are_stopped(api, &id, &free, &ATTEMPTS);
    api.remove(&id);
    api.remove(&free);
}
