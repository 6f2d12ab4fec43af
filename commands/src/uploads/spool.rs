//! Where the parts of uploads wait on the host.
//!
//! ```text
//! <state>/uploads/<session>/<upload>/00000000000004194304     a part, named after its offset
//!                                    part-…                   one that is not whole
//! ```
//!
//! A part is written aside, synced, renamed, and its folder synced, before anyone is told that it came.
//! So what has a part's name is whole and durable, whatever ended the daemon, and the offset from which
//! to go on is the sum of what is there.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::path::PathBuf;

use bytes::Bytes;
use fluxvm_projections::SessionId;
use fluxvm_projections::UploadId;
use futures_util::Stream;
use futures_util::StreamExt;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;

use crate::limits::UPLOAD_PIECE_BYTES;

/// What a part's name starts with until it is whole.
const UNFINISHED: &str = "part-";

/// Digits of a part's name: every offset has as many, so that names sort as offsets do.
const OFFSET_DIGITS: usize = 20;

/// The folder of all uploads.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    root: PathBuf,
}

/// What came of one upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// How many bytes, without a gap from the first.
    pub(crate) bytes: u64,
    /// The parts' files, in order.
    pub(crate) parts: Vec<PathBuf>,
}

/// Why a part was not taken.
#[derive(Debug)]
pub(crate) enum PartFault {
    /// More bytes than there is room for.
    TooLong,
    /// None at all.
    Empty,
    /// The caller went away.
    BrokenOff(io::Error),
    /// The disk failed.
    Disk(io::Error),
}

impl Spool {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn session_dir(&self, session: SessionId) -> PathBuf {
        self.root.join(session.to_string())
    }

    fn dir(&self, session: SessionId, upload: UploadId) -> PathBuf {
        self.session_dir(session).join(upload.to_string())
    }

    /// Makes the place of an upload.
    pub(crate) async fn open(&self, session: SessionId, upload: UploadId) -> io::Result<()> {
        let dir = self.dir(session, upload);
        blocking(move || {
            DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            let folders = [Some(dir.as_path()), dir.parent()];
            folders.into_iter().flatten().try_for_each(sync_folder)
        })
        .await
    }

    /// What came so far. Whatever does not follow on it is of no use and ignored.
    pub(crate) async fn received(
        &self,
        session: SessionId,
        upload: UploadId,
    ) -> io::Result<Received> {
        let dir = self.dir(session, upload);
        blocking(move || received(&dir)).await
    }

    /// Takes one part of at most so many bytes. It is durable when this returns.
    pub(crate) async fn take_part(
        &self,
        (session, upload): (SessionId, UploadId),
        offset: u64,
        bytes_max: u64,
        mut content: impl Stream<Item = io::Result<Bytes>> + Unpin,
    ) -> Result<u64, PartFault> {
        let dir = self.dir(session, upload);
        let unfinished = dir.join(format!("{UNFINISHED}{offset}"));
        let mut file = tokio::fs::File::create(&unfinished)
            .await
            .map_err(PartFault::Disk)?;
        let mut bytes = 0_u64;
        while let Some(portion) = content.next().await {
            let portion = portion.map_err(PartFault::BrokenOff)?;
            bytes += portion.len() as u64;
            if bytes > bytes_max {
                return Err(PartFault::TooLong);
            }
            file.write_all(&portion).await.map_err(PartFault::Disk)?;
        }
        if bytes == 0 {
            return Err(PartFault::Empty);
        }
        file.flush().await.map_err(PartFault::Disk)?;
        file.sync_data().await.map_err(PartFault::Disk)?;
        let whole = dir.join(format!("{offset:0width$}", width = OFFSET_DIGITS));
        blocking(move || {
            fs::rename(&unfinished, &whole)?;
            sync_folder(&dir)
        })
        .await
        .map_err(PartFault::Disk)?;
        Ok(bytes)
    }

    /// Drops an upload's parts. None are fine.
    pub(crate) async fn remove(&self, session: SessionId, upload: UploadId) -> io::Result<()> {
        let dir = self.dir(session, upload);
        blocking(move || remove_tree(&dir)).await
    }

    /// Drops all that a session left.
    pub(crate) async fn remove_session(&self, session: SessionId) -> io::Result<()> {
        let dir = self.session_dir(session);
        blocking(move || remove_tree(&dir)).await
    }

    /// Drops whatever is no open upload.
    pub(crate) async fn keep_only(&self, open: Vec<(SessionId, UploadId)>) -> io::Result<u64> {
        let root = self.root.clone();
        blocking(move || keep_only(&root, &open)).await
    }
}

/// The content of parts, cut anew into pieces of one size.
pub(crate) struct Pieces {
    rest: std::vec::IntoIter<PathBuf>,
    current: Option<tokio::fs::File>,
}

