//! What is erased from the ledger, and what may not be.

use serde_json::json;

use super::Context;
use super::sessions;
use crate::args::ledger::HoldArgs;
use crate::args::ledger::RedactArgs;
use crate::client::Patience;
use crate::error::CliError;
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
    Ok(0)
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
