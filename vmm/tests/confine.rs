//! What an exec's policy takes away stays away, whatever the command tries, in a real sandbox.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use agentd_client::protocol::{
    Enforcement, ExecId, ExecPolicy, PortPolicy, RunAs, SeccompPolicy, ShellChoice, StartExtension,
    StartRequest,
};
use agentd_client::{AgentdClient, ClientError, ExecEvent};
use common::{Lab, Ran, root_or_skip};
use fluxvm_vmm::SandboxId;

fn request(script: &str, policy: ExecPolicy) -> StartRequest {
    let id = ExecId::new(SandboxId::random().to_string()).unwrap();
    let mut request = StartRequest::new(id, [script]);
    request.shell = ShellChoice::Flag(true);
    request.x = Some(StartExtension {
        confine: Some(Box::new(policy)),
        ..StartExtension::default()
    });
    request
}

async fn run(guest: &AgentdClient, request: &StartRequest) -> (Ran, Enforcement) {
    let mut stream = guest.run(request).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ExecEvent::Output { bytes, .. } => output.extend_from_slice(&bytes),
            ExecEvent::Gap { from, to } => panic!("lost {from}..{to}"),
            ExecEvent::Exit(exit) => {
                let ran = Ran {
                    code: exit.exit_code,
                    signal: exit.signal,
                    output: String::from_utf8_lossy(&output).into_owned(),
                };
                return (ran, *exit.x.unwrap().enforcement.unwrap());
            }
        }
    }
    panic!("the stream ended without an exit");
}

async fn confined(guest: &AgentdClient, script: &str, policy: ExecPolicy) -> (Ran, Enforcement) {
    run(guest, &request(script, policy)).await
}

fn system() -> Option<Vec<String>> {
    let folders = ["/bin", "/usr", "/lib", "/lib64", "/etc", "/dev", "/proc"];
    Some(folders.map(str::to_owned).to_vec())
}

fn list(entries: &[&str]) -> Option<Vec<String>> {
    Some(entries.iter().map(|entry| (*entry).to_owned()).collect())
}

fn files() -> ExecPolicy {
    ExecPolicy {
        read: system(),
        write: list(&["/tmp", "/dev/null"]),
        ..ExecPolicy::default()
    }
}

