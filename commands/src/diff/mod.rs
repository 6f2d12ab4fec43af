//! What differs between two states, line by line where that is text; and what a session made so far.

mod text;

use std::sync::Arc;

use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::EntryKind;
use fluxvm_vmm::ManifestEntry;

pub use text::Omitted;
pub use text::Rendered;

use crate::caller::Caller;
use crate::changes;
use crate::changes::ChangeKind;
use crate::changes::Changed;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::DIFF_BYTES_MAX;
use crate::limits::DIFF_FILE_BYTES_MAX;
use crate::limits::DIFF_PATHS_MAX;
use crate::states;
use crate::states::Named;
use crate::states::State;

/// Which states are held against each other.
#[derive(Clone, Debug)]
pub struct DiffQuery {
    /// `now`, `baseline`, a tag, a session, or `<session>:<any of these>`.
    pub from: String,
    /// The same.
    pub to: String,
    /// Only this path of the workspace, and what lies below it.
    pub path: Option<String>,
}

impl DiffQuery {
    /// The other sessions whose states it names.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let states = [&self.from, &self.to];
        states
            .into_iter()
            .filter_map(|state| Named::parse(state).session)
    }
}

/// A state, as an answer names it.
#[derive(Clone, Debug)]
pub struct StateName {
    /// Whose it is.
    pub session: SessionId,
    /// `now`, `baseline` or a tag.
    pub state: String,
    /// The digest of its disk, where it was captured.
    pub disk: Option<String>,
}

/// What differs.
#[derive(Clone, Debug)]
pub struct DiffAnswer {
    /// The one side.
    pub from: StateName,
    /// The other.
    pub to: StateName,
    /// By path, up to a limit.
    pub changes: Vec<PathDiff>,
    /// Paths that differ; more than are listed when `truncated`.
    pub changed: u64,
    /// Paths that do not.
    pub unchanged: u64,
    /// Not all of them are listed.
    pub truncated: bool,
}

/// One path that differs.
#[derive(Clone, Debug)]
pub struct PathDiff {
    /// In the workspace.
    pub path: String,
    /// What became of it.
    pub kind: ChangeKind,
    /// What it was.
    pub before: Option<ManifestEntry>,
    /// What it is.
    pub after: Option<ManifestEntry>,
    /// Its lines.
    pub text: Rendered,
}

/// What a session made since it began.
#[derive(Clone, Debug)]
pub struct ArtifactsAnswer {
    /// The session.
    pub session: Session,
    /// The digest of the disk that it began with, where it was captured.
    pub baseline: Option<String>,
    /// New paths.
    pub added: Vec<String>,
    /// Paths that are others.
    pub modified: Vec<String>,
    /// Paths that are gone.
    pub deleted: Vec<String>,
    /// How many are as they were.
    pub unchanged: u64,
    /// Not all of them are listed.
    pub truncated: bool,
}

impl Engine {
    /// What differs between two states.
    ///
    /// # Errors
    ///
    /// `NotFound`, `TagNotFound`, `Invalid` for a path that is not in the workspace, `TooLarge`, `Snapshot`
    /// where a state cannot be read, or cannot be captured.
    pub async fn diff(
        &self,
        caller: &Caller,
        id: SessionId,
        query: DiffQuery,
    ) -> Result<DiffAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            diff(&inner, &caller, id, query).await
        })
        .await
    }

    /// What a session made since it began.
    ///
    /// # Errors
    ///
    /// As [`Self::diff`].
    pub async fn artifacts(
        &self,
        caller: &Caller,
        id: SessionId,
    ) -> Result<ArtifactsAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            artifacts(&inner, &caller, id).await
        })
        .await
    }
}

async fn diff(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    query: DiffQuery,
) -> Result<DiffAnswer, CommandError> {
    inner.expire_if_due(caller, id).await?;
    let session = inner.book.session(caller, id)?;
    let path = query.path.as_deref();
    let path = path.map(|path| states::relative(&session, "path", path));
    let path = path.transpose()?.unwrap_or_default();
    let from = states::find(inner, caller, id, &Named::parse(&query.from)).await?;
    let to = states::find(inner, caller, id, &Named::parse(&query.to)).await?;
    let (mut before, mut after) = (from.tree(inner).await?, to.tree(inner).await?);
    before.retain(|it, _| changes::is_within(it, &path));
    after.retain(|it, _| changes::is_within(it, &path));
    let comparison = changes::compare(&before, &after);
    let changed = comparison.changed.len();
    let mut rendering = Rendering {
        inner,
        from: &from,
        to: &to,
        left_bytes: DIFF_BYTES_MAX,
    };
    let mut listed = Vec::with_capacity(changed.min(DIFF_PATHS_MAX));
    for changed in comparison.changed.into_iter().take(DIFF_PATHS_MAX) {
        listed.push(rendering.path(changed).await?);
    }
    Ok(DiffAnswer {
        from: name(&from),
        to: name(&to),
        changes: listed,
        changed: changed as u64,
        unchanged: comparison.unchanged,
        truncated: changed > DIFF_PATHS_MAX,
    })
}

