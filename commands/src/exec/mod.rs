//! Run a command: intent, guest, outcome.
//!
//! The command belongs to the session and not to the request: a caller that goes away does not end it,
//! and a daemon that goes away does not either. Whoever follows a command to its end, the first daemon or
//! the next one, records the same outcome.

mod collect;
mod decide;
mod feed;
mod follow;
mod outcome;

use std::sync::Arc;

use agentd_protocol::KillScope;
use agentd_protocol::ShellChoice;
use agentd_protocol::StartExtension;
use agentd_protocol::StartRequest;
use fluxvm_eventstore::EventId;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::ExecFailed;
use fluxvm_projections::ExecId;
use fluxvm_projections::ExecStarted;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;
use tokio::sync::oneshot;
use uuid::Uuid;

use self::feed::Feed;

pub(crate) use collect::OutputMemory;
pub(crate) use decide::check_command;
pub(crate) use decide::check_timeout;
pub(crate) use follow::Attach;
pub(crate) use follow::end_overdue;
pub(crate) use follow::release;
pub(crate) use outcome::enforcement;
pub(crate) use outcome::exit_code;
pub(crate) use outcome::keeps;
pub(crate) use outcome::survivors;

use crate::answer::ExecAnswer;
use crate::book::Entry;
use crate::caller::Caller;
use crate::confinement;
use crate::confinement::Runs;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::guard;
use crate::guard::Admitted;
use crate::guard::Asked;
use crate::guard::CommandKind;
use crate::guard::budget;
use crate::guest;
use crate::limits::EXEC_KILL_GRACE;
use crate::limits::EXEC_OUTPUT_LINGER;
use crate::request::Exec;
use crate::request::StdinSource;
use crate::rewind;
use crate::rewind::Before;

/// A command on its way from intent to outcome.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) session: SessionId,
    pub(crate) op: u64,
    pub(crate) intent: EventId,
    pub(crate) started: ExecStarted,
    /// Outputs are kept, not only their digests.
    pub(crate) keep: bool,
    /// Bytes of each output stream that are kept at most.
    pub(crate) output_bytes_max: usize,
    /// An earlier daemon started it.
    pub(crate) readopted: bool,
}

/// Runs a command to its end.
pub(crate) async fn exec(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Exec,
    stdin: Option<StdinSource>,
) -> Result<ExecAnswer, CommandError> {
    let command = decide::check(&request, stdin.is_some())?;
    inner.check_room()?;
    inner.expire_if_due(caller, id).await?;
    guest::answers(inner, id)?;
    let exec_id = ExecId(Uuid::new_v4());
    let asked = Asked {
        kind: CommandKind::Exec,
        command: request.command,
        timeout_ms: Some(command.timeout_ms),
        parameters: vec![("stdin", command.stdin.to_string())],
        approval: request.approval_id,
    };
    let wait = request.approval_wait_seconds;
    let (kind, line) = ((exec_id, command.stdin), asked.clone());
    let admitted = guard::admit(inner, caller, id, asked, wait, |session, grant| {
        decide::decide(session, &line, grant, kind, inner.clock.now())
    });
    let Admitted { session, intent } = admitted.await?;
    crash::point("exec.intent");
    let before = Before::exec(intent.header.seq.get());
    rewind::before_trigger(inner, caller, &session, before).await;
    let running = Running {
        session: id,
        op: intent.header.seq.get(),
        intent: intent.header.event_id,
        started: recorded(&intent)?,
        keep: outcome::keeps(&session),
        output_bytes_max: budget::output_bytes_max(&session),
        readopted: false,
    };
    let Some(sandbox) = inner.sandboxes.get(id) else {
        let reason = "its sandbox has ended".to_owned();
        return Err(fail(inner, caller, &running, "sandbox_gone", reason).await);
    };
    let (told, runs) = oneshot::channel();
    let attach = Attach::Run(Box::new(start_request(&session, &running.started)?), told);
    let Some(stdin) = stdin else {
        return end(inner, caller, &running, &sandbox, attach, None).await;
    };
    let mut feed = Feed::new(stdin);
    let exec_id = guest_exec_id(exec_id)?;
    // What the command did not want is left to whoever sends it: the answer does not wait for that.
    let fed = Some((&mut feed, runs, &exec_id));
    end(inner, caller, &running, &sandbox, attach, fed).await
}

/// What a command reads, the word that it runs, and its name.
type Fed<'a> = (
    &'a mut Feed,
    oneshot::Receiver<()>,
    &'a agentd_protocol::ExecId,
);

/// Takes a command up that an earlier daemon started, and records its end.
pub(crate) async fn resume_to_end(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &Running,
    sandbox: &Arc<dyn Sandbox>,
) -> Result<ExecAnswer, CommandError> {
    if running.started.stdin {
        // Whoever fed it is gone, and it would take what it got for everything.
        let exec_id = guest_exec_id(running.started.exec_id)?;
        if let Err(error) = sandbox.guest().kill(&exec_id).await {
            tracing::warn!(%error, "a command without its input was not ended");
        }
    }
    end(inner, caller, running, sandbox, Attach::Resume, None).await
}

/// The command as it was let through.
fn recorded(intent: &RecordedEvent) -> Result<ExecStarted, CommandError> {
    let envelope =
        Envelope::decode(intent).map_err(|error| CommandError::Internal(error.to_string()))?;
    match envelope.event {
        Event::ExecStarted(started) => Ok(started),
        _ => Err(CommandError::Internal(
            "another intent was recorded".to_owned(),
        )),
    }
}

