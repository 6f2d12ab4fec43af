//! Files of a session: look, read, write, remove.
//!
//! All of it happens inside the sandbox, by its guest daemon: nothing here opens a path on the host.
//! What is read may lie behind a symbolic link, as for any program; what is changed is reached without
//! following one.

mod delete;
mod path;
mod recover;
mod write;

use agentd_protocol::FileFacts;
use agentd_protocol::FileFault;
use agentd_protocol::SliceFacts;
use agentd_protocol::paths::decode_segment;
use bytes::Bytes;
use fluxvm_projections::FileWritten;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;

pub(crate) use delete::delete;
pub(crate) use path::GuestPath;
pub(crate) use recover::recover;
pub(crate) use write::fail;
pub(crate) use write::write;

use crate::caller::Caller;
use crate::confinement::Reach;
use crate::confinement::Terms;
use crate::engine::Engine;
use crate::error::CommandError;
use crate::guest;
use crate::limits::FILE_READ_BYTES_MAX;
use crate::limits::RANGE_BYTES_MAX;

/// Permissions of a written file that asks for none.
pub(crate) const FILE_MODE: u32 = 0o644;

/// All permission bits.
const MODE_MAX: u32 = 0o7777;

/// A file to be written.
#[derive(Clone, Debug)]
pub struct WriteFile {
    /// Where, absolute.
    pub path: String,
    /// Its bytes.
    pub content: Bytes,
    /// Its permission bits; 0644 when `None`.
    pub mode: Option<u32>,
    /// Folders on the way are made.
    pub parents: bool,
}

/// A file or a tree to be removed.
#[derive(Clone, Debug)]
pub struct DeleteFile {
    /// What, absolute.
    pub path: String,
    /// With all that is in it.
    pub recursive: bool,
}

/// A part of a file to be read.
#[derive(Clone, Debug)]
pub struct ReadRange {
    /// Which file, absolute.
    pub path: String,
    /// From which byte.
    pub offset: u64,
    /// How many bytes; as many as one answer takes when `None`.
    pub length: Option<u64>,
    /// The SHA-256 of the whole file is wanted.
    pub checksum: bool,
}

/// A part of a file.
#[derive(Clone, Debug)]
pub struct RangeAnswer {
    /// What it was cut from.
    pub facts: SliceFacts,
    /// The bytes.
    pub bytes: Bytes,
    /// Nothing follows them.
    pub eof: bool,
}

/// A file that was written.
#[derive(Clone, Debug)]
pub struct WriteAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The outcome.
    pub outcome: FileWritten,
}

impl Engine {
    /// What lies at a path, and what lies in it.
    ///
    /// # Errors
    ///
    /// `Invalid` for a path that is none, `File` when the guest refuses, `Guest` when it does not answer.
    pub async fn file_facts(
        &self,
        caller: &Caller,
        id: SessionId,
        path: &str,
    ) -> Result<FileFacts, CommandError> {
        let path = GuestPath::parse("path", path)?;
        let seat = guest::seat(&self.inner, caller, id).await?;
        facts(&seat.session, seat.sandbox.as_ref(), &path).await
    }

    /// A whole small file.
    ///
    /// # Errors
    ///
    /// As [`Self::file_facts`]; `File` with `too_large` for a file that has to be read in parts.
    pub async fn read_file(
        &self,
        caller: &Caller,
        id: SessionId,
        path: &str,
    ) -> Result<RangeAnswer, CommandError> {
        let range = ReadRange {
            path: path.to_owned(),
            offset: 0,
            length: Some(FILE_READ_BYTES_MAX),
            checksum: false,
        };
        let answer = self.read_range(caller, id, range).await?;
        if answer.facts.size > FILE_READ_BYTES_MAX {
            return Err(CommandError::File {
                fault: FileFault::TooLarge,
                detail: format!(
                    "the file has {} bytes; above {FILE_READ_BYTES_MAX} read it in parts, with \
                     files/range",
                    answer.facts.size
                ),
            });
        }
        Ok(answer)
    }