fn name(state: &State) -> StateName {
    StateName {
        session: state.session,
        state: state.name.clone(),
        disk: state.digest.clone(),
    }
}

struct Rendering<'a> {
    inner: &'a Arc<Inner>,
    from: &'a State,
    to: &'a State,
    /// What all texts together may still take.
    left_bytes: usize,
}

impl Rendering<'_> {
    async fn path(&mut self, changed: Changed) -> Result<PathDiff, CommandError> {
        let kind = changed.kind();
        let text = self.text(&changed).await?;
        let taken = text.text().map_or(0, str::len);
        let text = match self.left_bytes.checked_sub(taken) {
            Some(left) => {
                self.left_bytes = left;
                text
            }
            None => Rendered::Omitted(Omitted::AnswerTooLarge),
        };
        Ok(PathDiff {
            path: changed.path,
            kind,
            before: changed.before,
            after: changed.after,
            text,
        })
    }

    async fn text(&self, changed: &Changed) -> Result<Rendered, CommandError> {
        let (before, after) = (changed.before.as_ref(), changed.after.as_ref());
        if !before.into_iter().chain(after).any(is_file) {
            return Ok(Rendered::NoFile);
        }
        if let (Some(before), Some(after)) = (before, after)
            && before.kind == after.kind
        {
            return Ok(Rendered::SameContent);
        }
        let old = content(self.inner, self.from, before).await?;
        let new = content(self.inner, self.to, after).await?;
        let (Some(old), Some(new)) = (old, new) else {
            return Ok(Rendered::Omitted(Omitted::FileTooLarge));
        };
        let path = changed.path.clone();
        let (is_new, is_gone) = (before.is_none(), after.is_none());
        tokio::task::spawn_blocking(move || {
            let names = text::Names {
                old: if is_new {
                    "/dev/null".into()
                } else {
                    format!("a/{path}")
                },
                new: if is_gone {
                    "/dev/null".into()
                } else {
                    format!("b/{path}")
                },
            };
            text::unified(&names, &old, &new)
        })
        .await
        .map_err(|error| CommandError::Internal(error.to_string()))
    }
}

fn is_file(entry: &ManifestEntry) -> bool {
    matches!(entry.kind, EntryKind::File { .. })
}

/// What no file is has no lines. `None` is a file that is too long.
async fn content(
    inner: &Inner,
    state: &State,
    entry: Option<&ManifestEntry>,
) -> Result<Option<Vec<u8>>, CommandError> {
    let Some(entry) = entry else {
        return Ok(Some(Vec::new()));
    };
    match entry.kind {
        EntryKind::File { bytes, .. } if bytes > DIFF_FILE_BYTES_MAX => Ok(None),
        EntryKind::File { .. } => {
            let name = fluxvm_vmm::unescape(&entry.path);
            match name.is_some_and(|name| String::from_utf8(name).is_ok()) {
                true => state.content(inner, &entry.path, DIFF_FILE_BYTES_MAX).await,
                false => Ok(None),
            }
        }
        _ => Ok(Some(Vec::new())),
    }
}

async fn artifacts(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
) -> Result<ArtifactsAnswer, CommandError> {
    inner.expire_if_due(caller, id).await?;
    let session = inner.book.session(caller, id)?;
    let baseline = State::baseline(&session)?;
    let now = states::find(inner, caller, id, &Named::parse("now")).await?;
    let before = baseline.tree(inner).await?;
    let comparison = changes::compare(&before, &now.tree(inner).await?);
    let truncated = comparison.changed.len() > DIFF_PATHS_MAX;
    let mut answer = ArtifactsAnswer {
        session,
        baseline: baseline.digest.clone(),
        added: Vec::new(),
        modified: Vec::new(),
        deleted: Vec::new(),
        unchanged: comparison.unchanged,
        truncated,
    };
    for changed in comparison.changed.into_iter().take(DIFF_PATHS_MAX) {
        let list = match changed.kind() {
            ChangeKind::Added => &mut answer.added,
            ChangeKind::Modified => &mut answer.modified,
            ChangeKind::Deleted => &mut answer.deleted,
        };
        list.push(changed.path);
    }
    Ok(answer)
}
