//! Plans out of captured states, and sets of changes into a guest.

use std::io;
use std::io::Read;
use std::io::Write;
use std::sync::Arc;

use agentd_client::ClientError;
use agentd_protocol::paths::REMOVED;
use fluxvm_eventstore::KeptBlob;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Disk;
use fluxvm_vmm::EntryKind;
use fluxvm_vmm::ManifestEntry;
use fluxvm_vmm::SnapshotError;
use futures_util::stream;
use tar::EntryType;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::keep::Keeper;
use super::keep::Portions;
use super::set;
use super::set::ChangeSet;
use super::set::Trees;
use crate::changes;
use crate::changes::ChangeKind;
use crate::changes::Merge;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::states::State;

/// Portions of a set that wait to be sent.
const PORTIONS_WAITING: usize = 4;
/// Bytes of one of them.
const PORTION_BYTES: usize = 256 * 1024;
const SECOND_NS: i64 = 1_000_000_000;

/// Why a set was not applied, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("its sandbox has ended")]
    SandboxGone,
    #[error("{0}")]
    Guest(#[from] ClientError),
    #[error("{0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The three states that are merged.
pub(super) struct Sides {
    pub(super) base: State,
    pub(super) theirs: State,
    pub(super) ours: State,
}

/// What is to be done.
pub(super) struct Plan {
    pub(super) merge: Merge,
    /// The digest of it.
    pub(super) id: String,
}

impl Sides {
    /// Merges.
    pub(super) async fn plan(
        &self,
        inner: &Inner,
        wanted: &[String],
    ) -> Result<(Trees, Plan), CommandError> {
        let base = self.base.tree(inner).await?;
        let trees = Trees {
            ours: self.ours.tree(inner).await?,
            theirs: self.theirs.tree(inner).await?,
        };
        let merge = changes::merge(&base, &trees.theirs, &trees.ours, wanted);
        let id = plan_id(&merge, &trees);
        Ok((trees, Plan { merge, id }))
    }
}

/// A digest of what is done, what with, and what is not done. Times do not count.
fn plan_id(merge: &Merge, trees: &Trees) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for (path, kind) in &merge.apply {
        add(match kind {
            ChangeKind::Added => "added",
            ChangeKind::Modified => "modified",
            ChangeKind::Deleted => "deleted",
        });
        add(path);
        for entry in [trees.ours.get(path), trees.theirs.get(path)] {
            let text = entry.map(|entry| {
                format!(
                    "{:?} {:o} {} {}",
                    entry.kind, entry.mode, entry.uid, entry.gid
                )
            });
            add(text.as_deref().unwrap_or(""));
        }
    }
    for conflict in &merge.conflicts {
        add("conflict");
        add(&conflict.path);
    }
    hasher.finalize().to_hex().to_string()
}

/// Applies a set in a session's guest. The contents come from `source`. Answers what was kept of it.
pub(super) async fn apply(
    inner: &Arc<Inner>,
    session: SessionId,
    source: State,
    set: ChangeSet,
    keeper: Option<Keeper>,
) -> Result<Vec<KeptBlob>, Fault> {
    if set == ChangeSet::default() {
        return Ok(Vec::new());
    }
    let sandbox = inner.sandboxes.get(session);
    let sandbox = sandbox.ok_or(Fault::SandboxGone)?;
    let (body, mut waiting) = mpsc::channel(PORTIONS_WAITING);
    let folder = source.workspace.as_str().to_owned();
    let (reader, handle) = (Arc::clone(inner), Handle::current());
    let writing = tokio::task::spawn_blocking(move || {
        let mut target = Portions { body, keeper };
        let written = write(&reader, &handle, &source, &set, &mut target);
        let Portions { body, keeper } = target;
        match written {
            Ok(()) => drop(body),
            Err(error) => {
                // A body that ends in an error is no whole set: the guest applies nothing of it.
                let _ = body.blocking_send(Err(error));
            }
        }
        keeper.map(Keeper::finish).unwrap_or_default()
    });
    let applied = sandbox
        .guest()
        .apply_changes(
            &folder,
            stream::poll_fn(move |context| waiting.poll_recv(context)),
        )
        .await;
    let kept = writing.await;
    applied?;
    Ok(kept?)
}

