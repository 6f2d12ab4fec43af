//! Processes that outlive their sandbox: kept in a snapshot, and brought back from it, once or often.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::sync::Arc;

use agentd_client::protocol::{ExecId, ExecPolicy, ShellChoice, StartExtension, StartRequest};
use agentd_client::{AgentdClient, ExecEvent};
use common::{Lab, Traces, root_or_skip, sh};
use fluxvm_vmm::{
    Backend, Identity, MemoryKept, MemoryWanted, Revived, Sandbox, SandboxId, SandboxSpec,
    Snapshot, SnapshotError, SnapshotId, SnapshotSpec,
};

/// A lab whose engine keeps memory; says so when this host cannot.
fn lab_or_skip() -> Option<Lab> {
    if !root_or_skip() {
        return None;
    }
    let lab = Lab::new();
    let capabilities = lab.engine.capabilities();
    if capabilities.memory_checkpoint {
        return Some(lab);
    }
    let reason = capabilities.memory_checkpoint_reason.unwrap();
    assert!(!reason.is_empty());
    eprintln!("skipped: {reason}");
    None
}

async fn checkpoint(sandbox: &dyn Sandbox) -> Snapshot {
    let id = SnapshotId::random();
    let memory = MemoryWanted::Required;
    sandbox
        .checkpoint(SnapshotSpec { id, memory })
        .await
        .unwrap()
}

async fn revive(lab: &Lab, snapshot: &Snapshot, identity: Identity) -> Revived {
    let spec = SandboxSpec::new(SandboxId::random());
    lab.engine.revive(spec, snapshot, identity).await.unwrap()
}

/// Starts a job and leaves it running.
async fn start(guest: &AgentdClient, script: &str) -> ExecId {
    let id = ExecId::new(SandboxId::random().to_string()).unwrap();
    let mut request = StartRequest::new(id.clone(), [script]);
    request.shell = ShellChoice::Flag(true);
    guest.start(&request).await.unwrap();
    id
}

/// Reads a job's output from `offset` until it ends, and says how it ended.
async fn follow(guest: &AgentdClient, id: &ExecId, offset: u64) -> (String, Option<i32>) {
    let mut stream = guest.stream(id, offset).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ExecEvent::Output { bytes, .. } => output.extend_from_slice(&bytes),
            ExecEvent::Gap { from, to } => panic!("lost {from}..{to}"),
            ExecEvent::Exit(exit) => {
                return (String::from_utf8(output).unwrap(), exit.exit_code);
            }
        }
    }
    panic!("the stream ended without an exit");
}

/// A server, a shell that counts in memory, and a job with open pipes.
const LIVELY: &str = r#"
cd /workspace && echo served > page
setsid python3 -m http.server 8000 >/dev/null 2>&1 &
setsid bash -c 'i=0; trap "echo \$i > /workspace/count" USR1; while :; do i=$((i+1)); read -t 0.01 <> <(:); done' >/dev/null 2>&1 &
echo $! > /workspace/counter
for n in $(seq 200); do python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8000/page")' 2>/dev/null && exit 0; done
exit 1
"#;

const COUNT: &str = "rm -f /workspace/count; kill -USR1 $(cat /workspace/counter); \
                     while ! test -s /workspace/count; do :; done; cat /workspace/count";
const FETCH: &str = "python3 -c 'import urllib.request as u; \
                     print(u.urlopen(\"http://127.0.0.1:8000/page\").read().decode().strip())'";

