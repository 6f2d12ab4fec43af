//! What an engine can do, in the words of the ledger.

use fluxvm_projections::Capabilities;
use fluxvm_vmm::Network;
use fluxvm_vmm::UserNamespace;

/// The engine's capabilities as they are recorded; these words must not change when the engine's do.
pub(crate) fn recorded(engine: &fluxvm_vmm::Capabilities) -> Capabilities {
    Capabilities {
        snapshot: engine.snapshot,
        restore: engine.restore,
        fork: engine.fork,
        pty: engine.pty,
        memory_checkpoint: engine.memory_checkpoint,
        memory_checkpoint_reason: engine.memory_checkpoint_reason.clone(),
        confinement: engine.confinement,
        exec_allowlist: engine.exec_allowlist,
        landlock_abi: engine.landlock_abi,
        http_policy: engine.http_policy,
        memory_limit: engine.memory_limit,
        process_limit: engine.process_limit,
        cpu_limit: engine.cpu_limit,
        user_namespace: match &engine.user_namespace {
            UserNamespace::ShiftedRange { base, count } => format!("shifted:{base}+{count}"),
            UserNamespace::SingleUser => "single-user".to_owned(),
        },
        host_root_writable: engine.host_root_writable,
        network: match engine.network {
            Network::LoopbackOnly => "loopback-only".to_owned(),
        },
    }
}
