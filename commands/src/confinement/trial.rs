//! Trying a session's policy on a command that does nothing, before anybody is told that it holds.

use agentd_protocol::ExecPolicy;
use fluxvm_projections::EnforcementRecord;
use fluxvm_vmm::Sandbox;

use super::Runs;
use super::Terms;
use super::exec_policy;
use super::reach::Reach;
use crate::capture;
use crate::capture::Fixed;
use crate::error::CommandError;

/// A program that is always among those that may be started.
const NOTHING: &str = "/bin/true";

/// Runs nothing under the policy. Answers with what the guest's kernel held it to; `None` when the policy
/// confines nothing.
///
/// # Errors
///
/// `Unenforceable` with the field whose promise does not hold; `Guest` when the guest does not answer.
pub(crate) async fn trial(
    terms: &Terms<'_>,
    sandbox: &dyn Sandbox,
) -> Result<Option<EnforcementRecord>, CommandError> {
    let Some(policy) = exec_policy(terms, Runs::Theirs) else {
        return Ok(None);
    };
    let fixed = Fixed {
        words: vec![NOTHING.to_owned()],
        confine: Some(Box::new(policy.clone())),
        ..Fixed::default()
    };
    let field = Reach::of(terms).map_or("budget", |reach| reach.field());
    let unenforceable = |message: String| CommandError::Unenforceable { field, message };
    let captured = match capture::capture(sandbox, fixed).await {
        Err(CommandError::ExecFailed { code, reason }) if code == super::CODE_REFUSED => {
            return Err(unenforceable(reason));
        }
        captured => captured?,
    };
    let captured = captured
        .ok_or_else(|| unenforceable(format!("it cannot be tried: the image has no {NOTHING}")))?;
    let report = captured.enforcement.unwrap_or_default();
    let missing = missing(&policy, &report);
    match missing.is_empty() || policy.best_effort {
        true => Ok(Some(report)),
        false => Err(unenforceable(format!(
            "a trial in the sandbox shows that it is not enforced: {}",
            missing.join(", ")
        ))),
    }
}

/// What was asked for and is not in the report. Pure.
fn missing(policy: &ExecPolicy, report: &EnforcementRecord) -> Vec<String> {
    let files = policy.read.is_some() || policy.write.is_some();
    let limits = policy.max_memory.is_some() || policy.max_processes.is_some();
    let wanted = [
        ("filesystem", files, report.filesystem),
        ("execute", policy.execute.is_some(), report.execute),
        ("scope_ipc", policy.scope_ipc, report.scope_signal),
        ("seccomp", policy.seccomp.is_some(), report.seccomp),
        ("limits", limits, report.limits),
    ];
    let mut missing = report.not_enforced.clone();
    let silent = wanted
        .into_iter()
        .filter(|(_, asked, holds)| *asked && !holds);
    missing.extend(silent.map(|(name, ..)| name.to_owned()));
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_to_name_everything_that_was_asked_for() {
        let policy = ExecPolicy {
            read: Some(vec!["/usr".into()]),
            execute: Some(vec!["git".into()]),
            max_processes: Some(1),
            ..ExecPolicy::default()
        };
        let nothing = EnforcementRecord::default();
        let names = ["filesystem", "execute", "scope_ipc", "limits"];
        assert_eq!(missing(&policy, &nothing), names);
        let report = EnforcementRecord {
            filesystem: true,
            execute: true,
            scope_signal: true,
            limits: true,
            not_enforced: vec!["read".into()],
            ..nothing
        };
        assert_eq!(missing(&policy, &report), ["read"]);
    }
}
