//! Fixed commands that the engine itself runs in a guest, with what they print.
//!
//! Their words are ours and their number is small: what a caller says is one argument among them, never a
//! part of a line for a shell. They are no events of their own; the verb that they serve is.

use std::time::Duration;

use agentd_client::ClientError;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_protocol::ExecId;
use agentd_protocol::ExecPolicy;
use agentd_protocol::KillScope;
use agentd_protocol::OutputStream;
use agentd_protocol::StartExtension;
use agentd_protocol::StartRequest;
use fluxvm_projections::EnforcementRecord;
use fluxvm_vmm::Sandbox;
use uuid::Uuid;

use crate::confinement;
use crate::error::CommandError;
use crate::guest;
use crate::limits::CAPTURE_STDERR_BYTES_MAX;
use crate::limits::CAPTURE_TIME_MAX;
use crate::limits::EXEC_ANSWER_SLACK;

/// What the ids of these commands begin with in the guest.
pub(crate) const ID_PREFIX: &str = "fluxvm-";

/// A fixed command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fixed {
    pub(crate) words: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
    /// How much of what it prints is kept, in bytes.
    pub(crate) stdout_bytes_max: usize,
    /// What the session's policy takes from it.
    pub(crate) confine: Option<Box<ExecPolicy>>,
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captured {
    pub(crate) exit_code: i32,
    pub(crate) stdout: Vec<u8>,
    /// There was more than is kept.
    pub(crate) truncated: bool,
    pub(crate) stderr: String,
    /// What the guest's kernel held it to.
    pub(crate) enforcement: Option<EnforcementRecord>,
}

/// Runs one. `None` when the guest could not start it: the program is not there.
pub(crate) async fn capture(
    sandbox: &dyn Sandbox,
    fixed: Fixed,
) -> Result<Option<Captured>, CommandError> {
    let id = ExecId::new(format!("{ID_PREFIX}{}", Uuid::new_v4()))
        .map_err(|error| CommandError::Internal(error.to_string()))?;
    let mut request = StartRequest::new(id.clone(), &fixed.words);
    request.timeout_sec = Some(CAPTURE_TIME_MAX.as_secs_f64());
    request.x = Some(StartExtension {
        kill_grace_ms: Some(0),
        output_linger_ms: Some(0),
        scope: Some(KillScope::Tree),
        confine: fixed.confine,
        ..StartExtension::default()
    });
    for (name, value) in fixed.env {
        request.env.insert(name.to_owned(), value);
    }
    let run = async {
        let stream = sandbox.guest().run(&request).await?;
        read(stream, fixed.stdout_bytes_max).await
    };
    let limit: Duration = CAPTURE_TIME_MAX + EXEC_ANSWER_SLACK;
    let bounded = async {
        tokio::time::timeout(limit, run)
            .await
            .unwrap_or(Err(ClientError::Timeout))
    };
    let captured = match guest::ask_raw(sandbox, bounded).await? {
        Err(ClientError::Refused {
            slug: Some(slug), ..
        }) if &*slug == "spawn_failed" => return Ok(None),
        Err(error) if confinement::is_refusal(&error) => {
            return Err(CommandError::ExecFailed {
                code: confinement::CODE_REFUSED.to_owned(),
                reason: error.to_string(),
            });
        }
        captured => captured.map_err(guest::refused)?,
    };
    // Nobody waits for the guest to forget it.
    let client = sandbox.guest().clone();
    tokio::spawn(async move {
        if let Err(error) = client.release(&id).await {
            tracing::debug!(%id, %error, "a fixed command was not released");
        }
    });
    Ok(Some(captured))
}

async fn read(mut stream: ExecStream, stdout_bytes_max: usize) -> Result<Captured, ClientError> {
    let mut captured = Captured::default();
    let mut stderr = Vec::new();
    while let Some(event) = stream.next().await {
        match event? {
            ExecEvent::Output { stream, bytes, .. } => match stream {
                OutputStream::Stdout => {
                    captured.truncated |= !keep(&mut captured.stdout, &bytes, stdout_bytes_max);
                }
                OutputStream::Stderr => {
                    keep(&mut stderr, &bytes, CAPTURE_STDERR_BYTES_MAX);
                }
            },
            ExecEvent::Gap { .. } => captured.truncated = true,
            ExecEvent::Exit(exit) => {
                captured.exit_code = exit.exit_code.unwrap_or(-1);
                let report = exit.x.and_then(|extension| extension.enforcement);
                captured.enforcement = report.map(|report| confinement::record(*report));
                captured.stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
                return Ok(captured);
            }
        }
    }
    Err(ClientError::Disconnected)
}

/// Keeps what fits. Answers whether all did.
fn keep(kept: &mut Vec<u8>, bytes: &[u8], bytes_max: usize) -> bool {
    let room = bytes_max.saturating_sub(kept.len());
    kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    bytes.len() <= room
}
