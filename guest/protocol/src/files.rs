//! Files beyond the protocol's own routes: facts, slices, whole replacements and removals, below
//! `/v1/x/fs/`. Errors there have a stable name, as on the exec routes.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;

/// What lies at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device.
    Other,
}

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name; what is no UTF-8 in it is replaced.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its bytes.
    pub size: u64,
    /// When its content last changed, in seconds since 1970.
    pub mtime: i64,
    /// Its permission bits.
    pub mode: u32,
    /// What a symbolic link says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What lies at a path, and what lies in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// The thing itself, links followed.
    #[serde(flatten)]
    pub entry: FileEntry,
    /// What is in a folder, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<FileEntry>>,
    /// There is more in it than is listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Where it lies, after all links, as the kernel says; percent-encoded as one segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_path: Option<String>,
}

/// What a slice was cut from; in the header [`SLICE_HEADER`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceFacts {
    /// Bytes of the whole file.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// When its content last changed, in seconds since 1970.
    pub mtime: i64,
    /// The SHA-256 of the whole file, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Where the file lies, after all links, as the kernel says; percent-encoded as one segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_path: Option<String>,
}

/// The header that carries [`SliceFacts`] as JSON.
pub const SLICE_HEADER: &str = "x-fluxvm-file";

/// A file that was put in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Its bytes.
    pub size: u64,
    /// Their SHA-256.
    pub sha256: String,
    /// Its permission bits.
    pub mode: u32,
    /// A file was there before.
    pub replaced: bool,
}

/// Something that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// What it was.
    pub kind: EntryKind,
    /// Bytes of its files together.
    pub size: u64,
    /// How many entries went, itself included.
    pub entries: u64,
}

/// The stable names of what can go wrong on a route below `/v1/x/fs/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFault {
    /// The query does not say what the route asks for, or the path can be none.
    Malformed,
    /// Nothing lies at the path.
    Absent,
    /// What lies there is no regular file.
    NotAFile,
    /// A part of the path is no folder.
    NotAFolder,
    /// A symbolic link is in the way of a change.
    Symlink,
    /// The path leads through the kernel's view of a process.
    MagicLink,
    /// A folder that is to be removed alone is not empty.
    NotEmpty,
    /// More bytes, entries or levels than the route takes.
    TooLarge,
    /// The bytes that arrived are not as many as were announced.
    SizeMismatch,
    /// The bytes that arrived do not have the announced digest.
    ChecksumMismatch,
    /// The disk has no room beyond its reserve.
    NoRoom,
    /// The file system forbids it.
    Denied,
    /// The file system failed, or the request was cut off.
    Failed,
}

impl FileFault {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::Absent,
        Self::NotAFile,
        Self::NotAFolder,
        Self::Symlink,
        Self::MagicLink,
        Self::NotEmpty,
        Self::TooLarge,
        Self::SizeMismatch,
        Self::ChecksumMismatch,
        Self::NoRoom,
        Self::Denied,
        Self::Failed,
    ];

    /// The name as it is spelled on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Absent => "absent",
            Self::NotAFile => "not_a_file",
            Self::NotAFolder => "not_a_folder",
            Self::Symlink => "symlink",
            Self::MagicLink => "magic_link",
            Self::NotEmpty => "not_empty",
            Self::TooLarge => "too_large",
            Self::SizeMismatch => "size_mismatch",
            Self::ChecksumMismatch => "checksum_mismatch",
            Self::NoRoom => "no_room",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }

    /// The fault of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == name)
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_one_name_and_is_found_by_it() {
        for fault in FileFault::ALL {
            assert_eq!(FileFault::named(fault.as_str()), Some(fault));
            let json = serde_json::to_value(fault).unwrap();
            assert_eq!(json, fault.as_str());
        }
    }
}
