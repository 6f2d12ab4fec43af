//! Measures snapshots: `snapshot_bench <launcher> <agentd> [n]`, release build, as root.
//!
//! Disk: 5,000 files of 40 KiB, of which 10 change between two checkpoints. Memory: a small tree of
//! four processes, and one that holds 100 MB. A revival counts up to the first answered command.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_client::AgentdClient;
use agentd_client::protocol::{ExecId, ShellChoice, StartRequest};
use fluxvm_vmm::procbox::{UID_BASE_DEFAULT, UID_COUNT_DEFAULT, find_criu};
use fluxvm_vmm::{
    Backend, Identity, MemoryKept, MemoryWanted, Procbox, ProcboxOptions, Sandbox, SandboxId,
    SandboxSpec, Snapshot, SnapshotId, SnapshotSpec, become_subreaper,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Makes the files: 200 MB in all.
const FILES: &str = "mkdir -p /workspace/d && cd /workspace/d && head -c 40960 /dev/urandom > 0 && \
                     for n in $(seq 4999); do cp 0 $n; done";
/// Changes ten of them.
const CHANGE: &str = "cd /workspace/d && for n in $(seq 0 500 4999); do date +%N >> $n; done";
/// Three processes beside the guest daemon's own.
const SMALL: &str = "for n in 1 2 3; do setsid sleep 100000 >/dev/null 2>&1 & done";
/// One that holds 100 MB.
const LARGE: &str = "setsid python3 -c 'import os, time; b = os.urandom(100_000_000); \
                     open(\"/tmp/up\", \"w\"); time.sleep(100000)' >/dev/null 2>&1 & \
                     while ! test -e /tmp/up; do sleep 0.1; done";

fn main() -> Outcome<()> {
    let state = std::env::temp_dir().join(format!("fluxvm-bench-{}", std::process::id()));
    let runtime = tokio::runtime::Runtime::new()?;
    let measured = runtime.block_on(measure(&state));
    // Removed sandboxes' files go in the background: dropping the runtime waits for them.
    drop(runtime);
    std::fs::remove_dir_all(&state)?;
    measured
}

fn engine(state: &Path) -> Outcome<(Procbox, usize)> {
    let mut arguments = std::env::args_os().skip(1);
    let launcher = arguments.next().ok_or("the launcher's path is missing")?;
    let agentd = arguments
        .next()
        .ok_or("the guest daemon's path is missing")?;
    let rounds = match arguments.next() {
        Some(text) => text.to_string_lossy().parse::<usize>()?,
        None => 50,
    };
    become_subreaper()?;
    let engine = Procbox::new(ProcboxOptions {
        sandboxes_dir: state.join("sandboxes"),
        layers_dir: state.join("layers"),
        snapshots_dir: state.join("snapshots"),
        images_dir: state.join("images"),
        secrets_dir: state.join("secrets"),
        masked_paths: vec![state.to_owned()],
        agentd: PathBuf::from(agentd),
        launcher: PathBuf::from(launcher),
        criu: find_criu(),
        uid_base: UID_BASE_DEFAULT,
        uid_count: UID_COUNT_DEFAULT,
    })?;
    Ok((engine, rounds))
}

async fn measure(state: &Path) -> Outcome<()> {
    let (engine, rounds) = engine(state)?;
    disk(&engine, rounds).await?;
    let capabilities = engine.capabilities();
    if let Some(reason) = capabilities.memory_checkpoint_reason {
        return say(&format!("memory: {reason}\n"));
    }
    memory(&engine, "small", SMALL, rounds.min(20)).await?;
    memory(&engine, "100 MB", LARGE, rounds.min(10)).await
}

async fn disk(engine: &Procbox, rounds: usize) -> Outcome<()> {
    let sandbox = engine.create(SandboxSpec::new(SandboxId::random())).await?;
    run(sandbox.guest(), FILES).await?;
    let started = Instant::now();
    take(sandbox.as_ref(), MemoryWanted::Never).await?;
    say(&format!(
        "checkpoint, first, 5,000 files, 200 MB: {:?}\n",
        started.elapsed()
    ))?;
    let (mut whole, mut pauses) = (Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..rounds {
        run(sandbox.guest(), CHANGE).await?;
        let started = Instant::now();
        let snapshot = take(sandbox.as_ref(), MemoryWanted::Never).await?;
        whole.push(started.elapsed());
        pauses.push(snapshot.pause);
        last = Some(snapshot);
    }
    let half = pauses.len() / 2;
    let (mut early, mut late) = (pauses.clone(), pauses.split_off(half));
    early.truncate(half);
    say(&line("checkpoint, 10 of 5,000 files", &mut whole))?;
    say(&line("  of it the pause, first half", &mut early))?;
    say(&line("  of it the pause, second half", &mut late))?;
    let snapshot = last.ok_or("no round")?;
    let mut revived = Vec::new();
    for _ in 0..rounds.min(20) {
        let (took, copy) = revive(engine, &snapshot, Identity::Keep).await?;
        revived.push(took);
        copy.destroy().await?;
    }
    say(&line("revive to first answer, disk", &mut revived))?;
    children(engine, &snapshot, 100).await?;
    sandbox.destroy().await?;
    Ok(())
}

async fn memory(engine: &Procbox, name: &str, script: &str, rounds: usize) -> Outcome<()> {
    let sandbox = engine.create(SandboxSpec::new(SandboxId::random())).await?;
    run(sandbox.guest(), script).await?;
    let (mut whole, mut pauses, mut revived) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..rounds {
        let started = Instant::now();
        let snapshot = take(sandbox.as_ref(), MemoryWanted::Required).await?;
        whole.push(started.elapsed());
        pauses.push(snapshot.pause);
        last = Some(snapshot);
    }
    let snapshot = last.ok_or("no round")?;
    if let MemoryKept::Kept { bytes, .. } = snapshot.memory {
        say(&format!("memory {name}: {bytes} bytes of images\n"))?;
    }
    say(&line(&format!("checkpoint, {name}"), &mut whole))?;
    say(&line("  of it the pause at most", &mut pauses))?;
    for _ in 0..rounds {
        let (took, copy) = revive(engine, &snapshot, Identity::Keep).await?;
        revived.push(took);
        copy.destroy().await?;
    }
    say(&line(
        &format!("revive to first answer, {name}"),
        &mut revived,
    ))?;
    children(engine, &snapshot, 8).await?;
    sandbox.destroy().await?;
    Ok(())
}

/// Forks: many at once, each up to its first answer.
async fn children(engine: &Procbox, snapshot: &Snapshot, count: usize) -> Outcome<()> {
    let started = Instant::now();
    let mut making = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (engine, snapshot) = (engine.clone(), snapshot.clone());
        making.spawn(async move {
            let made = revive(&engine, &snapshot, Identity::Renew).await;
            made.map_err(|error| error.to_string())
        });
    }
    let (mut each, mut copies) = (Vec::new(), Vec::new());
    while let Some(made) = making.join_next().await {
        let (took, copy) = made??;
        each.push(took);
        copies.push(copy);
    }
    let all = started.elapsed();
    say(&format!(
        "fork into {count}: {all:?}, {:?} each\n",
        all / u32::try_from(count)?
    ))?;
    for copy in copies {
        copy.destroy().await?;
    }
    Ok(())
}

async fn take(sandbox: &dyn Sandbox, memory: MemoryWanted) -> Outcome<Snapshot> {
    let id = SnapshotId::random();
    Ok(sandbox.checkpoint(SnapshotSpec { id, memory }).await?)
}

async fn revive(
    engine: &Procbox,
    snapshot: &Snapshot,
    identity: Identity,
) -> Outcome<(Duration, Arc<dyn Sandbox>)> {
    let started = Instant::now();
    let spec = SandboxSpec::new(SandboxId::random());
    let revived = engine.revive(spec, snapshot, identity).await?;
    run(revived.sandbox.guest(), "true").await?;
    Ok((started.elapsed(), revived.sandbox))
}

async fn run(guest: &AgentdClient, script: &str) -> Outcome<()> {
    let id = ExecId::new(SandboxId::random().to_string())?;
    let mut request = StartRequest::new(id, [script]);
    request.shell = ShellChoice::Flag(true);
    let mut stream = guest.run(&request).await?;
    while let Some(event) = stream.next().await {
        event?;
    }
    Ok(())
}

fn say(text: &str) -> Outcome<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn line(name: &str, times: &mut [Duration]) -> String {
    times.sort();
    let at = |percent: usize| {
        let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(index).copied().unwrap_or_default()
    };
    format!(
        "{name:32} n={} p50 {:?} p95 {:?} min {:?}\n",
        times.len(),
        at(50),
        at(95),
        at(0)
    )
}
