//! From what was recorded of a machine to what an engine is asked for.

use std::collections::BTreeMap;

use fluxvm_projections::BudgetRecord;
use fluxvm_projections::RuntimeRecord;
use fluxvm_projections::SandboxId;
use fluxvm_projections::WorkspaceRecord;
use fluxvm_vmm::GuestPath;
use fluxvm_vmm::ImageName;
use fluxvm_vmm::ImageRef;
use fluxvm_vmm::SandboxSpec;

use crate::confinement;
use crate::error::CommandError;

/// A machine that is to be made.
pub(crate) struct Machine<'a> {
    pub(crate) sandbox_id: SandboxId,
    pub(crate) runtime: &'a RuntimeRecord,
    pub(crate) workspace: &'a WorkspaceRecord,
    pub(crate) budget: Option<&'a BudgetRecord>,
    pub(crate) hostname: String,
}

/// The machine as engines are asked for it.
pub(crate) fn sandbox(machine: Machine<'_>) -> Result<SandboxSpec, CommandError> {
    let image = image(machine.runtime)?;
    let workspace = machine
        .workspace
        .path
        .parse::<GuestPath>()
        .map_err(|error| invalid("workspace.path", &error.to_string()))?;
    let (processes, memory_mb) = confinement::machine_limits(machine.runtime, machine.budget);
    Ok(SandboxSpec {
        id: fluxvm_vmm::SandboxId::new(machine.sandbox_id.0),
        image,
        workspace,
        cpus: machine.runtime.cpus,
        memory_mb,
        processes_max: Some(processes),
        env: BTreeMap::new(),
        hostname: machine.hostname,
    })
}

/// The image that a machine is made from.
pub(crate) fn image(runtime: &RuntimeRecord) -> Result<ImageRef, CommandError> {
    match &runtime.image {
        None => Ok(ImageRef::HostRoot),
        Some(name) => name
            .parse::<ImageName>()
            .map(ImageRef::Named)
            .map_err(|error| invalid("runtime.image", &error.to_string())),
    }
}

fn invalid(field: &'static str, message: &str) -> CommandError {
    CommandError::Invalid {
        field,
        message: message.to_owned(),
    }
}
