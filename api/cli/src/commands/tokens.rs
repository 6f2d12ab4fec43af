//! Session tokens: made, listed, ended.

use serde_json::Value;
use serde_json::json;

use super::Context;
use super::sessions::SESSIONS;
use super::sessions::resolve;
use crate::args::tokens::TokenArgs;
use crate::args::tokens::UntokenArgs;
use crate::client::Patience;
use crate::error::CliError;
use crate::output::note;
use crate::render;

/// `agent token`.
pub(super) fn mint(context: &Context, args: &TokenArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    let mut body = json!({"ops": args.ops});
    if let Some(fields) = body.as_object_mut() {
        if let Some(seconds) = args.ttl_seconds {
            fields.insert("ttl_seconds".to_owned(), json!(seconds));
        }
        if let Some(label) = &args.label {
            fields.insert("label".to_owned(), json!(label));
        }
    }
    let answer = client.post(&format!("{SESSIONS}/{id}/tokens"), &body, Patience::Normal)?;
    context.output.show(&answer, |answer: &Value, _| {
        let token = render::string(answer, "token");
        let end = render::string(answer, "expires_at");
        format!("{token}\nShown this once; it ends at {end}. Hand it over as FLUXVM_TOKEN.")
    })?;
    Ok(0)
}

/// `agent tokens`.
pub(super) fn list(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.get(&format!("{SESSIONS}/{id}/tokens"))?;
    context.output.show(&answer, render::tokens::list)?;
    Ok(0)
}

/// `agent untoken`.
pub(super) fn revoke(context: &Context, args: &UntokenArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    client.delete(&format!("{SESSIONS}/{id}/tokens/{}", args.token))?;
    note(&format!("Token {} is revoked.", args.token));
    Ok(0)
}
