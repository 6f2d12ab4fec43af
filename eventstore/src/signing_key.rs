//! The key that speaks for the ledger.
//!
//! An Ed25519 key, made at the first start. Its public half stands in the genesis, so every event
//! hash depends on it; what it signs are checkpoints. It can be handed on to a new key, which lies
//! beside it until the ledger names it. The file and the verifier key have the forms that signed
//! notes use everywhere:
//!
//! ```text
//! file  PRIVATE+KEY+<origin>+<id>+<base64( 0x01 ‖ seed 32 )>
//! vkey  <origin>+<id>+<base64( 0x01 ‖ public key 32 )>
//! id    the first four bytes of SHA-256( origin ‖ "\n" ‖ 0x01 ‖ public key ), hexadecimal
//! ```

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;
use ed25519_dalek::SigningKey;
use fluxvm_verify::NoteSignature;
use fluxvm_verify::SignedNote;
use fluxvm_verify::VerifierKey;
use sha2::Digest as _;
use sha2::Sha256;

use crate::Environment;
use crate::OpenError;
use crate::files;

/// Signed notes number the kinds of keys: this is Ed25519.
const ED25519: u8 = 1;
const PREFIX: &str = "PRIVATE+KEY+";
/// A key file is a line of some three hundred bytes; anything longer is something else.
const FILE_BYTES_MAX: u64 = 4096;

/// The BLAKE3 context of the key of snapshots.
const SNAPSHOT_CONTEXT: &str = "fluxvm ledger v1 snapshot";

/// The private half, with the key that verifies what it signs.
pub(crate) struct Signer {
    signing: SigningKey,
    vkey: VerifierKey,
}

impl Signer {
    fn new(origin: &str, seed: &[u8; 32]) -> Option<Signer> {
        let signing = SigningKey::from_bytes(seed);
        let vkey = VerifierKey::new(origin, signing.verifying_key().as_bytes()).ok()?;
        Some(Signer { signing, vkey })
    }

    /// The key that verifies what this one signs.
    pub(crate) fn vkey(&self) -> &VerifierKey {
        &self.vkey
    }

    /// A note of this text, signed.
    pub(crate) fn sign_note(&self, text: String) -> SignedNote {
        let signature = NoteSignature {
            name: self.vkey.name().to_owned(),
            id: self.vkey.id(),
            signature: self.signing.sign(text.as_bytes()).to_bytes().to_vec(),
        };
        SignedNote::new(text, vec![signature])
    }

    /// What snapshots are made with: whoever has this key has it, and nobody else.
    pub(crate) fn snapshot_key(&self) -> [u8; 32] {
        blake3::derive_key(SNAPSHOT_CONTEXT, self.signing.as_bytes())
    }

    /// A signature by itself.
    pub(crate) fn sign_base64(&self, message: &[u8]) -> String {
        BASE64.encode(self.signing.sign(message).to_bytes())
    }
}

/// The verifier key of the key in `path`.
pub(crate) fn load(path: &Path) -> Result<String, OpenError> {
    load_signer(path).map(|signer| signer.vkey.to_string())
}

/// The key in `path`.
pub(crate) fn load_signer(path: &Path) -> Result<Signer, OpenError> {
    let refused = |reason| OpenError::SigningKey {
        path: path.to_owned(),
        reason,
    };
    let metadata = fs::metadata(path).map_err(OpenError::io(path))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(refused(
            "others than its owner may use it: `chmod 600` it, or make a new one",
        ));
    }
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(refused("it is not a key file"));
    }
    let text = fs::read_to_string(path).map_err(OpenError::io(path))?;
    let (origin, seed) = parse(text.trim_end()).ok_or(refused("it is not an Ed25519 note key"))?;
    let public = SigningKey::from_bytes(&seed).verifying_key().to_bytes();
    if text.trim_end() != key_line(origin, &key_id(origin, &public), &seed) {
        return Err(refused("its identifier is not that of the key"));
    }
    Signer::new(origin, &seed).ok_or(refused("its origin could not stand in a note"))
}

/// Where the next key lies until the ledger names it.
fn next_path(path: &Path) -> PathBuf {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    next.into()
}

