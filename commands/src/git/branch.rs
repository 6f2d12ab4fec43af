//! Making a branch and checking it out.

use std::sync::Arc;

use fluxvm_projections::Event;
use fluxvm_projections::GitBranchStarted;
use fluxvm_projections::GitBranched;
use fluxvm_projections::SessionId;

use super::GitBranch;
use super::GitFault;
use super::commit::fail;
use super::names;
use super::run::Repository;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::files;
use crate::guest;
use crate::work;

/// Makes a branch. Answers the outcome with its ledger number.
pub(crate) async fn branch(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: GitBranch,
) -> Result<(u64, GitBranched), CommandError> {
    names::branch(&request.name)?;
    let seat = guest::seat(inner, caller, id).await?;
    let repository =
        Repository::open(&seat.session, &seat.sandbox, request.repo.as_deref()).await?;
    check_free(&repository, &request.name).await?;
    let asked = GitBranchStarted {
        repo: repository.path.clone(),
        name: request.name,
    };
    let begun = work::begin(inner, caller, id, |session| {
        files::check_writable(session, &asked.repo)?;
        Ok(Entry::new(Event::GitBranchStarted(asked.clone())))
    })
    .await?;
    crash::point("git.branch.intent");
    let made = effect(&repository, &asked, begun.op).await;
    crash::point("git.branch.done");
    match made {
        Ok(outcome) => {
            let event = Event::GitBranched(outcome.clone());
            Ok((begun.end(inner, caller, event).await?, outcome))
        }
        Err(error) => Err(fail(inner, caller, &begun, "branch", &asked.repo, error).await),
    }
}

/// No branch of this name is there, born or not.
async fn check_free(repository: &Repository, name: &str) -> Result<(), CommandError> {
    let full = format!("refs/heads/{name}");
    let words = ["show-ref", "--verify", "--quiet", full.as_str()];
    let taken = repository.git(&words).await?.exit_code == 0
        || repository.branch().await?.as_deref() == Some(name);
    match taken {
        false => Ok(()),
        true => Err(CommandError::Git {
            fault: GitFault::BranchExists,
            detail: format!("there is a branch {name} already"),
        }),
    }
}

async fn effect(
    repository: &Repository,
    asked: &GitBranchStarted,
    op: u64,
) -> Result<GitBranched, CommandError> {
    repository
        .must(&["checkout", "--quiet", "-b", &asked.name])
        .await?;
    Ok(GitBranched {
        op,
        repo: asked.repo.clone(),
        name: asked.name.clone(),
        commit: repository.head().await?,
        recovered: false,
    })
}
