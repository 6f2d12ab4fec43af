//! What can be asked of the ledger as evidence: events, checkpoints, proofs, keys, and how it is.

use std::io::Write;
use std::path::Path;

use serde_json::json;

use super::Context;
use super::export;
use super::file_error;
use crate::args::ledger::LedgerEventsArgs;
use crate::args::ledger::ProveArgs;
use crate::args::ledger::ProveConsistencyArgs;
use crate::client::Patience;
use crate::client::with_query;
use crate::error::CliError;
use crate::output::note;
use crate::render;

/// `ledger events`: an event a line, whether for people or for programs.
pub(super) fn events(context: &Context, args: &LedgerEventsArgs) -> Result<u8, CliError> {
    let path = with_query(
        "/v1/ledger/events",
        &[
            ("from", args.from.map(|from| from.to_string())),
            ("stream", args.stream.clone()),
        ],
    );
    export::run(
        context,
        &context.client()?,
        &path,
        None,
        export::Form::Plain,
    )
}

/// `ledger checkpoint`.
pub(super) fn checkpoint(context: &Context, out: Option<&Path>) -> Result<u8, CliError> {
    let note = context.client()?.get_text("/v1/ledger/checkpoint")?;
    write(context, &note, out)
}

/// `ledger prove`.
pub(super) fn prove(context: &Context, args: &ProveArgs) -> Result<u8, CliError> {
    let path = format!("/v1/ledger/proof/{}", args.seq);
    let proof = context.client()?.get_text(&path)?;
    write(context, &proof, args.out.out.as_deref())
}

/// `ledger prove-consistency`.
pub(super) fn prove_consistency(
    context: &Context,
    args: &ProveConsistencyArgs,
) -> Result<u8, CliError> {
    let path = with_query(
        "/v1/ledger/consistency",
        &[
            ("from", Some(args.from.to_string())),
            ("to", args.to.map(|to| to.to_string())),
        ],
    );
    let proof = context.client()?.get_text(&path)?;
    write(context, &proof, args.out.out.as_deref())
}

/// `ledger key`.
pub(super) fn key(context: &Context) -> Result<u8, CliError> {
    let answer = context.client()?.get("/v1/ledger/key")?;
    context.output.show(&answer, render::evidence::keys)?;
    Ok(0)
}

/// `ledger rotate-key`.
pub(super) fn rotate_key(context: &Context) -> Result<u8, CliError> {
    let client = context.client()?;
    let answer = client.post("/v1/ledger/rotate-key", &json!({}), Patience::Normal)?;
    note("The key was handed on. Give the new one to whoever verifies this ledger.");
    context.output.show(&answer, render::evidence::keys)?;
    Ok(0)
}

/// Signed text is written as it is: a byte more or less and it verifies no longer.
fn write(context: &Context, text: &str, out: Option<&Path>) -> Result<u8, CliError> {
    match out.filter(|out| *out != Path::new("-")) {
        None => context.output.bytes(text.as_bytes())?,
        Some(out) => {
            let failed = |error| file_error(out, error);
            let mut file = std::fs::File::create(out).map_err(failed)?;
            file.write_all(text.as_bytes()).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            note(&format!("Wrote {}.", out.display()));
        }
    }
    Ok(0)
}
