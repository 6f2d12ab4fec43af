//! Git in a session's repository, and the look at what a sandbox has.

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use axum::routing::post;
use fluxvm_api_types::BranchedView;
use fluxvm_api_types::CommittedView;
use fluxvm_api_types::GitBranchRequest;
use fluxvm_api_types::GitChangeView;
use fluxvm_api_types::GitCommitRequest;
use fluxvm_api_types::GitCommitView;
use fluxvm_api_types::GitDiffView;
use fluxvm_api_types::GitLogView;
use fluxvm_api_types::GitStatusView;
use fluxvm_api_types::ProbeView;
use fluxvm_commands::GitBranch;
use fluxvm_commands::GitChange;
use fluxvm_commands::GitCommit;
use fluxvm_commands::GitLogEntry;

use super::StrictBody;
use super::files::json;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::query::Parameters;
use crate::status::ApiError;

/// The routes of git, and the probe.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/agents/sessions/{id}/git/status", get(status))
        .route("/v1/agents/sessions/{id}/git/diff", get(diff))
        .route("/v1/agents/sessions/{id}/git/log", get(log))
        .route("/v1/agents/sessions/{id}/git/commit", post(commit))
        .route("/v1/agents/sessions/{id}/git/branch", post(branch))
        .route("/v1/agents/sessions/{id}/probe", get(probe))
}

async fn status(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["repo"])?;
    let status = engine
        .git_status(&caller, id, parameters.text("repo"))
        .await?;
    json(&GitStatusView {
        clean: status.changes.is_empty(),
        repo: status.repo,
        branch: status.branch,
        commit: status.commit,
        upstream: status.upstream,
        ahead: status.ahead,
        behind: status.behind,
        changes: status.changes.into_iter().map(change).collect(),
        truncated: status.truncated,
    })
}

async fn diff(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["repo", "staged", "path"])?;
    let staged = parameters.flag("staged")?;
    let (repo, path) = (parameters.text("repo"), parameters.text("path"));
    let diff = engine.git_diff(&caller, id, repo, staged, path).await?;
    json(&GitDiffView {
        repo: diff.repo,
        diff: diff.diff,
        truncated: diff.truncated,
    })
}

async fn log(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["repo", "n"])?;
    let count = parameters.number("n")?;
    let repo = parameters.text("repo");
    let commits = engine.git_log(&caller, id, repo, count).await?;
    json(&GitLogView {
        commits: commits.into_iter().map(entry).collect(),
    })
}

async fn commit(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<GitCommitRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let request = GitCommit {
        repo: body.value.repo,
        message: body.value.message,
        staged_only: body.value.staged_only.unwrap_or(false),
        date: None,
    };
    let work = async move { Ok(engine.git_commit(&caller, id, request).await?) };
    let answer = app.detached(work).await?;
    json(&CommittedView {
        seq: answer.seq,
        repo: answer.outcome.repo,
        commit: answer.outcome.commit,
        tree: answer.outcome.tree,
        parent: answer.outcome.parent,
        branch: answer.outcome.branch,
        author: answer.outcome.author,
    })
}

async fn branch(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<GitBranchRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let request = GitBranch {
        repo: body.value.repo,
        name: body.value.name,
    };
    let work = async move { Ok(engine.git_branch(&caller, id, request).await?) };
    let (seq, outcome) = app.detached(work).await?;
    json(&BranchedView {
        seq,
        repo: outcome.repo,
        branch: outcome.name,
        commit: outcome.commit,
    })
}

async fn probe(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let probed = engine.probe(&caller, id).await?;
    json(&ProbeView {
        tools: probed.tools,
        ready_for: probed.ready_for,
    })
}

fn change(change: GitChange) -> GitChangeView {
    GitChangeView {
        path: change.path,
        index: change.index,
        worktree: change.worktree,
        from: change.from,
    }
}

fn entry(entry: GitLogEntry) -> GitCommitView {
    GitCommitView {
        commit: entry.commit,
        tree: entry.tree,
        parents: entry.parents,
        author: entry.author,
        date: entry.date,
        subject: entry.subject,
    }
}
