//! Looking at a repository.

use std::sync::Arc;

use fluxvm_projections::SessionId;

use super::GitDiff;
use super::GitLogEntry;
use super::GitStatus;
use super::names;
use super::run::Repository;
use super::run::succeeded;
use super::status::LOG_FORMAT;
use super::status::parse;
use super::status::parse_log;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::guest;
use crate::limits::GIT_DIFF_BYTES_MAX;
use crate::limits::GIT_LOG_DEFAULT;
use crate::limits::GIT_LOG_MAX;

async fn open(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    repo: Option<&str>,
) -> Result<Repository, CommandError> {
    let seat = guest::seat(inner, caller, id).await?;
    Repository::open(&seat.session, &seat.sandbox, repo).await
}

pub(super) async fn status(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    repo: Option<&str>,
) -> Result<GitStatus, CommandError> {
    let repository = open(inner, caller, id, repo).await?;
    let words = ["status", "--porcelain=v2", "--branch", "-z"];
    let printed = repository.must(&words).await?;
    Ok(parse(&repository.path, &printed.stdout, printed.truncated))
}

pub(super) async fn diff(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    (repo, staged, path): (Option<&str>, bool, Option<&str>),
) -> Result<GitDiff, CommandError> {
    let path = path.map(names::path).transpose()?;
    let repository = open(inner, caller, id, repo).await?;
    // Outside of a repository a diff would compare any two files; inside it says so.
    repository.must(&["rev-parse", "--git-dir"]).await?;
    let mut words = vec!["diff", "--no-ext-diff", "--no-textconv", "--no-color"];
    words.extend(staged.then_some("--cached"));
    words.push("--");
    words.extend(path);
    let printed = repository.git_with(&words, &[], GIT_DIFF_BYTES_MAX).await?;
    let printed = succeeded(printed)?;
    let mut diff = String::from_utf8_lossy(&printed.stdout).into_owned();
    if printed.truncated {
        // What was cut ends with its last whole line.
        diff.truncate(diff.rfind('\n').map_or(0, |at| at + 1));
    }
    Ok(GitDiff {
        repo: repository.path,
        diff,
        truncated: printed.truncated,
    })
}

pub(super) async fn log(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    (repo, count): (Option<&str>, Option<u64>),
) -> Result<Vec<GitLogEntry>, CommandError> {
    let count = count.unwrap_or(GIT_LOG_DEFAULT);
    if count == 0 || count > GIT_LOG_MAX {
        return Err(CommandError::Invalid {
            field: "n",
            message: format!("must be from 1 to {GIT_LOG_MAX}"),
        });
    }
    let repository = open(inner, caller, id, repo).await?;
    if repository.head().await?.is_none() {
        return Ok(Vec::new());
    }
    let count = format!("--max-count={count}");
    let printed = repository.must(&["log", &count, LOG_FORMAT]).await?;
    Ok(parse_log(&printed.stdout))
}