/// Puts the parent of an interrupted promotion back to where it was. That it never came to a snapshot of
/// the child means that it changed nothing.
pub(crate) async fn roll_back(
    inner: &Arc<Inner>,
    parent: &Session,
    operation: &Operation,
) -> Result<(), CommandError> {
    let OperationKind::Promote {
        checkpoint,
        theirs,
        baseline,
        paths,
        ..
    } = &operation.kind
    else {
        return Ok(());
    };
    let state = |id: &fluxvm_projections::SnapshotId| {
        let mut state = State::baseline(parent)?;
        state.disk = Disk::Snapshot(fluxvm_vmm::SnapshotId::new(id.0));
        Ok::<_, CommandError>(state)
    };
    let sides = Sides {
        base: state(baseline)?,
        theirs: state(theirs)?,
        ours: state(checkpoint)?,
    };
    let (trees, plan) = match sides.plan(inner, paths).await {
        Err(CommandError::Snapshot(SnapshotError::Missing(_))) => return Ok(()),
        planned => planned?,
    };
    let back = set::back(&plan.merge, &trees);
    let applied = apply(inner, parent.id, sides.ours, back, None).await;
    applied.map(drop).map_err(|fault| CommandError::NotApplied {
        reason: fault.to_string(),
        outcome: "what the promotion did before stays".to_owned(),
    })
}

fn write(
    inner: &Inner,
    handle: &Handle,
    source: &State,
    set: &ChangeSet,
    target: &mut Portions,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(PORTION_BYTES, target));
    for path in &set.removals {
        let mut header = header(EntryType::new(REMOVED), 0);
        member(&mut archive, path, &[], &mut header, io::empty())?;
    }
    for entry in &set.entries {
        let kind = match &entry.kind {
            EntryKind::Folder => EntryType::Directory,
            EntryKind::Link { .. } => EntryType::Symlink,
            _ => EntryType::Regular,
        };
        let bytes = match &entry.kind {
            EntryKind::File { bytes, .. } => *bytes,
            _ => 0,
        };
        let mut header = header(kind, bytes);
        header.set_mode(entry.mode);
        header.set_uid(entry.uid.into());
        header.set_gid(entry.gid.into());
        let time = fine_time(entry);
        let mut records = vec![("mtime", time.into_bytes())];
        match &entry.kind {
            EntryKind::File { .. } => {
                let opened = handle.block_on(async {
                    let file = source.open(inner, &entry.path).await?;
                    Ok::<_, CommandError>(file.into_std().await)
                });
                let file = opened.map_err(io::Error::other)?;
                member(
                    &mut archive,
                    &entry.path,
                    &records,
                    &mut header,
                    file.take(bytes),
                )?;
            }
            EntryKind::Link { target } => {
                let target = fluxvm_vmm::unescape(target).unwrap_or_default();
                records.push(("linkpath", target));
                member(
                    &mut archive,
                    &entry.path,
                    &records,
                    &mut header,
                    io::empty(),
                )?;
            }
            _ => member(
                &mut archive,
                &entry.path,
                &records,
                &mut header,
                io::empty(),
            )?,
        }
    }
    archive.into_inner()?.flush()
}

fn header(kind: EntryType, bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(bytes);
    header.set_mtime(0);
    // A number that is left out is none at all to whoever reads it.
    header.set_mode(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Names go into records of their own, which take any bytes and any length.
fn member(
    archive: &mut tar::Builder<impl Write>,
    path: &str,
    records: &[(&str, Vec<u8>)],
    header: &mut tar::Header,
    content: impl Read,
) -> io::Result<()> {
    let name = fluxvm_vmm::unescape(path).unwrap_or_default();
    let named = [("path", name.as_slice())].into_iter();
    let others = records.iter().map(|(key, value)| (*key, value.as_slice()));
    archive.append_pax_extensions(named.chain(others))?;
    header.set_path("changed")?;
    header.set_cksum();
    archive.append(header, content)
}

/// `<seconds>.<nanoseconds>`.
fn fine_time(entry: &ManifestEntry) -> String {
    let seconds = entry.modified_ns.div_euclid(SECOND_NS);
    format!("{seconds}.{:09}", entry.modified_ns.rem_euclid(SECOND_NS))
}
