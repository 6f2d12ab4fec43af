//! Files for the host's own API: facts, slices, whole replacements, removals.
//!
//! The routes of the protocol write into a file where it lies and follow every link, as their
//! contract says. These do not. What they change is reached folder by folder without following a
//! single symbolic link, so that a name which something in the guest turned into a link changes
//! nothing elsewhere; a file is replaced as a whole or not at all. What they read may be behind a
//! link like for any program, but never behind the links below `/proc` that lead out of what this
//! process's view names: this daemon holds descriptors that are nobody else's.

mod facts;
mod place;
mod reach;
mod remove;
mod slice;

use std::io;

use agentd_protocol::FileFault;
use nix::errno::Errno;

pub(crate) use facts::facts;
pub(crate) use place::Order;
pub(crate) use place::Owner;
pub(crate) use place::place;
pub(crate) use remove::remove;
pub(crate) use slice::Cut;
pub(crate) use slice::slice;

use super::Fault;

/// Why something was not done, with its stable name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct Denial {
    pub(crate) fault: FileFault,
    pub(crate) detail: String,
}

impl Denial {
    pub(crate) fn new(fault: FileFault, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { fault, detail }
    }

    /// What an error of the kernel means for a path.
    fn of(path: &str, errno: Errno) -> Self {
        let fault = match errno {
            Errno::ENOENT => FileFault::Absent,
            Errno::ENOTDIR => FileFault::NotAFolder,
            Errno::EISDIR | Errno::ENXIO => FileFault::NotAFile,
            Errno::ENOTEMPTY => FileFault::NotEmpty,
            Errno::ENAMETOOLONG | Errno::EINVAL => FileFault::Malformed,
            Errno::ENOSPC | Errno::EDQUOT => FileFault::NoRoom,
            Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::EBUSY | Errno::ETXTBSY => {
                FileFault::Denied
            }
            _ => FileFault::Failed,
        };
        Self::new(fault, format!("{path}: {}", errno.desc()))
    }

    fn of_io(path: &str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Self::of(path, Errno::from_raw(number)),
            None => Self::new(FileFault::Failed, format!("{path}: {error}")),
        }
    }
}

impl From<Fault> for Denial {
    fn from(fault: Fault) -> Self {
        let name = match &fault {
            Fault::Refused(_) => FileFault::Malformed,
            Fault::Absent(_) => FileFault::Absent,
            Fault::TooMuch(_) | Fault::BodyTooLong => FileFault::TooLarge,
            Fault::NoRoom => FileFault::NoRoom,
            Fault::Failed(_) | Fault::CutOff => FileFault::Failed,
        };
        Self::new(name, fault.to_string())
    }
}

/// Hexadecimal text of a digest.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
