//! States of a session's workspace that can be read: what it began with, what was captured, and now.
//!
//! *Now* is a snapshot of the disk that nobody records: it is there while somebody looks, and a daemon
//! that ends meanwhile leaves it to the next start, which removes what no session needs.

use std::sync::Arc;

use fluxvm_projections::MemoryMode;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotRecord;
use fluxvm_vmm::Disk;
use fluxvm_vmm::GuestPath;
use fluxvm_vmm::ManifestQuery;
use fluxvm_vmm::SnapshotError;
use tokio::io::AsyncReadExt;
use uuid::Uuid;

use crate::caller::Caller;
use crate::changes;
use crate::changes::Tree;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::TREE_PATHS_MAX;
use crate::snapshots;
use crate::spec;

/// How a caller names the state of now.
const NOW: &str = "now";
/// How a caller names the state that a session began with.
const BASELINE: &str = "baseline";
/// What a tag is named with that would be read as something else.
const TAG_PREFIX: &str = "tag:";

/// Which state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// As it is.
    Now,
    /// As the session began.
    Baseline,
    /// As it was captured.
    Tag(String),
}

/// A state of some session, as a caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Another session than the one that was asked.
    pub(crate) session: Option<SessionId>,
    pub(crate) which: Which,
}

impl Named {
    /// Reads `now`, `baseline`, a tag, `tag:<tag>`, `<session>`, or `<session>:<any of these>`.
    pub(crate) fn parse(text: &str) -> Self {
        let id = |text: &str| {
            let id = Uuid::try_parse(text).ok()?;
            (id.hyphenated().to_string() == text).then_some(SessionId(id))
        };
        let (session, rest) = match text.split_once(':') {
            Some((first, rest)) => match id(first) {
                Some(session) => (Some(session), rest),
                None => (None, text),
            },
            None => match id(text) {
                Some(session) => (Some(session), NOW),
                None => (None, text),
            },
        };
        let which = match rest {
            NOW => Which::Now,
            BASELINE => Which::Baseline,
            tag => Which::Tag(tag.strip_prefix(TAG_PREFIX).unwrap_or(tag).to_owned()),
        };
        Self { session, which }
    }
}

/// A state that is there to be read.
pub(crate) struct State {
    pub(crate) session: SessionId,
    /// What it is called.
    pub(crate) name: String,
    /// The workspace in it.
    pub(crate) workspace: GuestPath,
    /// The digest of the disk, where it was captured.
    pub(crate) digest: Option<String>,
    pub(crate) disk: Disk,
    /// Kept for as long as somebody looks.
    _now: Option<Throwaway>,
}

/// A snapshot that goes when nobody looks at it any more.
pub(crate) struct Throwaway {
    inner: Arc<Inner>,
    pub(crate) snapshot: SnapshotRecord,
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        snapshots::release(&self.inner, [self.snapshot.id]);
    }
}

/// Captures the disk of a session for a while.
pub(crate) async fn now(
    inner: &Arc<Inner>,
    session: SessionId,
    memory: MemoryMode,
) -> Result<Throwaway, CommandError> {
    let id = SnapshotId(Uuid::new_v4());
    match snapshots::take(inner, session, id, memory).await {
        Ok(snapshot) => Ok(Throwaway {
            inner: Arc::clone(inner),
            snapshot,
        }),
        Err(error) => {
            snapshots::release(inner, [id]);
            Err(error)
        }
    }
}

/// Finds the state that a caller names.
pub(crate) async fn find(
    inner: &Arc<Inner>,
    caller: &Caller,
    asked: SessionId,
    named: &Named,
) -> Result<State, CommandError> {
    let id = named.session.unwrap_or(asked);
    let session = inner.book.session(caller, id)?;
    match &named.which {
        Which::Now => {
            let now = now(inner, id, MemoryMode::Never).await?;
            let snapshot = now.snapshot.clone();
            State::captured(&session, NOW, &snapshot, Some(now))
        }
        Which::Baseline => State::baseline(&session),
        Which::Tag(tag) => {
            let point = session.rewind.get(tag).map(|point| &point.snapshot);
            let checkpoint = || session.checkpoints.get(tag).map(|it| &it.snapshot);
            let found = point.or_else(checkpoint);
            let found = found.ok_or_else(|| CommandError::TagNotFound {
                what: "checkpoint or rewind point",
                tag: tag.clone(),
                hint: "; `now`, `baseline` and `<session>:<tag>` name others",
            })?;
            State::captured(&session, tag, found, None)
        }
    }
}

impl State {
    /// What the session began with: what it was forked from, or its image.
    pub(crate) fn baseline(session: &Session) -> Result<Self, CommandError> {
        if let Some(origin) = &session.origin {
            return Self::captured(session, BASELINE, &origin.snapshot, None);
        }
        Ok(Self {
            session: session.id,
            name: BASELINE.to_owned(),
            workspace: workspace(session)?,
            digest: None,
            disk: Disk::Image(spec::image(&session.runtime)?),
            _now: None,
        })
    }

