//! Limits of a budget that hold at every moment: processes and memory. Pure.
//!
//! Where the host gives the daemon a control group for it, the whole sandbox is held to the limit.
//! Elsewhere each command is, by limits of its own processes, which the report of a command says.

use fluxvm_projections::BudgetRecord;
use fluxvm_projections::RuntimeRecord;

use super::Terms;
use crate::limits::GUEST_PROCESSES;
use crate::limits::PROCESSES_MAX;

/// What each command is held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLimits {
    pub(super) processes: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
}

/// `None` when no command has a limit of its own.
pub(super) fn of_commands(terms: &Terms<'_>) -> Option<CommandLimits> {
    let budget = terms.budget?;
    let own = |limit: Option<u64>, of_sandbox: bool| limit.filter(|_| !of_sandbox);
    let limits = CommandLimits {
        processes: own(budget.max_processes, terms.capabilities.process_limit),
        memory_bytes: own(budget.max_memory, terms.capabilities.memory_limit),
    };
    (limits != CommandLimits::default()).then_some(limits)
}

/// What a whole sandbox is held to: processes and threads, and MiB of memory.
pub(crate) fn machine_limits(
    runtime: &RuntimeRecord,
    budget: Option<&BudgetRecord>,
) -> (u32, Option<u64>) {
    let processes = budget.and_then(|budget| budget.max_processes);
    let processes = processes.map(|most| most.saturating_add(GUEST_PROCESSES));
    let processes = processes.and_then(|most| u32::try_from(most).ok());
    let processes = processes.map_or(PROCESSES_MAX, |most| most.min(PROCESSES_MAX));
    let memory = budget.and_then(|budget| budget.max_memory);
    let memory_mb = memory.map(|bytes| bytes.div_ceil(1024 * 1024));
    let memory_mb = memory_mb.into_iter().chain(runtime.memory_mb).min();
    (processes, memory_mb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn a_limit_is_the_sandboxs_where_it_can_be_and_else_the_commands() {
        let mut session = session();
        session.budget = Some(BudgetRecord {
            max_processes: Some(10),
            max_memory: Some(64 << 20),
            ..BudgetRecord::default()
        });
        let limits = of_commands(&Terms::of(&session)).unwrap();
        assert_eq!(limits.processes, Some(10));
        assert_eq!(limits.memory_bytes, Some(64 << 20));
        session.capabilities.process_limit = true;
        session.capabilities.memory_limit = true;
        assert_eq!(of_commands(&Terms::of(&session)), None);
    }

    #[test]
    fn the_smaller_of_two_limits_of_memory_holds() {
        let runtime = RuntimeRecord {
            memory_mb: Some(512),
            ..RuntimeRecord::default()
        };
        let budget = |max_memory| BudgetRecord {
            max_memory: Some(max_memory),
            max_processes: Some(u64::MAX),
            ..BudgetRecord::default()
        };
        let none = (PROCESSES_MAX, Some(512));
        assert_eq!(machine_limits(&runtime, None), none);
        assert_eq!(machine_limits(&runtime, Some(&budget(u64::MAX))), none);
        let less = machine_limits(&runtime, Some(&budget(256 << 20)));
        assert_eq!(less.1, Some(256));
    }
}
