//! Whether a job may start, be written to or be signalled.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::Event;
use fluxvm_projections::Job;
use fluxvm_projections::JobEnd;
use fluxvm_projections::JobId;
use fluxvm_projections::JobKillStarted;
use fluxvm_projections::JobStarted;
use fluxvm_projections::JobState;
use fluxvm_projections::JobStdinStarted;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;

use super::signal::Signal;
use crate::book::Entry;
use crate::error::CommandError;
use crate::exec;
use crate::gate;
use crate::limits::EXEC_TIMEOUT_MAX_MS;
use crate::limits::JOB_OUTPUT_BYTES_DEFAULT;
use crate::limits::JOB_OUTPUT_BYTES_MAX;
use crate::limits::JOB_STDIN_BYTES_MAX;
use crate::limits::JOB_STDIN_LOST_MS_MAX;
use crate::limits::JOB_STDIN_LOST_MS_MIN;
use crate::limits::JOBS_RUNNING_MAX;
use crate::request::InputBytes;
use crate::request::JobInput;
use crate::request::StartJob;

/// Checks what can be checked without a session.
pub(super) fn check(request: &StartJob, job: JobId) -> Result<JobStarted, CommandError> {
    exec::check_command(&request.command)?;
    if let Some(timeout_ms) = request.timeout_ms {
        exec::check_timeout(timeout_ms, EXEC_TIMEOUT_MAX_MS)?;
    }
    let max_output_bytes = request.max_output_bytes.unwrap_or(JOB_OUTPUT_BYTES_DEFAULT);
    if max_output_bytes > JOB_OUTPUT_BYTES_MAX {
        return Err(CommandError::Invalid {
            field: "max_output_bytes",
            message: format!("must be at most {JOB_OUTPUT_BYTES_MAX} bytes for each stream"),
        });
    }
    Ok(JobStarted {
        job,
        command: request.command.clone(),
        stdin: request.stdin,
        timeout_ms: request.timeout_ms,
        max_output_bytes,
        stdin_lost_ms: check_lost(request)?,
    })
}

fn check_lost(request: &StartJob) -> Result<Option<u64>, CommandError> {
    let invalid = |message: String| CommandError::Invalid {
        field: "stdin_lost_seconds",
        message,
    };
    match request.stdin_lost_ms {
        Some(_) if !request.stdin => Err(invalid("is for a job with `stdin`".to_owned())),
        Some(lost_ms) if !(JOB_STDIN_LOST_MS_MIN..=JOB_STDIN_LOST_MS_MAX).contains(&lost_ms) => {
            let (min, max) = (JOB_STDIN_LOST_MS_MIN / 1_000, JOB_STDIN_LOST_MS_MAX / 1_000);
            Err(invalid(format!("must be {min} to {max} seconds")))
        }
        lost_ms => Ok(lost_ms),
    }
}

/// Decides on a start. Pure.
pub(super) fn start(
    session: &Session,
    started: &JobStarted,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    let is_job = |kind: &OperationKind| matches!(kind, OperationKind::Job { .. });
    let jobs = session.in_flight.iter().filter(|it| is_job(&it.kind));
    if jobs.count() >= JOBS_RUNNING_MAX {
        return Err(CommandError::TooMany {
            what: "running jobs",
            limit: JOBS_RUNNING_MAX,
        });
    }
    Ok(Entry::new(Event::JobStarted(started.clone())))
}

/// Checks what a write can be checked for without a session.
pub(super) fn check_input(job: JobId, input: &JobInput) -> Result<JobStdinStarted, CommandError> {
    let (bytes, streamed) = match &input.bytes {
        InputBytes::Stream(_) => (0, true),
        InputBytes::Whole(_, bytes) if bytes.len() <= JOB_STDIN_BYTES_MAX => (bytes.len(), false),
        InputBytes::Whole(field, bytes) => {
            let message = format!(
                "is {} bytes; one such write takes at most {JOB_STDIN_BYTES_MAX}: send the rest with the \
                 next, or all of it as `application/octet-stream`",
                bytes.len()
            );
            return Err(CommandError::Invalid { field, message });
        }
    };
    Ok(JobStdinStarted {
        job,
        bytes: bytes as u64,
        streamed,
        offset: input.offset,
        close: input.close,
    })
}

