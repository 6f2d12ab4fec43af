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
use bytes::Bytes;
use fluxvm_projections::FileWritten;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::WorkspaceMode;

pub(crate) use delete::delete;
pub(crate) use path::GuestPath;
pub(crate) use recover::recover;
pub(crate) use write::fail;
pub(crate) use write::write;

use crate::caller::Caller;
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
        let guest = seat.sandbox.guest();
        guest::ask(seat.sandbox.as_ref(), guest.file_facts(path.as_str())).await
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
        let slice = guest::ask(seat.sandbox.as_ref(), call).await?;
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

/// The path may be changed: it does not lie in a workspace that is only to be read. Pure.
pub(crate) fn check_writable(session: &Session, path: &str) -> Result<(), CommandError> {
    let workspace = session.workspace.path.trim_end_matches('/');
    let inside = path
        .strip_prefix(workspace)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match session.workspace.mode == WorkspaceMode::Readonly && inside {
        false => Ok(()),
        true => Err(CommandError::File {
            fault: FileFault::Denied,
            detail: format!("{path} lies in the workspace, which is only to be read"),
        }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn a_workspace_that_is_only_to_be_read_is_not_written_and_all_else_is() {
        let mut session = session();
        assert!(check_writable(&session, "/workspace/a").is_ok());
        session.workspace.mode = WorkspaceMode::Readonly;
        for inside in ["/workspace", "/workspace/a/b"] {
            let refused = check_writable(&session, inside).unwrap_err();
            assert_eq!(refused.code(), "file_denied");
        }
        for outside in ["/workspace2/a", "/tmp/workspace/a"] {
            assert!(check_writable(&session, outside).is_ok(), "{outside}");
        }
    }
}
