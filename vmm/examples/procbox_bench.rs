//! Measures creation and removal: `procbox_bench <launcher> <agentd> [n]`, release build, as root
//! or not.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fluxvm_vmm::procbox::{UID_BASE_DEFAULT, UID_COUNT_DEFAULT};
use fluxvm_vmm::{Backend, Procbox, ProcboxOptions, SandboxId, SandboxSpec, become_subreaper};

fn main() -> Result<(), Box<dyn Error>> {
    let state = std::env::temp_dir().join(format!("fluxvm-bench-{}", std::process::id()));
    let runtime = tokio::runtime::Runtime::new()?;
    let measured = runtime.block_on(measure(&state));
    // Removed sandboxes' files go in the background: dropping the runtime waits for them.
    drop(runtime);
    std::fs::remove_dir_all(&state)?;
    measured
}

async fn measure(state: &Path) -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let launcher = arguments
        .next()
        .map(PathBuf::from)
        .ok_or("the launcher's path is missing")?;
    let agentd = arguments
        .next()
        .map(PathBuf::from)
        .ok_or("the guest daemon's path is missing")?;
    let rounds = match arguments.next() {
        Some(text) => text.to_string_lossy().parse::<usize>()?,
        None => 50,
    };
    become_subreaper()?;
    let started = Instant::now();
    let engine = Procbox::new(ProcboxOptions {
        sandboxes_dir: state.join("sandboxes"),
        layers_dir: state.join("layers"),
        snapshots_dir: state.join("snapshots"),
        images_dir: state.join("images"),
        secrets_dir: state.join("secrets"),
        masked_paths: vec![state.to_owned()],
        agentd,
        launcher,
        criu: fluxvm_vmm::procbox::find_criu(),
        uid_base: UID_BASE_DEFAULT,
        uid_count: UID_COUNT_DEFAULT,
    })?;
    let probed = started.elapsed();
    let (mut created, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut spec = SandboxSpec::new(SandboxId::random());
        spec.memory_mb = Some(512);
        spec.processes_max = Some(256);
        spec.cpus = Some(2);
        let started = Instant::now();
        let sandbox = engine.create(spec).await?;
        created.push(started.elapsed());
        let started = Instant::now();
        sandbox.destroy().await?;
        removed.push(started.elapsed());
    }
    let figures = [
        format!("open    {probed:?}"),
        line("create", &mut created),
        line("destroy", &mut removed),
    ];
    std::io::Write::write_all(&mut std::io::stdout(), figures.join("\n").as_bytes())?;
    Ok(())
}

fn line(name: &str, times: &mut [Duration]) -> String {
    times.sort();
    let at = |percent: usize| {
        let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(index).copied().unwrap_or_default()
    };
    format!(
        "{name:8} n={} p50 {:?} p95 {:?} min {:?}\n",
        times.len(),
        at(50),
        at(95),
        at(0)
    )
}
