//! Files and trees of the guest, up and down.
//!
//! A slow disk must not hold up anything else, so all of this runs on threads of the runtime's
//! blocking pool, joined to the request by a short channel: what is on its way is never more than a
//! few portions, whatever the size of the file or the archive.

mod archive;
mod beneath;
mod changes;
pub(crate) mod exact;
mod extract;
mod file;
mod lines;
mod names;
mod room;
mod transfer;

use std::io;

use nix::errno::Errno;

pub(crate) use archive::read_tree;
pub(crate) use changes::apply_changes;
pub(crate) use extract::write_tree;
pub(crate) use file::parse_mode;
pub(crate) use file::read_file;
pub(crate) use file::write_file;
pub(crate) use lines::Window;
pub(crate) use room::Room;
pub(crate) use transfer::Incoming;
pub(crate) use transfer::Outgoing;
pub(crate) use transfer::Portion;
pub(crate) use transfer::incoming;
pub(crate) use transfer::outgoing;

/// Why a transfer did not happen, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The request asks for something that cannot be.
    #[error("{0}")]
    Refused(String),
    /// Nothing lies at the path.
    #[error("{0}")]
    Absent(String),
    /// Over a cap.
    #[error("{0}")]
    TooMuch(String),
    /// The disk has no room beyond its reserve.
    #[error("the disk has no room beyond its reserve")]
    NoRoom,
    /// The file system or the archive failed.
    #[error("{0}")]
    Failed(String),
    /// The request's body was longer than any may be.
    #[error("length limit exceeded")]
    BodyTooLong,
    /// The request's body ended early.
    #[error("the body was cut off")]
    CutOff,
}

/// How much an archive may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeLimits {
    pub(crate) members_max: u64,
    pub(crate) bytes_max: u64,
}

impl Default for TreeLimits {
    fn default() -> Self {
        Self {
            members_max: agentd_protocol::limits::TAR_MEMBERS_MAX,
            bytes_max: agentd_protocol::limits::TAR_BYTES_MAX,
        }
    }
}

/// What an error of the file system means for a path that a request named.
fn path_fault(path: &str, error: &io::Error) -> Fault {
    let said = format!("{path}: {error}");
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => Fault::Absent(said),
        Some(Errno::ENOSPC | Errno::EDQUOT) => Fault::NoRoom,
        Some(Errno::EISDIR | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::ENOTDIR) => {
            Fault::Refused(said)
        }
        // A NUL in the path.
        None if error.kind() == io::ErrorKind::InvalidInput => Fault::Refused(said),
        _ => Fault::Failed(said),
    }
}