/// Follows a command to its end and records it.
async fn end(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &Running,
    sandbox: &Arc<dyn Sandbox>,
    attach: Attach,
    fed: Option<Fed<'_>>,
) -> Result<ExecAnswer, CommandError> {
    let exec_id = guest_exec_id(running.started.exec_id)?;
    let following = follow::follow(inner, sandbox.as_ref(), &exec_id, running, attach);
    let (followed, given) = match fed {
        None => (following.await, None),
        Some((feed, runs, exec_id)) => {
            let guest = sandbox.guest();
            let mut following = std::pin::pin!(following);
            // The end of the input is not the end of the command, but the end of the command is the end
            // of its input.
            let followed = tokio::select! {
                followed = &mut following => followed,
                () = feed.run(guest, exec_id, runs) => following.await,
            };
            (followed, Some(feed.given()))
        }
    };
    match followed {
        Ok(ended) => {
            crash::point("exec.ended");
            let answer = outcome::record(inner, caller, running, ended, given).await?;
            crash::point("exec.outcome");
            // Only now does the guest let go of its copy: had the daemon died before, the next one would
            // have found it. Nobody waits for that.
            let sandbox = Arc::clone(sandbox);
            tokio::spawn(async move { follow::release(sandbox.as_ref(), &exec_id).await });
            Ok(answer)
        }
        Err(failure) => {
            Err(fail(inner, caller, running, failure.code(), failure.to_string()).await)
        }
    }
}

/// Runs a command in a sandbox that no session owns, and forgets it. Answers its exit code.
pub(crate) async fn unrecorded(
    inner: &Arc<Inner>,
    session: &Session,
    sandbox: &Arc<dyn Sandbox>,
    command: &str,
    timeout_ms: u64,
) -> Result<i32, CommandError> {
    let exec_id = ExecId(Uuid::new_v4());
    let running = Running {
        session: session.id,
        op: 0,
        intent: EventId::new(Uuid::nil()),
        started: ExecStarted {
            exec_id,
            command: command.to_owned(),
            timeout_ms,
            stdin: false,
        },
        keep: false,
        // Only how it ends is looked at.
        output_bytes_max: 0,
        readopted: false,
    };
    let (told, _) = oneshot::channel();
    let attach = Attach::Run(Box::new(start_request(session, &running.started)?), told);
    let exec_id = guest_exec_id(exec_id)?;
    match follow::follow(inner, sandbox.as_ref(), &exec_id, &running, attach).await {
        Ok(ended) => Ok(outcome::exit_code(&ended.exit)),
        Err(failure) => Err(CommandError::ExecFailed {
            code: failure.code().to_owned(),
            reason: failure.to_string(),
        }),
    }
}

/// What a restarted daemon needs to take up the command of an intent again.
pub(crate) fn resume(session: &Session, operation: &Operation) -> Option<Running> {
    let OperationKind::Exec {
        exec_id,
        command,
        timeout_ms,
        stdin,
    } = &operation.kind
    else {
        return None;
    };
    let started = ExecStarted {
        exec_id: *exec_id,
        command: command.clone(),
        timeout_ms: *timeout_ms,
        stdin: *stdin,
    };
    Some(Running {
        session: session.id,
        op: operation.seq,
        intent: operation.intent,
        started,
        keep: outcome::keeps(session),
        output_bytes_max: budget::output_bytes_max(session),
        readopted: true,
    })
}

/// Records that a command has no outcome, and why.
pub(crate) async fn fail(
    inner: &Inner,
    caller: &Caller,
    running: &Running,
    code: &str,
    reason: String,
) -> CommandError {
    let failed = Event::ExecFailed(ExecFailed {
        op: running.op,
        exec_id: running.started.exec_id,
        command: running.started.command.clone(),
        code: code.to_owned(),
        reason: reason.clone(),
    });
    let entry = Entry::new(failed);
    match inner
        .book
        .conclude(caller, running.session, running.intent, entry)
        .await
    {
        Ok(_) => CommandError::ExecFailed {
            code: code.to_owned(),
            reason,
        },
        Err(unrecorded) => unrecorded,
    }
}

pub(crate) fn guest_exec_id(id: ExecId) -> Result<agentd_protocol::ExecId, CommandError> {
    agentd_protocol::ExecId::new(id.to_string())
        .map_err(|error| CommandError::Internal(error.to_string()))
}

fn start_request(session: &Session, started: &ExecStarted) -> Result<StartRequest, CommandError> {
    let mut request = StartRequest::new(guest_exec_id(started.exec_id)?, [&started.command]);
    request.shell = ShellChoice::Flag(true);
    request.stdin = started.stdin;
    request.cwd = Some(session.workspace.path.clone());
    request.timeout_sec = Some(std::time::Duration::from_millis(started.timeout_ms).as_secs_f64());
    request.x = Some(StartExtension {
        kill_grace_ms: u64::try_from(EXEC_KILL_GRACE.as_millis()).ok(),
        output_linger_ms: u64::try_from(EXEC_OUTPUT_LINGER.as_millis()).ok(),
        scope: Some(KillScope::Tree),
        confine: confinement::of_session(session, Runs::Theirs),
        ..StartExtension::default()
    });
    Ok(request)
}