/// Decides on a write. Pure.
pub(super) fn input(
    session: &Session,
    job: Option<&Job>,
    asked: &JobStdinStarted,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    let job = running(session, job, asked.job, now)?;
    let closed = |why| {
        Err(CommandError::StdinClosed {
            job: asked.job,
            why,
        })
    };
    if !job.stdin {
        return closed("the job was started without one");
    }
    // One that says where it belongs may be the repeat of the one that closed it: the guest knows.
    if job.stdin_closed && asked.offset.is_none() {
        return closed("it was closed before");
    }
    Ok(Entry::new(Event::JobStdinStarted(asked.clone())))
}

/// Decides on a signal. Pure.
pub(super) fn kill(
    session: &Session,
    job: Option<&Job>,
    id: JobId,
    signal: Signal,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    running(session, job, id, now)?;
    Ok(Entry::new(Event::JobKillStarted(JobKillStarted {
        job: id,
        signal: signal.name.to_owned(),
        number: signal.number,
    })))
}

fn running<'a>(
    session: &Session,
    job: Option<&'a Job>,
    id: JobId,
    now: DateTime<Utc>,
) -> Result<&'a Job, CommandError> {
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    let job = job.ok_or(CommandError::JobNotFound(id))?;
    match job.state {
        JobState::Running => Ok(job),
        _ => Err(CommandError::JobEnded(id)),
    }
}

