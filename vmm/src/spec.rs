//! What a caller asks for: parsed once, so that no engine has to check a name or a path again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::SpecError;

/// Longest image name in bytes: it becomes one folder name.
pub const IMAGE_NAME_BYTES_MAX: usize = 64;
/// Longest guest path in bytes: what one system call takes (`PATH_MAX` less the final NUL).
pub const GUEST_PATH_BYTES_MAX: usize = 4095;
/// Longest host name in bytes: what `sethostname` takes.
pub const HOSTNAME_BYTES_MAX: usize = 64;

/// The name of one sandbox. It is also a folder name and a control group's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxId(Uuid);

impl SandboxId {
    /// Takes an id that the caller made.
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    /// Makes a fresh random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id as a UUID.
    pub const fn uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for SandboxId {
    type Err = SpecError;

    /// Only the lower-case hyphenated form: one sandbox has exactly one folder name.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let id = Uuid::parse_str(text).map_err(|_| SpecError::SandboxId(text.to_owned()))?;
        let this = Self(id);
        if this.to_string() == text {
            Ok(this)
        } else {
            Err(SpecError::SandboxId(text.to_owned()))
        }
    }
}

/// The name of an image folder: `[a-z0-9][a-z0-9._-]*`, at most [`IMAGE_NAME_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

impl ImageName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageName {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = text.len() <= IMAGE_NAME_BYTES_MAX
            && text.chars().next().is_some_and(first)
            && text.chars().all(inner);
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(SpecError::ImageName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for ImageName {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> Self {
        name.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the sandbox's root file system starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageRef {
    /// The host's own `/`, as far as any unprivileged user may read it (where an ordinary user runs
    /// the daemon: as far as that user may), with private folders masked.
    HostRoot,
    /// A folder below the images folder.
    Named(ImageName),
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostRoot => f.write_str("host root"),
            Self::Named(name) => name.fmt(f),
        }
    }
}

/// An absolute path inside a sandbox: no `..`, no empty or `.` component, no NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuestPath(String);

impl GuestPath {
    /// Where work happens when nobody asked for another place.
    pub fn workspace() -> Self {
        Self("/workspace".to_owned())
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GuestPath {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let refused = || SpecError::GuestPath(text.to_owned());
        let rest = text.strip_prefix('/').ok_or_else(refused)?;
        if text.len() > GUEST_PATH_BYTES_MAX || text.contains('\0') {
            return Err(refused());
        }
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if rest.is_empty() || rest.split('/').all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(refused())
        }
    }
}

impl TryFrom<String> for GuestPath {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<GuestPath> for String {
    fn from(path: GuestPath) -> Self {
        path.0
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One sandbox as asked for.
///
/// A limit that [`Capabilities`](crate::Capabilities) does not claim is not enforced: a caller that
/// insists on one looks there first.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// The caller's name for it. Creating the same id twice is refused.
    pub id: SandboxId,
    /// What the root file system starts from.
    pub image: ImageRef,
    /// Made when missing; the directory in which commands start.
    pub workspace: GuestPath,
    /// Processors' worth of time.
    pub cpus: Option<u32>,
    /// Memory in MiB, page cache of its own files included.
    pub memory_mb: Option<u64>,
    /// Processes and threads together.
    pub processes_max: Option<u32>,
    /// Environment of everything that runs inside, over the engine's defaults for HOME, PATH and
    /// LANG.
    pub env: BTreeMap<String, String>,
    /// The host name inside: at most [`HOSTNAME_BYTES_MAX`] bytes of letters, digits, `-` and `.`.
    pub hostname: String,
}

impl SandboxSpec {
    /// A sandbox on the host's root with no limits, named after its id.
    pub fn new(id: SandboxId) -> Self {
        Self {
            id,
            image: ImageRef::HostRoot,
            workspace: GuestPath::workspace(),
            cpus: None,
            memory_mb: None,
            processes_max: None,
            env: BTreeMap::new(),
            hostname: id.to_string().chars().take(8).collect(),
        }
    }

    /// Refuses what no engine could honour: a host name the kernel or `/etc/hosts` cannot hold, a
    /// zero limit.
    pub fn validate(&self) -> Result<(), SpecError> {
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if self.hostname.is_empty()
            || self.hostname.len() > HOSTNAME_BYTES_MAX
            || !self.hostname.chars().all(letter)
        {
            return Err(SpecError::Hostname(self.hostname.clone()));
        }
        let zero = [
            ("cpus", self.cpus == Some(0)),
            ("memory_mb", self.memory_mb == Some(0)),
            ("processes_max", self.processes_max == Some(0)),
        ];
        match zero.iter().find(|(_, is_zero)| *is_zero) {
            Some((field, _)) => Err(SpecError::ZeroLimit { field }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        for bad in ["", ".", "..", "../x", "a/b", ".hidden", "A", "a b", "a\0"] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad:?}");
        }
        assert!("debian-12.5_slim".parse::<ImageName>().is_ok());
        assert!(
            "a".repeat(IMAGE_NAME_BYTES_MAX + 1)
                .parse::<ImageName>()
                .is_err()
        );
    }

    #[test]
    fn guest_paths_are_absolute_and_plain() {
        for bad in ["", "x", "/a/../b", "/a//b", "/a/", "/./a", "/a\0b"] {
            assert!(bad.parse::<GuestPath>().is_err(), "{bad:?}");
        }
        for good in ["/", "/workspace", "/srv/a b/..c"] {
            assert!(good.parse::<GuestPath>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_sandbox_id_has_one_spelling() {
        let id = SandboxId::random();
        assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
        assert!(id.to_string().to_uppercase().parse::<SandboxId>().is_err());
        assert!(id.uuid().simple().to_string().parse::<SandboxId>().is_err());
    }

    #[test]
    fn a_zero_limit_is_refused_by_name() {
        let mut spec = SandboxSpec::new(SandboxId::random());
        assert_eq!(spec.validate(), Ok(()));
        spec.memory_mb = Some(0);
        assert_eq!(
            spec.validate(),
            Err(SpecError::ZeroLimit { field: "memory_mb" })
        );
        spec.memory_mb = None;
        spec.hostname = "a\nb".to_owned();
        assert!(spec.validate().is_err());
    }
}
