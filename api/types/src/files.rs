//! Files, uploads: bodies of requests and answers.

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::de::Error;
use uuid::Uuid;

/// All permission bits.
const MODE_MAX: u32 = 0o7777;

/// Permission bits, as octal text: `644`, `0644`, `0o644`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(u32);

impl FileMode {
    /// The bits.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0o").unwrap_or(&text);
        let octal = !digits.is_empty() && digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten();
        mode.filter(|mode| *mode <= MODE_MAX)
            .map(Self)
            .ok_or_else(|| D::Error::custom("must be octal permission bits as text, up to 7777"))
    }
}

/// `PUT …/files/content`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFileRequest {
    /// Where, absolute.
    pub path: String,
    /// The bytes.
    pub content_base64: String,
    /// The permissions.
    #[serde(default)]
    pub mode: Option<FileMode>,
    /// Whether folders on the way are made; they are when it is left out.
    #[serde(default)]
    pub parents: Option<bool>,
}

/// `POST …/uploads`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenUploadRequest {
    /// Where the file goes, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The SHA-256 that it must have, hexadecimal.
    #[serde(default)]
    pub sha256: Option<String>,
    /// The permissions.
    #[serde(default)]
    pub mode: Option<FileMode>,
    /// Whether folders on the way are made; they are when it is left out.
    #[serde(default)]
    pub parents: Option<bool>,
}

/// What lies at a path.
#[derive(Clone, Debug, Serialize)]
pub struct EntryView {
    /// Its name.
    pub name: String,
    /// `file`, `dir`, `symlink`, `other`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its bytes.
    pub size: u64,
    /// When its content last changed, in seconds since 1970.
    pub mtime: i64,
    /// Its permission bits, octal.
    pub mode: String,
    /// What a symbolic link says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// `GET …/files`.
#[derive(Clone, Debug, Serialize)]
pub struct FactsView {
    /// `file`, `dir`, `other`.
    pub kind: &'static str,
    /// The path that was asked for.
    pub path: String,
    /// The thing itself.
    #[serde(flatten)]
    pub entry: EntryView,
    /// What is in a folder, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<EntryView>>,
    /// There is more in it than is listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// `GET …/files/content`.
#[derive(Clone, Debug, Serialize)]
pub struct ContentView {
    /// The path that was asked for.
    pub path: String,
    /// The bytes.
    pub content_base64: String,
    /// How many.
    pub size: u64,
    /// The permission bits, octal.
    pub mode: String,
}

/// `GET …/files/range`.
#[derive(Clone, Debug, Serialize)]
pub struct RangeView {
    /// The path that was asked for.
    pub path: String,
    /// The first byte.
    pub offset: u64,
    /// The bytes; fewer than were asked for at the end of the file.
    pub data_base64: String,
    /// How many.
    pub length: u64,
    /// Bytes of the whole file.
    pub size: u64,
    /// Nothing follows.
    pub eof: bool,
    /// The permission bits, octal.
    pub mode: String,
    /// The SHA-256 of the whole file, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// `PUT …/files/content`.
#[derive(Clone, Debug, Serialize)]
pub struct WrittenView {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// Where.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The permission bits, octal.
    pub mode: String,
    /// BLAKE3, as the ledger has it.
    pub digest: String,
    /// SHA-256, as the guest computed it.
    pub sha256: String,
    /// A file was there before.
    pub replaced: bool,
}

/// An upload.
#[derive(Clone, Debug, Serialize)]
pub struct UploadView {
    /// Its id.
    pub id: Uuid,
    /// Where the file goes.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// How many of them came; the offset of the next part.
    pub received: u64,
    /// In how many parts.
    pub parts: u64,
    /// `open`, `complete`.
    pub state: &'static str,
    /// The SHA-256 that it must have.
    pub sha256: Option<String>,
    /// The permission bits, octal.
    pub mode: String,
    /// When it was opened.
    #[serde(serialize_with = "crate::time::serialize")]
    pub opened_at: chrono::DateTime<chrono::Utc>,
    /// The ledger number of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal_text() {
        let read = |text: &str| {
            serde_json::from_str::<FileMode>(text)
                .map(FileMode::get)
                .ok()
        };
        assert_eq!(read(r#""644""#), Some(0o644));
        assert_eq!(read(r#""0755""#), Some(0o755));
        assert_eq!(read(r#""0o4711""#), Some(0o4711));
        for wrong in [r#""""#, r#""8""#, r#""10000""#, "644", r#""rwx""#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
