//! From a command's end to its outcome event and its answer.

use std::sync::Arc;

use agentd_protocol::ExitEvent;
use agentd_protocol::ExitExtension;
use bytes::Bytes;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::EnforcementRecord;
use fluxvm_projections::Event;
use fluxvm_projections::ExecCompleted;
use fluxvm_projections::Recording;
use fluxvm_projections::Session;
use fluxvm_projections::SurvivorRecord;
use fluxvm_projections::Survivors;

use super::Running;
use super::feed::Given;
use super::follow::Ended;
use crate::answer::ExecAnswer;
use crate::book::Entry;
use crate::caller::Caller;
use crate::confinement;
use crate::engine::Inner;
use crate::error::CommandError;

/// The exit code of a command whose time ran out.
const EXIT_CODE_TIMED_OUT: i32 = 124;

/// Whether the session keeps outputs.
pub(crate) fn keeps(session: &Session) -> bool {
    session.record == Recording::Full
}

/// Records how the command ended together with what it wrote, and answers with that. What cannot be stored
/// is recorded by its digest alone: that a command ended must be known even where its output is not kept.
pub(super) async fn record(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &Running,
    ended: Ended,
    given: Option<Given>,
) -> Result<ExecAnswer, CommandError> {
    let (stdout_record, stdout) = ended.stdout.finish(running.keep);
    let (stderr_record, stderr) = ended.stderr.finish(running.keep);
    let mut attachments = Vec::new();
    for (record, bytes) in [(&stdout_record, &stdout), (&stderr_record, &stderr)] {
        attachments.extend(record.blob.as_ref().map(|_| bytes.clone()));
    }
    let mut extension = ended.exit.x.clone().unwrap_or_default();
    let enforcement = enforcement(&mut extension);
    let mut outcome = ExecCompleted {
        op: running.op,
        exec_id: running.started.exec_id,
        command: running.started.command.clone(),
        exit_code: exit_code(&ended.exit),
        signal: ended.exit.signal,
        timed_out: ended.exit.timed_out,
        duration_ms: extension.duration_ms,
        timeout_ms: running.started.timeout_ms,
        stdin_bytes: given.map(|given| given.taken_bytes),
        stdin_cut: match given {
            Some(given) => given.cut,
            // Whoever fed it ended with its daemon.
            None => running.started.stdin,
        },
        stdout: stdout_record,
        stderr: stderr_record,
        gap_bytes: ended.gap_bytes,
        survivors: survivors(extension),
        readopted: running.readopted,
        enforcement,
    };
    let recorded = match conclude(inner, caller, running, &outcome, attachments).await {
        Err(CommandError::Ledger(AppendError::Blob { reason })) => {
            tracing::error!(%reason, "outputs were not stored; only their digests are recorded");
            (outcome.stdout.blob, outcome.stderr.blob) = (None, None);
            conclude(inner, caller, running, &outcome, Vec::new()).await?
        }
        recorded => recorded?,
    };
    Ok(ExecAnswer {
        seq: recorded.header.seq.get(),
        outcome,
        stdout,
        stderr,
    })
}

async fn conclude(
    inner: &Inner,
    caller: &Caller,
    running: &Running,
    outcome: &ExecCompleted,
    attachments: Vec<Bytes>,
) -> Result<Arc<RecordedEvent>, CommandError> {
    let entry = Entry::new(Event::ExecCompleted(outcome.clone())).with(attachments);
    inner
        .book
        .conclude(caller, running.session, running.intent, entry)
        .await
}

pub(crate) fn exit_code(exit: &ExitEvent) -> i32 {
    match (exit.timed_out, exit.exit_code, exit.signal) {
        (true, _, _) => EXIT_CODE_TIMED_OUT,
        (false, Some(code), _) => code,
        (false, None, Some(signal)) => 128 + signal,
        // The guest lost the process: it says neither. No program can return this.
        (false, None, None) => -1,
    }
}

/// What the command was held to, as it is recorded.
pub(crate) fn enforcement(extension: &mut ExitExtension) -> Option<Box<EnforcementRecord>> {
    let report = extension.enforcement.take()?;
    Some(Box::new(confinement::record(*report)))
}

pub(crate) fn survivors(extension: ExitExtension) -> Option<Survivors> {
    if extension.survivors_total == 0 {
        return None;
    }
    let listed = extension
        .survivors
        .into_iter()
        .map(|survivor| SurvivorRecord {
            pid: survivor.pid,
            command: survivor.command,
        })
        .collect();
    Some(Survivors {
        total: extension.survivors_total,
        listed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(exit_code: Option<i32>, signal: Option<i32>, timed_out: bool) -> ExitEvent {
        ExitEvent {
            exit_code,
            signal,
            truncated: false,
            writers_may_be_alive: false,
            offset: 0,
            timed_out,
            x: None,
        }
    }

    #[test]
    fn exit_codes_follow_the_shell_and_a_timeout_is_124() {
        assert_eq!(super::exit_code(&exit(Some(7), None, false)), 7);
        assert_eq!(super::exit_code(&exit(None, Some(9), false)), 137);
        assert_eq!(super::exit_code(&exit(None, Some(15), true)), 124);
        assert_eq!(
            super::exit_code(&exit(Some(0), None, true)),
            124,
            "it trapped the signal"
        );
    }
}
