//! What is erased from the ledger, and what may not be.

use std::path::Path;

use fluxvm_verify::SignedCheckpoint;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::file_error;
use super::sessions;
use crate::args::ledger::HoldArgs;
use crate::args::ledger::RedactArgs;
use crate::args::ledger::ShredArgs;
use crate::args::ledger::TruncateArgs;
use crate::client::Patience;
use crate::error::CliError;
use crate::error::EXIT_FAILED;
use crate::output::note;
use crate::render;

const HOLDS: &str = "/v1/ledger/holds";

/// `ledger redact`.
pub(super) fn redact(context: &Context, args: &RedactArgs) -> Result<u8, CliError> {
    let body = json!({"seq": args.seq, "reason": args.reason});
    // The whole ledger may have to be read for it.
    let answer = context
        .client()?
        .post("/v1/ledger/redact", &body, Patience::Endless)?;
    context.output.show(&answer, render::evidence::redaction)?;
    Ok(exit_code(&answer))
}

/// `ledger shred`.
pub(super) fn shred(context: &Context, args: &ShredArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let session = match is_whole(&args.session) {
        true => args.session.clone(),
        false => sessions::resolve(&client, &args.session)?,
    };
    let body = json!({"session": session, "reason": args.reason});
    let answer = client.post("/v1/ledger/shred", &body, Patience::Endless)?;
    context.output.show(&answer, render::evidence::shredded)?;
    Ok(0)
}

/// `ledger truncate`.
pub(super) fn truncate(context: &Context, args: &TruncateArgs) -> Result<u8, CliError> {
    let body = json!({"before": size_of(&args.before)?, "reason": args.reason});
    let answer = context
        .client()?
        .post("/v1/ledger/retention", &body, Patience::Endless)?;
    context.output.show(&answer, render::evidence::retained)?;
    Ok(exit_code(&answer))
}

/// Erased in the ledger, and not in its archive: that is not what was asked for.
fn exit_code(answer: &Value) -> u8 {
    let Some(archive) = answer.get("archive").filter(|archive| archive.is_object()) else {
        return 0;
    };
    let text = |name| archive.get(name).and_then(Value::as_str);
    note(&format!(
        "NOT ERASED IN THE ARCHIVE {}, which has failed ({}) and still holds it: repair or remove that \
         archive and restart the daemon, which writes it anew.",
        text("dir").unwrap_or_default(),
        text("error").unwrap_or_default(),
    ));
    EXIT_FAILED
}

/// The size of a checkpoint that is given by its size or by a file that holds it.
fn size_of(text: &str) -> Result<u64, CliError> {
    if let Ok(size) = text.parse() {
        return Ok(size);
    }
    let path = Path::new(text);
    let note = std::fs::read_to_string(path).map_err(|error| file_error(path, error))?;
    let checkpoint: Result<SignedCheckpoint, _> = note.parse();
    let checkpoint = checkpoint.map_err(|error| CliError::Usage(format!("{text}: {error}")))?;
    Ok(checkpoint.size().get())
}

/// `ledger hold`.
pub(super) fn hold(context: &Context, args: &HoldArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    // A hold is for what is over as well: the whole id of a deleted session is taken as it is.
    let session = match &args.session {
        Some(text) if is_whole(text) => Some(text.clone()),
        Some(text) => Some(sessions::resolve(&client, text)?),
        None => None,
    };
    let mut body = json!({"reason": args.reason});
    if let (Some(session), Some(fields)) = (session, body.as_object_mut()) {
        fields.insert("session".to_owned(), json!(session));
    }
    let answer = client.post(HOLDS, &body, Patience::Normal)?;
    context.output.show(&answer, render::evidence::hold)?;
    Ok(0)
}

/// `ledger holds`.
pub(super) fn list(context: &Context) -> Result<u8, CliError> {
    let answer = context.client()?.get(HOLDS)?;
    context.output.show(&answer, render::evidence::holds)?;
    Ok(0)
}

/// `ledger release`.
pub(super) fn release(context: &Context, hold: u64) -> Result<u8, CliError> {
    context.client()?.delete(&format!("{HOLDS}/{hold}"))?;
    note(&format!("Hold {hold} is released."));
    Ok(0)
}

/// Whether the text has the length of a whole session id.
fn is_whole(text: &str) -> bool {
    text.len() == 36
}