/// Each line has to fail under the policy and, so that it fails for no other reason, to work without
/// it; but for those behind a question mark, which a kernel may not know at all.
async fn all_refused(guest: &AgentdClient, lines: &[&str], policy: &ExecPolicy) {
    let tries = |said: &str, skip: bool| {
        let lines = lines.iter().filter(|line| !(skip && line.starts_with('?')));
        let tries = lines.enumerate().map(|(number, line)| {
            let line = line.trim_start_matches('?');
            format!("({line}) >/dev/null 2>&1 {said} echo {number}")
        });
        format!("{}\ntrue", tries.collect::<Vec<_>>().join("\n"))
    };
    let (ran, _) = confined(guest, &tries("&&", false), policy.clone()).await;
    assert_eq!(ran.ok(), "", "lines that work under the policy");
    let without = common::sh(guest, &tries("||", true)).await;
    assert_eq!(without.ok(), "", "lines that do not even work without it");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_outside_the_lists_cannot_be_reached_by_any_detour() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    common::sh(
        guest,
        "mkdir -p /srv/secret /srv/plain; echo s > /srv/secret/file; echo p > /srv/plain/file; \
         ln -s /srv/secret/file /tmp/link; chmod 777 /srv /srv/secret",
    )
    .await;
    let (ran, report) = confined(
        guest,
        "echo x > /tmp/own && cat /tmp/own && ls /usr | head -1 >/dev/null",
        files(),
    )
    .await;
    assert_eq!(ran.ok(), "x");
    assert!(report.filesystem && report.scope_signal && report.not_enforced.is_empty());
    assert!(report.landlock_abi >= 6, "{report:?}");
    all_refused(
        guest,
        &[
            "cat /srv/secret/file",
            "cat /tmp/link",
            "cat /tmp/../srv/secret/file",
            "cat /proc/self/root/srv/secret/file",
            // No command looks into the guest daemon, with or without a policy.
            "?cat /proc/1/root/srv/secret/file",
            "cd /srv/secret && cat file",
            "ls /srv",
            "echo x > /srv/secret/new",
            "echo x >> /etc/hosts",
            "truncate -s 0 /etc/hosts",
            "mkdir /usr/new",
            "mv /etc/hosts /tmp/hosts",
            "rm /etc/group",
            "ln /srv/secret/file /tmp/hard && cat /tmp/hard",
            "sh -c 'setsid cat /srv/secret/file'",
            "nohup cat /srv/secret/file",
            "chroot / cat /srv/secret/file",
            "mount --bind /srv /mnt && cat /mnt/secret/file",
            "unshare -m sh -c 'mount --bind /srv /tmp && cat /tmp/secret/file'",
            "?nsenter -t 1 -m cat /srv/secret/file",
            "python3 -c 'import os; print(os.open(\"/srv/secret/file\", os.O_RDONLY))'",
        ],
        &files(),
    )
    .await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_programs_are_executed_and_nothing_that_was_written() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let policy = ExecPolicy {
        execute: list(&["echo", "cp", "/usr/bin/chmod", "no-such-program"]),
        ..ExecPolicy::default()
    };
    let (ran, report) = confined(
        guest,
        "/bin/echo one; sh -c true && /bin/true && cp /bin/ls /tmp/ls && chmod 755 /tmp/ls",
        policy.clone(),
    )
    .await;
    assert_eq!(ran.ok(), "one");
    assert!(report.execute && !report.filesystem, "{report:?}");
    assert_eq!(report.absent, ["no-such-program"]);
    all_refused(
        guest,
        &[
            "ls /",
            "/usr/bin/id",
            "/tmp/ls /",
            "sh -c 'exec /tmp/ls /'",
            "printf '#!/bin/sh\\necho hi\\n' > /tmp/s; chmod 755 /tmp/s; /tmp/s",
            "python3 -c 'print(1)'",
            "cat /bin/ls > /tmp/copy; chmod 755 /tmp/copy; /tmp/copy /",
        ],
        &policy,
    )
    .await;
    // Both kinds of lists at once.
    let both = ExecPolicy {
        execute: list(&["cat"]),
        ..files()
    };
    let (ran, _) = confined(
        guest,
        "cat /etc/hostname >/dev/null && echo read; ls / 2>/dev/null || echo no",
        both,
    )
    .await;
    assert_eq!(ran.ok(), "read\nno");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_signals_and_calls_are_out_of_reach_as_the_policy_says() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let python = common::sh(guest, "command -v python3").await;
    assert_eq!(python.code, Some(0), "the tests need python3 on the host");
    common::sh(
        guest,
        "setsid sleep 300 >/dev/null 2>&1 & echo $! > /tmp/victim",
    )
    .await;
    let network = ExecPolicy {
        tcp_connect: PortPolicy::Ports(vec![81]),
        tcp_bind: PortPolicy::Ports(vec![81]),
        allow_unix: false,
        ..ExecPolicy::default()
    };
    let bind = "python3 -c 'import socket; s=socket.socket(); s.setsockopt(1,2,1); s.bind((\"127.0.0.1\",81)); \
                s.listen(); c=socket.create_connection((\"127.0.0.1\",81)); print(\"ok\")'";
    let (ran, report) = confined(guest, bind, network.clone()).await;
    assert_eq!(ran.ok(), "ok");
    assert!(report.tcp_connect && report.tcp_bind && report.seccomp_sockets && !report.seccomp);
    let script = |code: &str| format!("python3 -c 'import socket, os; {code}'");
    let tries = [
        script("s=socket.socket(); s.bind((\"127.0.0.1\",82))"),
        // Refused by nobody listening would be another error.
        script(
            "s=socket.socket(); e=s.connect_ex((\"127.0.0.1\",82)); os._exit(0 if e==111 else 1)",
        ),
        script("s=socket.socket(2,2)"),
        script("s=socket.socket(10,2)"),
        script("s=socket.socket(2,3,1)"),
        format!("?{}", script("s=socket.socket(2,1,262)")),
        format!("?{}", script("s=socket.socket(2,1,132)")),
        script("s=socket.socket(1,1)"),
        format!("?{}", script("s=socket.socket(40,1)")),
        script("s=socket.socket(17,3)"),
        // A connection by the way of a first write.
        format!(
            "?{}",
            script("s=socket.socket(); s.sendto(b\"x\",0x20000000,(\"127.0.0.1\",82))")
        ),
        "kill -0 $(cat /tmp/victim)".to_owned(),
        "kill -0 1".to_owned(),
    ];
    let tries: Vec<&str> = tries.iter().map(String::as_str).collect();
    all_refused(guest, &tries, &network).await;
    let filtered = ExecPolicy {
        seccomp: Some(SeccompPolicy::Errno),
        ..ExecPolicy::default()
    };
    let (ran, report) = confined(
        guest,
        "python3 -c 'import threading; t=threading.Thread(target=print, args=(1,)); t.start()'",
        filtered.clone(),
    )
    .await;
    assert_eq!(ran.ok(), "1", "threads are no namespaces");
    assert!(report.seccomp);
    all_refused(
        guest,
        &[
            "unshare -U true",
            "unshare -m true",
            "mount -t tmpfs none /mnt",
            "hostname changed",
            "python3 -c 'import ctypes; c=ctypes.CDLL(None); exit(0 if c.ptrace(0,0,0,0)==0 else 1)'",
            "?python3 -c 'import ctypes; c=ctypes.CDLL(None, use_errno=True); \
             exit(0 if c.syscall(425,8,0)>=0 or ctypes.get_errno()==14 else 1)'",
            // The same call by its other number.
            "?python3 -c 'import ctypes; c=ctypes.CDLL(None); exit(0 if c.syscall(0x40000000+39)>0 else 1)'",
        ],
        &filtered,
    )
    .await;
    let killed = ExecPolicy {
        seccomp: Some(SeccompPolicy::Kill),
        ..ExecPolicy::default()
    };
    let (ran, _) = confined(guest, "exec mount -t tmpfs none /mnt", killed).await;
    assert_eq!((ran.code, ran.signal), (None, Some(31)), "{ran:?}");
    let namespaces = ExecPolicy {
        allow_namespaces: true,
        ..filtered
    };
    let (ran, _) = confined(guest, "unshare -U echo made", namespaces).await;
    assert_eq!(ran.ok(), "made");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_variables_folder_and_user_are_the_policys() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let policy = ExecPolicy {
        clean_env: true,
        env: vec![("ONLY".into(), "this".into())],
        cwd: Some("/usr".into()),
        run_as: Some(RunAs {
            uid: 65534,
            gid: 65534,
        }),
        cpu_seconds: Some(20),
        max_memory: Some(1 << 30),
        max_processes: Some(8),
        ..ExecPolicy::default()
    };
    let script =
        "env | grep -v '^PWD=\\|^_=\\|^SHLVL=\\|^OLDPWD='; pwd; id -u; id -g; ulimit -t; ulimit -v";
    let (ran, report) = confined(guest, script, policy.clone()).await;
    assert_eq!(ran.ok(), "ONLY=this\n/usr\n65534\n65534\n20\n1048576");
    assert!(report.limits && report.uid_dropped && report.not_enforced.is_empty());
    let bomb = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo started-all";
    let (ran, _) = confined(guest, bomb, policy).await;
    assert!(!ran.output.contains("started-all"), "{ran:?}");
    // Root inside is no root of the machine, and is counted too.
    let few = ExecPolicy {
        max_processes: Some(4),
        ..ExecPolicy::default()
    };
    let (ran, _) = confined(guest, bomb, few).await;
    assert!(!ran.output.contains("started-all"), "{ran:?}");
    let spin = ExecPolicy {
        cpu_seconds: Some(1),
        ..ExecPolicy::default()
    };
    let (ran, _) = confined(guest, "exec sh -c 'while :; do :; done'", spin).await;
    assert!(matches!(ran.signal, Some(9 | 24)), "{ran:?}");
    let short = ExecPolicy {
        timeout_secs: Some(1),
        ..ExecPolicy::default()
    };
    let (ran, _) = confined(guest, "exec sleep 60", short).await;
    assert_eq!(ran.signal, Some(15), "{ran:?}");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_enforced_is_not_run_unless_best_effort_says_so() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let strict = ExecPolicy {
        isolation: agentd_client::protocol::Isolation::Strict,
        ..ExecPolicy::default()
    };
    let asked = request("touch /tmp/ran", strict.clone());
    for error in [
        guest.run(&asked).await.err(),
        guest.start(&asked).await.err(),
    ] {
        match error {
            Some(ClientError::Refused {
                status: 400,
                slug,
                detail,
                ..
            }) => {
                assert_eq!(slug.as_deref(), Some("policy_unenforceable"));
                assert!(detail.contains("isolation"), "{detail}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(common::sh(guest, "test -e /tmp/ran").await.code, Some(1));
    let lenient = ExecPolicy {
        best_effort: true,
        ..strict
    };
    let started = guest.start(&request("true", lenient)).await.unwrap();
    let report = started.x.unwrap().enforcement.unwrap();
    assert_eq!(report.not_enforced, ["isolation"]);
    assert!(report.scope_signal, "what can be enforced is");
    let discovery = guest.discovery().await.unwrap().x.unwrap();
    assert!(discovery.landlock_abi >= 6 && discovery.seccomp);
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_looks_into_the_guest_daemon_or_stops_it() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let attach = |pid: &str| {
        format!(
            "python3 -c 'import ctypes, os; c=ctypes.CDLL(None); \
             p={pid} or os.execlp(\"sleep\", \"sleep\", \"9\"); r=c.ptrace(16, p, None, None); \
             p==1 or os.kill(p, 9); exit(0 if r==0 else 1)'"
        )
    };
    for line in [
        "cat /proc/1/environ",
        "readlink /proc/1/fd/1",
        "ls /proc/1/root/",
        "head -c 1 /proc/1/mem",
        "nsenter -t 1 -m true",
        "kill -STOP 1; grep -q '^State:.*stopped' /proc/1/status",
        &attach("1"),
    ] {
        let ran = common::sh(guest, line).await;
        assert_ne!(ran.code, Some(0), "{line}: {ran:?}");
    }
    // Who lacks that one right still has all of an ordinary machine's otherwise.
    assert_eq!(common::sh(guest, &attach("os.fork()")).await.code, Some(0));
    let supervisor = "cat /proc/$PPID/environ";
    assert_ne!(common::sh(guest, supervisor).await.code, Some(0));
    sandbox.destroy().await.unwrap();
}
