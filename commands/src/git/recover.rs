//! What a starting daemon does about commits and branches that the last one left without an outcome.
//!
//! A git that still runs is waited for; then the repository itself says whether it was done.

use std::sync::Arc;
use std::time::Duration;

use fluxvm_projections::Event;
use fluxvm_projections::GitBranchStarted;
use fluxvm_projections::GitBranched;
use fluxvm_projections::GitCommitStarted;
use fluxvm_projections::GitFailed;
use fluxvm_projections::Session;
use fluxvm_vmm::Sandbox;

use super::GitFault;
use super::commit::look;
use super::run::Repository;
use crate::capture::ID_PREFIX;
use crate::error::CommandError;
use crate::guest;

/// How long between two looks at whether a git that was left still runs.
const STILL_RUNS_DELAY: Duration = Duration::from_millis(20);

/// The outcome of a commit or a branch, found in the guest; `None` for any other event.
pub(crate) async fn recover(
    session: &Session,
    sandbox: &Arc<dyn Sandbox>,
    op: u64,
    intent: &Event,
) -> Option<Event> {
    let whose = (session, sandbox);
    let (action, repo, found) = match intent {
        Event::GitCommitStarted(asked) => {
            ("commit", &asked.repo, committed(whose, op, asked).await)
        }
        Event::GitBranchStarted(asked) => ("branch", &asked.repo, branched(whose, op, asked).await),
        _ => return None,
    };
    let reason = match found {
        Ok(Some(outcome)) => return Some(outcome),
        Ok(None) => "the daemon ended before it was made; what was staged is".to_owned(),
        Err(error) => format!("the daemon ended in the middle, and git cannot be asked: {error}"),
    };
    Some(Event::GitFailed(GitFailed {
        op,
        action: action.to_owned(),
        repo: repo.clone(),
        code: GitFault::Interrupted.code().to_owned(),
        reason,
    }))
}

async fn committed(
    (session, sandbox): (&Session, &Arc<dyn Sandbox>),
    op: u64,
    asked: &GitCommitStarted,
) -> Result<Option<Event>, CommandError> {
    wait_for_git(sandbox).await?;
    let repository = Repository::known(session, sandbox, &asked.repo)?;
    if repository.head().await? == asked.head {
        return Ok(None);
    }
    let found = look(&repository).await?;
    let is_it = found.parent == asked.head && found.message.trim() == asked.message.trim();
    Ok(is_it.then(|| Event::GitCommitted(found.committed(op, asked, true))))
}

async fn branched(
    (session, sandbox): (&Session, &Arc<dyn Sandbox>),
    op: u64,
    asked: &GitBranchStarted,
) -> Result<Option<Event>, CommandError> {
    wait_for_git(sandbox).await?;
    let repository = Repository::known(session, sandbox, &asked.repo)?;
    if repository.branch().await?.as_deref() != Some(asked.name.as_str()) {
        return Ok(None);
    }
    Ok(Some(Event::GitBranched(GitBranched {
        op,
        repo: asked.repo.clone(),
        name: asked.name.clone(),
        commit: repository.head().await?,
        recovered: true,
    })))
}

/// Waits until nothing runs that the last daemon started for itself. Whoever calls sets an end.
async fn wait_for_git(sandbox: &Arc<dyn Sandbox>) -> Result<(), CommandError> {
    loop {
        let procs = guest::ask(sandbox.as_ref(), sandbox.guest().procs()).await?;
        let runs = procs
            .procs
            .iter()
            .any(|group| group.exec_id.as_str().starts_with(ID_PREFIX) && !group.child_exited);
        if !runs {
            return Ok(());
        }
        tokio::time::sleep(STILL_RUNS_DELAY).await;
    }
}