    /// A part of a file.
    ///
    /// # Errors
    ///
    /// As [`Self::file_facts`].
    pub async fn read_range(
        &self,
        caller: &Caller,
        id: SessionId,
        range: ReadRange,
    ) -> Result<RangeAnswer, CommandError> {
        let path = GuestPath::parse("path", &range.path)?;
        let length = range.length.unwrap_or(RANGE_BYTES_MAX);
        if length > RANGE_BYTES_MAX {
            return Err(CommandError::Invalid {
                field: "length",
                message: format!("must be at most {RANGE_BYTES_MAX} bytes"),
            });
        }
        let seat = guest::seat(&self.inner, caller, id).await?;
        let guest = seat.sandbox.guest();
        let call = guest.file_slice(path.as_str(), range.offset, length, range.checksum);
        let read = guest::ask(seat.sandbox.as_ref(), call);
        let slice = reading(&seat.session, &path, read, |slice| {
            slice.facts.real_path.as_deref()
        });
        let slice = slice.await?;
        let end = range.offset.saturating_add(slice.bytes.len() as u64);
        Ok(RangeAnswer {
            eof: end >= slice.facts.size,
            facts: slice.facts,
            bytes: slice.bytes,
        })
    }

    /// Writes a file: as a whole or not at all.
    ///
    /// # Errors
    ///
    /// `Invalid`, `File` with `too_large` above the limit, `NotFound`, `NotRunning`, `Busy`, `TooMany`
    /// before anything happened; `File` and `Guest` when nothing was written, which is recorded.
    pub async fn write_file(
        &self,
        caller: &Caller,
        id: SessionId,
        request: WriteFile,
    ) -> Result<WriteAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            write(&inner, &caller, id, request).await
        })
        .await
    }

    /// Removes a file, a link or a tree. Links are removed and never followed.
    ///
    /// # Errors
    ///
    /// As [`Self::write_file`].
    pub async fn delete_file(
        &self,
        caller: &Caller,
        id: SessionId,
        request: DeleteFile,
    ) -> Result<u64, CommandError> {
        self.run(caller, move |inner, caller| async move {
            let (seq, _) = delete(&inner, &caller, id, request).await?;
            Ok(seq)
        })
        .await
    }
}

/// The path may be written under the session's policy. Pure.
pub(crate) fn check_writable(session: &Session, path: &str) -> Result<(), CommandError> {
    match Reach::of(&Terms::of(session)) {
        Some(reach) => reach.check_writable(path),
        None => Ok(()),
    }
}

/// The path may be removed under the session's policy. Pure.
pub(crate) fn check_removable(session: &Session, path: &str) -> Result<(), CommandError> {
    match Reach::of(&Terms::of(session)) {
        Some(reach) => reach.check_removable(path),
        None => Ok(()),
    }
}

/// What lies at a path that may be read under the session's policy.
pub(crate) async fn facts(
    session: &Session,
    sandbox: &dyn Sandbox,
    path: &GuestPath,
) -> Result<FileFacts, CommandError> {
    let call = sandbox.guest().file_facts(path.as_str());
    reading(session, path, guest::ask(sandbox, call), |facts| {
        facts.real_path.as_deref()
    })
    .await
}

/// Reads something if the policy lets it be read by its name and where its links lead. What lies
/// elsewhere is read by the guest and goes no further.
async fn reading<T>(
    session: &Session,
    path: &GuestPath,
    read: impl Future<Output = Result<T, CommandError>>,
    place: impl FnOnce(&T) -> Option<&str>,
) -> Result<T, CommandError> {
    let Some(reach) = Reach::of(&Terms::of(session)) else {
        return read.await;
    };
    reach.check_readable(path.as_str(), path.as_str())?;
    let found = read.await?;
    let place = place(&found).and_then(decode_segment).unwrap_or_default();
    reach.check_readable(path.as_str(), &place)?;
    Ok(found)
}

/// The permission bits that were asked for.
pub(crate) fn mode(asked: Option<u32>) -> Result<u32, CommandError> {
    match asked.unwrap_or(FILE_MODE) {
        mode if mode <= MODE_MAX => Ok(mode),
        _ => Err(CommandError::Invalid {
            field: "mode",
            message: "must be octal permission bits up to 7777".to_owned(),
        }),
    }
}