/// How a job ended, judged by what was asked for while it ran. Pure.
pub(super) fn end(exit_code: i32, signal: Option<i32>, timed_out: bool, asked: &[i32]) -> JobEnd {
    let by = signal.or_else(|| exit_code.checked_sub(128).filter(|by| *by > 0));
    match (timed_out, signal) {
        (true, _) => JobEnd::TimedOut,
        // A shell says by its exit code which signal ended what it ran.
        _ if by.is_some_and(|by| asked.contains(&by)) => JobEnd::Killed,
        (false, Some(_)) => JobEnd::Signaled,
        (false, None) => JobEnd::Exited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_that_is;
    use crate::testing::session_with;
    use expect_test::Expect;
    use expect_test::expect;
    use fluxvm_eventstore::EventId;
    use fluxvm_projections::SessionStatus;
    use uuid::Uuid;

    const JOB: JobId = JobId(Uuid::nil());

    fn request() -> StartJob {
        StartJob {
            command: "true".into(),
            stdin: false,
            given: None,
            stdin_lost_ms: None,
            max_output_bytes: None,
            timeout_ms: None,
            approval_id: None,
            approval_wait_seconds: None,
        }
    }

    fn job() -> Job {
        Job {
            id: JOB,
            seq: 3,
            intent: EventId::new(Uuid::nil()),
            command: "cat".into(),
            stdin: true,
            stdin_closed: false,
            stdin_bytes: 0,
            stdin_lost_ms: None,
            stdin_cut: false,
            timeout_ms: None,
            max_output_bytes: 1,
            state: JobState::Running,
            exit_code: None,
            signal: None,
            started_at: now(),
            ended_at: None,
            signals: Vec::new(),
            stdout: None,
            stderr: None,
            failure: None,
            enforcement: None,
        }
    }

    fn check(decided: Result<Entry, CommandError>, expected: &Expect) {
        let text = match decided {
            Ok(entry) => entry.event.kind().unwrap_or("erased").to_owned(),
            Err(error) => error.code().to_owned(),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_job_has_no_time_limit_of_its_own_and_keeps_sixteen_mebibytes() {
        let started = super::check(&request(), JOB).expect("fine");
        assert_eq!(started.timeout_ms, None);
        assert_eq!(started.max_output_bytes, 16 * 1024 * 1024);
        for (bad, field) in [
            (
                StartJob {
                    command: " ".into(),
                    ..request()
                },
                "command",
            ),
            (
                StartJob {
                    timeout_ms: Some(0),
                    ..request()
                },
                "timeout_seconds",
            ),
            (
                StartJob {
                    max_output_bytes: Some(JOB_OUTPUT_BYTES_MAX + 1),
                    ..request()
                },
                "max_output_bytes",
            ),
            (
                StartJob {
                    stdin_lost_ms: Some(5_000),
                    ..request()
                },
                "stdin_lost_seconds",
            ),
            (
                StartJob {
                    stdin: true,
                    stdin_lost_ms: Some(JOB_STDIN_LOST_MS_MIN - 1),
                    ..request()
                },
                "stdin_lost_seconds",
            ),
        ] {
            let error = super::check(&bad, JOB).expect_err(field);
            assert_eq!(error.field(), Some(field));
        }
    }

    #[test]
    fn a_running_session_takes_so_many_jobs_and_no_more() {
        let started = super::check(&request(), JOB).expect("fine");
        check(start(&session(), &started, now()), &expect!["job.start"]);
        let mut full = session_with(OperationKind::Job {
            job: JOB,
            command: "sleep 9".to_owned(),
            timeout_ms: None,
        });
        let one = full.in_flight.clone();
        full.in_flight = one.into_iter().cycle().take(JOBS_RUNNING_MAX).collect();
        check(start(&full, &started, now()), &expect!["too_many"]);
        let deleting = session_with(OperationKind::Delete);
        check(
            start(&deleting, &started, now()),
            &expect!["operation_in_flight"],
        );
        let expired = session_that_is(SessionStatus::Expired);
        check(
            start(&expired, &started, now()),
            &expect!["session_not_running"],
        );
    }

    #[test]
    fn only_a_running_job_with_an_open_input_is_written_to() {
        let whole = |bytes: Vec<u8>| JobInput {
            bytes: InputBytes::Whole("text", bytes.into()),
            offset: None,
            close: false,
        };
        let asked = check_input(JOB, &whole(b"x".to_vec())).expect("fine");
        let write = |job: Option<&Job>| input(&session(), job, &asked, now());
        check(write(Some(&job())), &expect!["job.stdin.started"]);
        check(write(None), &expect!["job_not_found"]);
        let ended = Job {
            state: JobState::Exited,
            ..job()
        };
        check(write(Some(&ended)), &expect!["job_ended"]);
        let closed = Job {
            stdin_closed: true,
            ..job()
        };
        check(write(Some(&closed)), &expect!["stdin_closed"]);
        let repeated = JobStdinStarted {
            offset: Some(0),
            ..asked.clone()
        };
        let repeated = input(&session(), Some(&closed), &repeated, now());
        check(repeated, &expect!["job.stdin.started"]);
        let without = Job {
            stdin: false,
            ..job()
        };
        check(write(Some(&without)), &expect!["stdin_closed"]);
        let large = check_input(JOB, &whole(vec![0; JOB_STDIN_BYTES_MAX + 1]));
        assert_eq!(large.expect_err("large").field(), Some("text"));
    }

    #[test]
    fn a_job_is_killed_only_by_a_signal_that_was_asked_for() {
        assert_eq!(end(143, Some(15), false, &[15]), JobEnd::Killed);
        assert_eq!(end(143, None, false, &[15]), JobEnd::Killed);
        assert_eq!(end(0, None, false, &[15]), JobEnd::Exited);
        assert_eq!(end(137, Some(9), false, &[15]), JobEnd::Signaled);
        assert_eq!(end(124, Some(15), true, &[15]), JobEnd::TimedOut);
        assert_eq!(end(139, Some(11), false, &[]), JobEnd::Signaled);
        assert_eq!(end(7, None, false, &[7]), JobEnd::Exited);
    }
}