#[tokio::test(flavor = "multi_thread")]
async fn processes_jobs_and_their_output_live_on() {
    let Some(lab) = lab_or_skip() else { return };
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    sh(guest, LIVELY).await.ok();
    let job = start(guest, "for n in 1 2 3; do echo line $n; done; while ! test -e /workspace/go; do sleep 0.05; done; echo on; exit 7").await;
    let pids = sh(guest, "pgrep -f '[h]ttp.server'; cat /workspace/counter")
        .await
        .ok()
        .to_owned();
    let before: u64 = sh(guest, COUNT).await.ok().parse().unwrap();
    let snapshot = checkpoint(sandbox.as_ref()).await;
    assert!(
        matches!(snapshot.memory, MemoryKept::Kept { bytes, .. } if bytes > 100_000),
        "{snapshot:?}"
    );
    eprintln!(
        "checkpoint paused {:?} for {:?}",
        snapshot.pause, snapshot.memory
    );

    // The captured one runs on as if nothing had been.
    assert_eq!(sh(guest, FETCH).await.ok(), "served");
    let after: u64 = sh(guest, COUNT).await.ok().parse().unwrap();
    assert!(after >= before, "{before} {after}");
    sh(guest, "echo later > /workspace/page; touch /workspace/go")
        .await
        .ok();
    assert_eq!(
        follow(guest, &job, 0).await,
        ("line 1\nline 2\nline 3\non\n".to_owned(), Some(7))
    );
    let traces = Traces::of(&lab, sandbox.as_ref());
    sandbox.destroy().await.unwrap();
    traces.assert_gone();

    // It comes back twice, one after the other and of itself.
    let mut snapshot = snapshot;
    for round in 0..2 {
        let began = std::time::Instant::now();
        let Revived { sandbox, report } = revive(&lab, &snapshot, Identity::Keep).await;
        eprintln!("revived in {:?}", began.elapsed());
        assert!(report.memory && !report.identity_renewed, "{report:?}");
        assert!(report.unconfined.is_empty(), "{report:?}");
        let guest = sandbox.guest();
        assert_eq!(sh(guest, FETCH).await.ok(), "served", "round {round}");
        assert_eq!(
            sh(guest, "pgrep -f '[h]ttp.server'; cat /workspace/counter")
                .await
                .ok(),
            pids
        );
        let count: u64 = sh(guest, COUNT).await.ok().parse().unwrap();
        assert!(count >= before, "{before} {count}");
        snapshot = checkpoint(sandbox.as_ref()).await;
        sh(guest, "touch /workspace/go").await.ok();
        let rest = follow(guest, &job, 7).await;
        assert_eq!(rest, ("line 2\nline 3\non\n".to_owned(), Some(7)));
        let traces = Traces::of(&lab, sandbox.as_ref());
        sandbox.destroy().await.unwrap();
        traces.assert_gone();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_copies_of_one_snapshot_diverge_and_share_no_identity() {
    let Some(lab) = lab_or_skip() else { return };
    let lab = Arc::new(lab);
    let sandbox = lab.create().await;
    sh(sandbox.guest(), LIVELY).await.ok();
    let ids = "cat /etc/machine-id; hostname; python3 -c 'import random; print(random.SystemRandom().random())'";
    let parent = sh(sandbox.guest(), ids).await.ok().to_owned();
    let snapshot = checkpoint(sandbox.as_ref()).await;
    let mut copies = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (lab, snapshot) = (Arc::clone(&lab), snapshot.clone());
        copies.spawn(async move {
            let Revived { sandbox, report } = revive(&lab, &snapshot, Identity::Renew).await;
            assert!(report.memory && report.identity_renewed, "{report:?}");
            sh(
                sandbox.guest(),
                &format!("echo copy {number} > /workspace/page"),
            )
            .await
            .ok();
            (number, sandbox)
        });
    }
    let mut seen: Vec<String> = parent.lines().map(str::to_owned).collect();
    for (number, copy) in copies.join_all().await {
        assert_eq!(sh(copy.guest(), FETCH).await.ok(), format!("copy {number}"));
        for line in sh(copy.guest(), ids).await.ok().lines() {
            assert!(
                !seen.iter().any(|other| other == line),
                "{line} is another's too"
            );
            seen.push(line.to_owned());
        }
        copy.destroy().await.unwrap();
    }
    assert_eq!(
        sh(sandbox.guest(), FETCH).await.ok(),
        "served",
        "the parent is untouched"
    );
    let token = std::fs::read_dir(lab.state.path().join("secrets/agents")).unwrap();
    assert_eq!(token.count(), 2, "the sandbox's and the snapshot's");
    lab.engine.remove_snapshot(&snapshot.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_said_and_harms_nothing() {
    let Some(lab) = lab_or_skip() else { return };
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let spec = |memory| SnapshotSpec {
        id: SnapshotId::random(),
        memory,
    };
    // Nothing but the guest daemon: nothing to keep.
    let snapshot = sandbox
        .checkpoint(spec(MemoryWanted::Required))
        .await
        .unwrap();
    assert_eq!(snapshot.memory, MemoryKept::NothingAlive);
    let revived = revive(&lab, &snapshot, Identity::RenewBestEffort).await;
    assert!(!revived.report.memory && revived.report.identity_renewed);
    revived.sandbox.destroy().await.unwrap();

    // A raw io_uring, or what else CRIU does not know: here a process that another one traces.
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid; \
                  setsid python3 -c 'import ctypes,time; c=ctypes.CDLL(None); \
                  assert c.ptrace(0x4206, int(open(\"/tmp/pid\").read()), 0, 0) == 0; \
                  open(\"/tmp/traced\",\"w\"); time.sleep(1000)' >/dev/null 2>&1 & \
                  while ! test -e /tmp/traced; do :; done";
    sh(guest, script).await.ok();
    let refused = sandbox.checkpoint(spec(MemoryWanted::Required)).await;
    assert!(
        matches!(&refused, Err(SnapshotError::Memory(why)) if why.contains("CRIU")),
        "{refused:?}"
    );
    let snapshot = sandbox
        .checkpoint(spec(MemoryWanted::BestEffort))
        .await
        .unwrap();
    assert!(
        matches!(&snapshot.memory, MemoryKept::Impossible { .. }),
        "{snapshot:?}"
    );
    assert_eq!(sh(guest, "pgrep -c sleep").await.ok(), "1");
    assert_eq!(lab.engine.snapshots().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_command_is_not_kept_and_not_touched() {
    let Some(lab) = lab_or_skip() else { return };
    let sandbox = lab.create().await;
    let id = ExecId::new(SandboxId::random().to_string()).unwrap();
    let mut request = StartRequest::new(id, ["sleep", "1000"]);
    let folders = [
        "/bin",
        "/usr",
        "/lib",
        "/lib64",
        "/etc",
        "/dev",
        "/proc",
        "/workspace",
    ];
    request.x = Some(StartExtension {
        confine: Some(Box::new(ExecPolicy {
            read: Some(folders.map(str::to_owned).to_vec()),
            ..ExecPolicy::default()
        })),
        ..StartExtension::default()
    });
    sandbox.guest().start(&request).await.unwrap();
    let started = "while ! pgrep -x sleep >/dev/null; do :; done";
    sh(sandbox.guest(), started).await.ok();
    let alive = "pgrep -x sleep";
    let before = sh(sandbox.guest(), alive).await.ok().to_owned();
    let spec = |memory| SnapshotSpec {
        id: SnapshotId::random(),
        memory,
    };
    let refused = sandbox.checkpoint(spec(MemoryWanted::Required)).await;
    assert!(matches!(&refused, Err(SnapshotError::Memory(why)) if why.contains("sleep")));
    let taken = sandbox.checkpoint(spec(MemoryWanted::BestEffort)).await;
    let taken = taken.unwrap().memory;
    assert!(matches!(&taken, MemoryKept::Impossible { reason } if reason.contains("confined")));
    assert_eq!(sh(sandbox.guest(), alive).await.ok(), before);
}
