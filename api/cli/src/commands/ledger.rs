//! `ledger info`, through the daemon, and `ledger verify`, which needs none.

use std::path::Path;

use super::Context;
use crate::error::CliError;
use crate::render;

/// `ledger info`.
pub(super) fn info(context: &Context) -> Result<u8, CliError> {
    let answer = context.client()?.get("/v1/ledger/info")?;
    context.output.show(&answer, render::ledger::info)?;
    Ok(0)
}

/// `ledger verify`.
pub(super) fn verify(_context: &Context, file: &Path) -> Result<u8, CliError> {
    Err(CliError::Usage(file.display().to_string()))
}
