//! What a layer knows of one path.

use serde::{Deserialize, Serialize};

use super::path::LayerPath;
use crate::snapshot::ContentDigest;

/// One path of a layer. Owners are those on the host's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) node: Node,
    /// Permission bits, set-user-id, set-group-id and sticky included.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Nanoseconds since 1970. Zero for the root, whose time no sandbox keeps.
    pub(crate) modified_ns: i64,
    /// Extended attributes, sorted, without the overlay's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) xattrs: Vec<Xattr>,
    /// Names of one file within this layer have the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<u32>,
    /// What the upper layer looked like when it was captured; not part of any digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<Seen>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Xattr {
    pub(crate) name: LayerPath,
    #[serde(with = "hexadecimal")]
    pub(crate) value: Vec<u8>,
}

/// Values are bytes of any kind, and short.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        hex::decode(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Node {
    File {
        bytes: u64,
        digest: ContentDigest,
    },
    Folder {
        /// Nothing of the layers below is seen in it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        opaque: bool,
    },
    Link {
        target: LayerPath,
    },
    Fifo,
    Socket,
    /// Nothing is here, whatever the layers below have.
    Whiteout,
}

/// How a change of a captured path is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) inode: u64,
    pub(crate) changed_ns: i64,
    /// It changed so shortly before it was looked at, or could be changed in such a way, that a
    /// change of content need not show: it is compared by content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) doubtful: bool,
    /// The folder hid what is below it in the upper layer, whatever this layer says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) opaque: bool,
}

impl Entry {
    /// The mark of a path that is gone.
    pub(crate) const fn whiteout(seen: Option<Seen>) -> Self {
        Self {
            node: Node::Whiteout,
            mode: 0,
            uid: 0,
            gid: 0,
            modified_ns: 0,
            xattrs: Vec::new(),
            group: None,
            seen,
        }
    }

    pub(crate) const fn is_folder(&self) -> bool {
        matches!(self.node, Node::Folder { .. })
    }

    pub(crate) const fn is_whiteout(&self) -> bool {
        matches!(self.node, Node::Whiteout)
    }

    /// Feeds the entry to a digest, each field with its length: `(path, kind, …)`. `first_name` is
    /// the first of the names of one file, if there is another one before this.
    pub(crate) fn digest_into(
        &self,
        hasher: &mut blake3::Hasher,
        path: &LayerPath,
        owner_base: u32,
        first_name: Option<&LayerPath>,
    ) {
        let mut field = |bytes: &[u8]| {
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            hasher.update(&length.to_le_bytes());
            hasher.update(bytes);
        };
        field(path.as_bytes());
        match &self.node {
            Node::File { bytes, digest } => {
                field(b"file");
                field(&bytes.to_le_bytes());
                field(digest.as_bytes());
            }
            Node::Folder { opaque: false } => field(b"folder"),
            Node::Folder { opaque: true } => field(b"opaque folder"),
            Node::Link { target } => {
                field(b"link");
                field(target.as_bytes());
            }
            Node::Fifo => field(b"fifo"),
            Node::Socket => field(b"socket"),
            Node::Whiteout => {
                field(b"whiteout");
                return;
            }
        }
        for number in [
            self.mode,
            self.uid.wrapping_sub(owner_base),
            self.gid.wrapping_sub(owner_base),
        ] {
            field(&number.to_le_bytes());
        }
        field(&self.modified_ns.to_le_bytes());
        let count = u64::try_from(self.xattrs.len()).unwrap_or(u64::MAX);
        field(&count.to_le_bytes());
        for xattr in &self.xattrs {
            field(xattr.name.as_bytes());
            field(&xattr.value);
        }
        field(first_name.map_or(&[], LayerPath::as_bytes));
    }
}
