//! Making a commit.
//!
//! Its time is the ledger's and part of the intent, so that a replay in an equal repository makes the same
//! commit, down to its id.

use std::sync::Arc;

use fluxvm_projections::Event;
use fluxvm_projections::GitCommitStarted;
use fluxvm_projections::GitCommitted;
use fluxvm_projections::GitFailed;
use fluxvm_projections::SessionId;

use super::CommitAnswer;
use super::GitCommit;
use super::GitFault;
use super::names;
use super::run::Repository;
use super::run::line;
use super::run::succeeded;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::files;
use crate::guest;
use crate::limits::GIT_LIST_BYTES_MAX;
use crate::work;
use crate::work::Begun;

/// Who a commit is by where the repository does not say.
const DEFAULT_NAME: &str = "FluxVM Agent";
const DEFAULT_EMAIL: &str = "agent@fluxvm.local";

/// What is asked of git about a commit, each field ended by a zero byte.
const COMMIT_FORMAT: &str = "--format=%H%x00%T%x00%P%x00%an <%ae>%x00%B%x00";

/// Makes a commit.
pub(crate) async fn commit(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: GitCommit,
) -> Result<CommitAnswer, CommandError> {
    names::message(&request.message)?;
    let seat = guest::seat(inner, caller, id).await?;
    let repository =
        Repository::open(&seat.session, &seat.sandbox, request.repo.as_deref()).await?;
    if !has_changes(&repository, request.staged_only).await? {
        return Err(nothing(request.staged_only));
    }
    let asked = GitCommitStarted {
        repo: repository.path.clone(),
        message: request.message,
        staged_only: request.staged_only,
        date: request.date.unwrap_or(inner.clock.now().timestamp()),
        head: repository.head().await?,
    };
    let begun = work::begin(inner, caller, id, |session| {
        files::check_writable(session, &asked.repo)?;
        Ok(Entry::new(Event::GitCommitStarted(asked.clone())))
    })
    .await?;
    crash::point("git.commit.intent");
    let made = effect(&repository, &asked, begun.op).await;
    crash::point("git.commit.done");
    match made {
        Ok(outcome) => {
            let event = Event::GitCommitted(outcome.clone());
            let seq = begun.end(inner, caller, event).await?;
            Ok(CommitAnswer { seq, outcome })
        }
        Err(error) => Err(fail(inner, caller, &begun, "commit", &asked.repo, error).await),
    }
}

async fn has_changes(repository: &Repository, staged_only: bool) -> Result<bool, CommandError> {
    if staged_only {
        let staged = repository.git(&["diff", "--cached", "--quiet"]).await?;
        return Ok(staged.exit_code != 0);
    }
    let words = ["status", "--porcelain", "-z"];
    Ok(!repository.must(&words).await?.stdout.is_empty())
}

fn nothing(staged_only: bool) -> CommandError {
    let detail = match staged_only {
        true => "nothing is staged",
        false => "nothing changed since the last commit",
    };
    CommandError::Git {
        fault: GitFault::NothingToCommit,
        detail: detail.to_owned(),
    }
}

async fn effect(
    repository: &Repository,
    asked: &GitCommitStarted,
    op: u64,
) -> Result<GitCommitted, CommandError> {
    if !asked.staged_only {
        repository.must(&["add", "--all"]).await?;
        crash::point("git.commit.staged");
    }
    let who = identity(repository).await?;
    let message = format!("--message={}", asked.message);
    let words = ["commit", "--quiet", "--cleanup=whitespace", &message];
    let date = format!("@{} +0000", asked.date);
    let env = [
        ("GIT_AUTHOR_NAME", who.name.clone()),
        ("GIT_AUTHOR_EMAIL", who.email.clone()),
        ("GIT_AUTHOR_DATE", date.clone()),
        ("GIT_COMMITTER_NAME", who.name),
        ("GIT_COMMITTER_EMAIL", who.email),
        ("GIT_COMMITTER_DATE", date),
    ];
    let made = repository
        .git_with(&words, &env, GIT_LIST_BYTES_MAX)
        .await?;
    if made.exit_code != 0 && !has_changes(repository, true).await? {
        return Err(nothing(asked.staged_only));
    }
    succeeded(made)?;
    let found = look(repository).await?;
    Ok(found.committed(op, asked, false))
}

struct Identity {
    name: String,
    email: String,
}

/// Who the repository's configuration says, each half on its own, or the agent.
async fn identity(repository: &Repository) -> Result<Identity, CommandError> {
    let name = repository.git(&["config", "--get", "user.name"]).await?;
    let email = repository.git(&["config", "--get", "user.email"]).await?;
    let or = |text: String, default: &str| match text.is_empty() {
        true => default.to_owned(),
        false => text,
    };
    Ok(Identity {
        name: or(line(&name), DEFAULT_NAME),
        email: or(line(&email), DEFAULT_EMAIL),
    })
}

/// The commit that is checked out.
pub(super) struct Found {
    pub(super) commit: String,
    pub(super) tree: String,
    pub(super) parent: Option<String>,
    pub(super) author: String,
    pub(super) message: String,
    pub(super) branch: Option<String>,
}

impl Found {
    pub(super) fn committed(
        self,
        op: u64,
        asked: &GitCommitStarted,
        recovered: bool,
    ) -> GitCommitted {
        GitCommitted {
            op,
            repo: asked.repo.clone(),
            message: asked.message.clone(),
            staged_only: asked.staged_only,
            date: asked.date,
            commit: self.commit,
            tree: self.tree,
            parent: self.parent,
            branch: self.branch,
            author: self.author,
            recovered,
        }
    }
}

/// Looks at the commit that is checked out.
pub(super) async fn look(repository: &Repository) -> Result<Found, CommandError> {
    let printed = repository
        .must(&["log", "--max-count=1", COMMIT_FORMAT])
        .await?;
    let text = String::from_utf8_lossy(&printed.stdout);
    let mut fields = text.split('\0').map(str::to_owned);
    let mut field = || fields.next().unwrap_or_default();
    let (commit, tree, parents, author, message) = (field(), field(), field(), field(), field());
    Ok(Found {
        commit,
        tree,
        parent: parents.split_whitespace().next().map(str::to_owned),
        author,
        message,
        branch: repository.branch().await?,
    })
}

/// Records that nothing came of it, and answers with why.
pub(super) async fn fail(
    inner: &Inner,
    caller: &Caller,
    begun: &Begun,
    action: &str,
    repo: &str,
    error: CommandError,
) -> CommandError {
    let failed = Event::GitFailed(GitFailed {
        op: begun.op,
        action: action.to_owned(),
        repo: repo.to_owned(),
        code: error.code().to_owned(),
        reason: error.to_string(),
    });
    match begun.end(inner, caller, failed).await {
        Ok(_) => error,
        Err(unrecorded) => unrecorded,
    }
}