/// Makes the key that is to follow the one in `path`, durable beside it.
pub(crate) fn create_next(
    path: &Path,
    origin: &str,
    environment: &Environment,
) -> Result<Signer, OpenError> {
    let next = next_path(path);
    remove_if_there(&next)?;
    create(&next, origin, environment)?;
    load_signer(&next)
}

/// Leaves the key that the ledger names in `path`, and none beside it: a rotation that was cut off
/// is finished where the ledger names the next key and undone where it does not.
pub(crate) fn settle(
    path: &Path,
    ledgers_vkey: &str,
    environment: &Environment,
) -> Result<(), OpenError> {
    let next = next_path(path);
    if !next.exists() {
        return Ok(());
    }
    // Half a file is one that no event can name: it is durable before the event is.
    let is_named = load(&next).is_ok_and(|vkey| vkey == ledgers_vkey);
    match is_named {
        true => fs::rename(&next, path).map_err(OpenError::io(path))?,
        false => remove_if_there(&next)?,
    }
    let dir = files::parent_of(path);
    files::sync_path(&dir, &*environment.disk).map_err(OpenError::io(dir))
}

fn remove_if_there(path: &Path) -> Result<(), OpenError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(OpenError::io(path)(e)),
        _ => Ok(()),
    }
}

/// Makes a key for `origin` in `path`, durable before anything depends on it, and returns its
/// verifier key. The file must not exist.
pub(crate) fn create(
    path: &Path,
    origin: &str,
    environment: &Environment,
) -> Result<String, OpenError> {
    let mut seed = [0; 32];
    environment
        .entropy
        .fill(&mut seed)
        .map_err(OpenError::io(path))?;
    let public = SigningKey::from_bytes(&seed).verifying_key().to_bytes();
    let line = format!("{}\n", key_line(origin, &key_id(origin, &public), &seed));
    write_private(path, line.as_bytes(), environment).map_err(OpenError::io(path))?;
    Ok(verifier_key(origin, &public))
}

fn write_private(path: &Path, bytes: &[u8], environment: &Environment) -> io::Result<()> {
    let dir = files::parent_of(path);
    files::create_private_dir(&dir, &*environment.disk)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(bytes)?;
    environment.disk.sync_all(&file)?;
    // A link fails where the file exists by now, a rename would replace it.
    fs::hard_link(&unfinished, path)?;
    fs::remove_file(&unfinished)?;
    files::sync_path(&dir, &*environment.disk)
}

fn parse(line: &str) -> Option<(&str, [u8; 32])> {
    let mut fields = line.strip_prefix(PREFIX)?.splitn(3, '+');
    let (origin, _id, key) = (fields.next()?, fields.next()?, fields.next()?);
    match BASE64.decode(key).ok()?.split_first()? {
        (&ED25519, seed) => Some((origin, seed.try_into().ok()?)),
        _ => None,
    }
}

fn key_line(origin: &str, id: &str, seed: &[u8; 32]) -> String {
    format!(
        "{PREFIX}{origin}+{id}+{}",
        BASE64.encode([&[ED25519], seed.as_slice()].concat())
    )
}

fn verifier_key(origin: &str, public: &[u8; 32]) -> String {
    let key = BASE64.encode([&[ED25519], public.as_slice()].concat());
    format!("{origin}+{}+{key}", key_id(origin, public))
}

fn key_id(origin: &str, public: &[u8; 32]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(origin.as_bytes());
    hasher.update([b'\n', ED25519]);
    hasher.update(public);
    hex::encode(
        hasher
            .finalize()
            .first_chunk::<4>()
            .copied()
            .unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_published_note_key_gives_its_published_verifier_key() {
        // The example pair in the documentation of Go's golang.org/x/mod/sumdb/note.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(
            &path,
            "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz\n",
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let vkey = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
        assert_eq!(load(&path).unwrap(), vkey);
    }

    #[test]
    fn a_new_key_is_private_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets/key");
        let environment = Environment::default();
        let vkey = create(&path, "flux.example", &environment).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(load(&path).unwrap(), vkey);
        assert!(
            create(&path, "flux.example", &environment).is_err(),
            "it was replaced"
        );
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path, "flux.example", &Environment::default()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(load(&path), Err(OpenError::SigningKey { .. })));
    }

    #[test]
    fn a_damaged_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path, "flux.example", &Environment::default()).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() - 1 {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(load(&path).is_err(), "byte {at}");
        }
    }
}