impl Pieces {
    pub(crate) fn of(received: &Received) -> Self {
        Self {
            rest: received.parts.clone().into_iter(),
            current: None,
        }
    }

    /// The next piece; all but the last have [`UPLOAD_PIECE_BYTES`].
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = Vec::with_capacity(UPLOAD_PIECE_BYTES);
        while piece.len() < UPLOAD_PIECE_BYTES {
            if self.current.is_none() {
                let Some(path) = self.rest.next() else {
                    break;
                };
                self.current = Some(tokio::fs::File::open(path).await?);
            }
            let Some(file) = &mut self.current else { break };
            let room = (UPLOAD_PIECE_BYTES - piece.len()) as u64;
            if file.take(room).read_to_end(&mut piece).await? == 0 {
                self.current = None;
            }
        }
        Ok((!piece.is_empty()).then(|| piece.into()))
    }
}

fn received(dir: &Path) -> io::Result<Received> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let offset = name
            .to_str()
            .filter(|name| name.len() == OFFSET_DIGITS)
            .and_then(|name| name.parse::<u64>().ok());
        if let Some(offset) = offset {
            parts.push((offset, entry.metadata()?.len(), entry.path()));
        }
    }
    parts.sort();
    let mut received = Received::default();
    for (offset, length, path) in parts {
        if offset == received.bytes {
            received.bytes += length;
            received.parts.push(path);
        }
    }
    Ok(received)
}

fn keep_only(root: &Path, open: &[(SessionId, UploadId)]) -> io::Result<u64> {
    let mut removed = 0;
    let sessions = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        sessions => sessions?,
    };
    for session in sessions {
        let session = session?.path();
        let mut kept = 0;
        for upload in fs::read_dir(&session)? {
            let upload = upload?.path();
            let is_open = |(one, other): &(SessionId, UploadId)| {
                root.join(one.to_string()).join(other.to_string()) == upload
            };
            if open.iter().any(is_open) {
                kept += 1;
            } else {
                remove_tree(&upload)?;
                removed += 1;
            }
        }
        if kept == 0 {
            remove_tree(&session)?;
        }
    }
    Ok(removed)
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const SESSION: SessionId = SessionId(Uuid::from_u128(1));
    const UPLOAD: UploadId = UploadId(Uuid::from_u128(2));

    fn portions(parts: &[&'static [u8]]) -> impl Stream<Item = io::Result<Bytes>> + Unpin + use<> {
        let portions: Vec<_> = parts
            .iter()
            .map(|part| Ok(Bytes::from_static(part)))
            .collect();
        futures_util::stream::iter(portions)
    }

    #[tokio::test]
    async fn parts_add_up_and_what_is_not_whole_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::new(folder.path().join("uploads"));
        spool.open(SESSION, UPLOAD).await.unwrap();
        let key = (SESSION, UPLOAD);
        let first = spool.take_part(key, 0, 10, portions(&[b"ab", b"c"])).await;
        assert_eq!(first.unwrap(), 3);
        let long = spool.take_part(key, 3, 2, portions(&[b"def"])).await;
        assert!(matches!(long, Err(PartFault::TooLong)));
        let broken = futures_util::stream::iter([
            Ok(Bytes::from_static(b"d")),
            Err(io::ErrorKind::ConnectionReset.into()),
        ]);
        let broken = spool.take_part(key, 3, 9, broken).await;
        assert!(matches!(broken, Err(PartFault::BrokenOff(_))));
        assert_eq!(spool.received(SESSION, UPLOAD).await.unwrap().bytes, 3);
        spool
            .take_part(key, 3, 9, portions(&[b"def"]))
            .await
            .unwrap();
        // A part beyond a gap is of no use.
        spool.take_part(key, 9, 9, portions(&[b"x"])).await.unwrap();
        let received = spool.received(SESSION, UPLOAD).await.unwrap();
        assert_eq!((received.bytes, received.parts.len()), (6, 2));
        let mut pieces = Pieces::of(&received);
        assert_eq!(pieces.next().await.unwrap().unwrap(), "abcdef");
        assert_eq!(pieces.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_no_open_upload_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::new(folder.path().to_owned());
        let other = UploadId(Uuid::from_u128(3));
        spool.open(SESSION, UPLOAD).await.unwrap();
        spool.open(SESSION, other).await.unwrap();
        assert_eq!(spool.keep_only(vec![(SESSION, UPLOAD)]).await.unwrap(), 1);
        assert!(spool.received(SESSION, UPLOAD).await.is_ok());
        assert!(spool.received(SESSION, other).await.is_err());
        spool.remove(SESSION, UPLOAD).await.unwrap();
        assert_eq!(spool.keep_only(Vec::new()).await.unwrap(), 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
