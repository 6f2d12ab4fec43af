//! A snapshot as a file: written aside, synced and renamed, and believed only as a whole.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_verify::EventHash;
use fluxvm_verify::Position;

use super::Snapshots;
use crate::Head;
use crate::files;

const MAGIC: [u8; 8] = *b"FXSNAP\0\x01";
const EXTENSION: &str = ".snapshot";
const UNFINISHED: &str = ".tmp";
/// Bytes in front of what the check covers.
const LEAD_BYTES: usize = 8 + 32;
/// Bytes between the check and the ledger's part.
const FIXED_BYTES: usize = 32 + 40 + 8 + 32;
/// How many are kept: the newest, and one more in case that one is spoilt.
const KEPT_MAX: usize = 2;

/// What a snapshot holds.
pub(super) struct Contents {
    pub(super) genesis: EventHash,
    pub(super) head: Head,
    pub(super) redactions: u64,
    pub(super) version: [u8; 32],
    pub(super) state: Vec<u8>,
    pub(super) follower: Vec<u8>,
}

/// The bytes of a file whose check holds, and where its parts are.
pub(super) struct Read {
    bytes: Vec<u8>,
    pub(super) genesis: EventHash,
    pub(super) head: Head,
    pub(super) redactions: u64,
    pub(super) version: [u8; 32],
    state_bytes: usize,
}

impl Read {
    /// The ledger's part.
    pub(super) fn state(&self) -> &[u8] {
        let start = LEAD_BYTES + FIXED_BYTES + 8;
        self.bytes
            .get(start..start + self.state_bytes)
            .unwrap_or_default()
    }

    /// The follower's part.
    pub(super) fn follower(&self) -> &[u8] {
        let start = LEAD_BYTES + FIXED_BYTES + 8 + self.state_bytes + 8;
        self.bytes.get(start..).unwrap_or_default()
    }
}

impl Snapshots {
    /// Where the one that was taken at this event lies.
    pub(super) fn path(&self, at: Position) -> PathBuf {
        self.dir.join(format!("{:020}{EXTENSION}", at.get()))
    }

    /// The files, those with the largest numbers first.
    pub(crate) fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = self.names()?;
        names.retain(|name| name.ends_with(EXTENSION));
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names.iter().map(|name| self.dir.join(name)).collect())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    /// Writes one, durably, and removes those that are now too many.
    pub(super) fn write(&self, contents: &Contents) -> io::Result<()> {
        files::create_private_dir(&self.dir, &*self.disk)?;
        let path = self.path(contents.head.position);
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(UNFINISHED);
        let unfinished = PathBuf::from(unfinished);
        let written = self.write_aside(contents, &unfinished);
        if let Err(error) = written {
            // On a disk that is full it must not take what is left. There may be no such file.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        fs::rename(&unfinished, &path)?;
        files::sync_path(&self.dir, &*self.disk)?;
        for older in self.files()?.iter().skip(KEPT_MAX) {
            fs::remove_file(older)?;
        }
        Ok(())
    }

    fn write_aside(&self, contents: &Contents, unfinished: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(unfinished)?;
        let head = head_bytes(contents);
        let state_bytes = length(&contents.state);
        let follower_bytes = length(&contents.follower);
        let parts: [&[u8]; 5] = [
            &head,
            &state_bytes,
            &contents.state,
            &follower_bytes,
            &contents.follower,
        ];
        let mut check = blake3::Hasher::new_keyed(&self.key());
        parts.iter().for_each(|part| {
            check.update(part);
        });
        file.write_all(&MAGIC)?;
        file.write_all(check.finalize().as_bytes())?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        self.disk.sync_all(&file)
    }

    /// Reads one; an error says why it is not to be believed.
    pub(super) fn read(&self, path: &PathBuf) -> Result<Read, String> {
        let bytes = fs::read(path).map_err(|e| e.to_string())?;
        let rest = bytes.strip_prefix(&MAGIC).ok_or("it is no snapshot")?;
        let (check, covered) = rest.split_first_chunk::<32>().ok_or("it is cut off")?;
        // The comparison of two hashes of this kind takes the same time whatever they are.
        if blake3::keyed_hash(&self.key(), covered) != *check {
            return Err("it is damaged, or was not made with the ledger's key".to_owned());
        }
        let parsed = parse(covered).ok_or("its parts do not have their lengths")?;
        Ok(Read { bytes, ..parsed })
    }

    /// Removes all of them, durably, because something that they may hold was erased.
    pub(crate) fn forget_all(&self) -> io::Result<()> {
        let names = self.names()?;
        for name in &names {
            fs::remove_file(self.dir.join(name))?;
        }
        match names.is_empty() {
            true => Ok(()),
            false => files::sync_path(&self.dir, &*self.disk),
        }
    }

    /// Removes those that cannot be used and what was not finished.
    pub(crate) fn remove(&self, unusable: &[PathBuf]) {
        let names = self.names().unwrap_or_default();
        let unfinished = names.iter().filter(|name| name.ends_with(UNFINISHED));
        let unfinished = unfinished.map(|name| self.dir.join(name));
        for path in unfinished.chain(unusable.iter().cloned()) {
            if let Err(error) = fs::remove_file(&path) {
                let path = path.display();
                tracing::warn!(%path, %error, "a snapshot that is of no use cannot be removed");
            }
        }
    }
}

fn head_bytes(contents: &Contents) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED_BYTES);
    out.extend_from_slice(contents.genesis.as_bytes());
    out.extend_from_slice(&contents.head.position.get().to_be_bytes());
    out.extend_from_slice(contents.head.hash.as_bytes());
    out.extend_from_slice(&contents.redactions.to_be_bytes());
    out.extend_from_slice(&contents.version);
    out
}

fn length(part: &[u8]) -> [u8; 8] {
    u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes()
}

/// Finds the parts behind the check.
fn parse(covered: &[u8]) -> Option<Read> {
    let (genesis, rest) = covered.split_first_chunk::<32>()?;
    let (seq, rest) = rest.split_first_chunk::<8>()?;
    let (hash, rest) = rest.split_first_chunk::<32>()?;
    let (redactions, rest) = rest.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<32>()?;
    let (state_bytes, rest) = rest.split_first_chunk::<8>()?;
    let state_bytes = usize::try_from(u64::from_be_bytes(*state_bytes)).ok()?;
    let (_, rest) = rest.split_at_checked(state_bytes)?;
    let (follower_bytes, rest) = rest.split_first_chunk::<8>()?;
    (length(rest) == *follower_bytes).then_some(Read {
        bytes: Vec::new(),
        genesis: EventHash::from_bytes(*genesis),
        head: Head {
            position: Position::new(u64::from_be_bytes(*seq)),
            hash: EventHash::from_bytes(*hash),
        },
        redactions: u64::from_be_bytes(*redactions),
        version: *version,
        state_bytes,
    })
}