    /// What was captured of a session.
    pub(crate) fn captured(
        session: &Session,
        name: &str,
        snapshot: &SnapshotRecord,
        now: Option<Throwaway>,
    ) -> Result<Self, CommandError> {
        Ok(Self {
            session: session.id,
            name: name.to_owned(),
            workspace: workspace(session)?,
            digest: Some(snapshot.disk.clone()),
            disk: Disk::Snapshot(fluxvm_vmm::SnapshotId::new(snapshot.id.0)),
            _now: now,
        })
    }

    /// Everything in the workspace. A workspace that was not there is an empty one.
    pub(crate) async fn tree(&self, inner: &Inner) -> Result<Tree, CommandError> {
        let query = ManifestQuery {
            disk: self.disk.clone(),
            folder: self.workspace.clone(),
            entries_max: TREE_PATHS_MAX,
        };
        match inner.backend.manifest(query).await {
            Ok(listed) => Ok(changes::tree(listed)),
            Err(SnapshotError::NoSuchPath { .. }) => Ok(Tree::new()),
            Err(SnapshotError::TooMany { limit, .. }) => Err(CommandError::TooLarge {
                what: "the workspace",
                limit,
                unit: "paths",
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file by its path in the workspace, as the tree spells it.
    pub(crate) async fn open(
        &self,
        inner: &Inner,
        path: &str,
    ) -> Result<tokio::fs::File, CommandError> {
        let name = fluxvm_vmm::unescape(path).and_then(|name| String::from_utf8(name).ok());
        let full = name.and_then(|name| {
            let folder = self.workspace.as_str().trim_end_matches('/');
            format!("{folder}/{name}").parse::<GuestPath>().ok()
        });
        let full = full.ok_or_else(|| CommandError::Invalid {
            field: "path",
            message: format!("{path} is no path of text"),
        })?;
        Ok(inner.backend.open_file(&self.disk, &full).await?)
    }

    /// A file's content, if it is not longer than this.
    pub(crate) async fn content(
        &self,
        inner: &Inner,
        path: &str,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>, CommandError> {
        let file = self.open(inner, path).await?;
        let mut content = Vec::new();
        let read = file.take(bytes_max + 1).read_to_end(&mut content).await;
        read.map_err(|error| CommandError::Internal(format!("reading {path}: {error}")))?;
        Ok((content.len() as u64 <= bytes_max).then_some(content))
    }
}

fn workspace(session: &Session) -> Result<GuestPath, CommandError> {
    let path = session.workspace.path.parse();
    path.map_err(|error: fluxvm_vmm::SpecError| CommandError::Internal(error.to_string()))
}

/// A path in the workspace as a caller writes it, relative or absolute; the workspace itself is empty.
pub(crate) fn relative(
    session: &Session,
    field: &'static str,
    path: &str,
) -> Result<String, CommandError> {
    let refused = |message: String| CommandError::Invalid { field, message };
    let workspace = session.workspace.path.trim_end_matches('/');
    let inside = match path.strip_prefix('/') {
        None => path,
        Some(_) => path
            .strip_prefix(workspace)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            .ok_or_else(|| refused(format!("{path} lies outside the workspace {workspace}")))?,
    };
    let mut parts = Vec::new();
    for part in inside.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(refused(format!("{path} has a `..` in it"))),
            part if part.contains('\0') => return Err(refused("has a NUL in it".to_owned())),
            part => parts.push(part),
        }
    }
    // Trees spell a path so that it can be told from one that is not text.
    Ok(fluxvm_vmm::escape(parts.join("/").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn a_state_is_named_by_word_tag_or_session() {
        let id = "6f1f3c1e-2f1b-4a52-8a8c-0d5f0d9f4a01";
        let line = |text: &str| {
            let named = Named::parse(text);
            let session = named.session.map(|it| it.to_string()).unwrap_or_default();
            format!("{session} {:?}", named.which)
        };
        assert_eq!(line("now"), " Now");
        assert_eq!(line("baseline"), " Baseline");
        assert_eq!(line("before"), " Tag(\"before\")");
        assert_eq!(line("tag:now"), " Tag(\"now\")");
        assert_eq!(line(id), format!("{id} Now"));
        assert_eq!(line(&format!("{id}:cp-1")), format!("{id} Tag(\"cp-1\")"));
        assert_eq!(line(&format!("{id}:baseline")), format!("{id} Baseline"));
    }

    #[test]
    fn a_path_stays_in_the_workspace() {
        let line = |path: &str| match relative(&session(), "path", path) {
            Ok(path) => path,
            Err(error) => error.code().to_owned(),
        };
        for (path, expected) in [
            ("a/b", "a/b"),
            ("./a//b/", "a/b"),
            ("", ""),
            ("/workspace", ""),
            ("/workspace/a", "a"),
            ("a\\b", "a\\\\b"),
            ("/workspaces/a", "invalid_field"),
            ("/etc/passwd", "invalid_field"),
            ("../x", "invalid_field"),
            ("a/../../x", "invalid_field"),
            ("/workspace/../etc", "invalid_field"),
            ("a\0b", "invalid_field"),
        ] {
            assert_eq!(line(path), expected, "{path}");
        }
    }
}
