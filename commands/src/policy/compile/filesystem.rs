//! The part about files.

use fluxvm_projections::FilesystemRecord;

use super::Enforceable;
use super::invalid;
use super::unenforceable;
use crate::error::CommandError;
use crate::limits::GUEST_PATH_BYTES_MAX;
use crate::limits::POLICY_LIST_MAX;
use crate::request::Enforcement;
use crate::request::FilesystemRequest;

pub(super) fn compile(
    request: FilesystemRequest,
    can: Enforceable,
) -> Result<FilesystemRecord, CommandError> {
    let read = paths("policy.filesystem.read", &request.read)?;
    let write = paths("policy.filesystem.write", &request.write)?;
    let best_effort = request.enforcement == Enforcement::BestEffort;
    if !can.confinement && !best_effort {
        let message = "this host's kernel or engine does not confine what a sandbox runs";
        return Err(unenforceable("policy.filesystem", message));
    }
    Ok(FilesystemRecord {
        read,
        write,
        best_effort,
    })
}

fn paths(field: &'static str, paths: &[String]) -> Result<Vec<String>, CommandError> {
    if paths.len() > POLICY_LIST_MAX {
        return Err(invalid(
            field,
            format!("must hold at most {POLICY_LIST_MAX} paths"),
        ));
    }
    paths.iter().map(|path| one(field, path)).collect()
}

/// A folder may be written with `/**` behind it.
fn one(field: &'static str, text: &str) -> Result<String, CommandError> {
    let path = text.strip_suffix("/**").unwrap_or(text);
    let path = if path.is_empty() && text == "/**" {
        "/"
    } else {
        path
    };
    let odd = |part: &str| part == "." || part == ".." || part.is_empty();
    let holds = path.starts_with('/')
        && path.len() <= GUEST_PATH_BYTES_MAX
        && !path.contains('*')
        && !path.chars().any(char::is_control)
        && (path == "/" || !path.split('/').skip(1).any(odd));
    if holds {
        return Ok(path.to_owned());
    }
    let message = "paths must be absolute, without `.`, `..` or `*`; a folder may end in `/**`";
    Err(invalid(field, message))
}
