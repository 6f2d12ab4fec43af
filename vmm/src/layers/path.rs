//! Paths inside a layer: bytes, relative, as the kernel gives them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A path below the root of a layer, without a leading slash. Empty for the root itself.
///
/// They sort by their bytes, so that everything below a folder lies together.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LayerPath(Vec<u8>);

impl LayerPath {
    pub(crate) const fn root() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of something in this folder.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self(bytes)
    }

    /// The folder that it lies in, and its name there. `None` for the root.
    pub(crate) fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (
                Self(self.0.get(..at).unwrap_or_default().to_vec()),
                self.0.get(at + 1..).unwrap_or_default(),
            ),
            None => (Self::root(), &self.0),
        })
    }

    pub(crate) fn parent(&self) -> Option<Self> {
        self.split().map(|(parent, _)| parent)
    }

    /// Every folder above it, the root first.
    pub(crate) fn above(&self) -> Vec<Self> {
        let mut above: Vec<Self> = std::iter::successors(self.parent(), Self::parent).collect();
        above.reverse();
        above
    }

    /// What all paths below it begin with.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes
    }

    /// What of it lies below `folder`: empty for the folder itself, `None` outside of it.
    pub(crate) fn below(&self, folder: &Self) -> Option<&[u8]> {
        if self == folder {
            return Some(&[]);
        }
        self.0.strip_prefix(folder.prefix().as_slice())
    }
}

impl From<&str> for LayerPath {
    /// Takes an absolute or relative path that is plain.
    fn from(text: &str) -> Self {
        Self(text.trim_matches('/').as_bytes().to_vec())
    }
}

impl From<&[u8]> for LayerPath {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", escape(&self.0))
    }
}

impl fmt::Debug for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for LayerPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for LayerPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        unescape(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom("a path is escaped wrongly"))
    }
}

/// Bytes as text: what is not UTF-8 becomes `\xNN`, and a backslash `\\`.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter == '\\' {
                text.push('\\');
            }
            text.push(letter);
        }
        for byte in chunk.invalid() {
            text.push_str("\\x");
            text.push_str(&hex::encode([*byte]));
        }
    }
    text
}

/// The bytes again. `None` for what [`escape`] never writes.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        if let Some(after) = rest.strip_prefix(b"\\") {
            bytes.push(b'\\');
            rest = after;
        } else {
            let digits = rest.strip_prefix(b"x")?;
            let byte = hex::decode(digits.get(..2)?).ok()?;
            bytes.extend(byte);
            rest = digits.get(2..)?;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back_from_their_text() {
        for bytes in [
            &b"plain/path"[..],
            b"back\\slash",
            b"\xff\xfe/x",
            "h\u{e4}".as_bytes(),
            b"\\x41",
        ] {
            assert_eq!(unescape(&escape(bytes)).unwrap(), bytes);
        }
        assert_eq!(escape(b"a\xffb\\"), "a\\xffb\\\\");
        assert!(unescape("\\y").is_none());
    }

    #[test]
    fn a_path_knows_what_lies_above_and_below_it() {
        let path = LayerPath::from("a/b/c");
        assert_eq!(path.above(), ["", "a", "a/b"].map(LayerPath::from).to_vec());
        assert_eq!(path.below(&LayerPath::from("a")), Some(&b"b/c"[..]));
        assert_eq!(path.below(&LayerPath::root()), Some(&b"a/b/c"[..]));
        assert_eq!(path.below(&LayerPath::from("a/bb")), None);
        assert_eq!(
            LayerPath::root().child(b"x").child(b"y"),
            LayerPath::from("x/y")
        );
    }
}
