//! The state folder: made private, checked, locked, and where it says how to reach the daemon.
//!
//! What it refuses: a folder of another user or that others can write, a secret that others can read, a
//! second daemon. Whatever it writes, it writes beside and renames, so that a reader or a crash never
//! meets half a file.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::Flock;
use nix::fcntl::FlockArg;
use serde::Serialize;

/// What every admin token starts with, so that a leaked one is recognised.
const ADMIN_TOKEN_PREFIX: &str = "fxad_";

/// Random bytes of an admin token.
const ADMIN_TOKEN_BYTES: usize = 32;

/// How deep secrets are looked through: `secrets/agents/<file>`.
const SECRETS_DEPTH_MAX: usize = 4;

/// A locked state folder. The lock goes with the value, and with the process however that ends.
#[derive(Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
    _lock: Flock<File>,
}

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// Another daemon has it.
    #[error("another fluxvmd{} holds the state folder {}; stop it, or name another folder with --state-dir",
        holder.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default(), root.display())]
    Held {
        /// The folder.
        root: PathBuf,
        /// The process that holds it, as far as is known.
        holder: Option<String>,
    },
    /// Others could change or read what they must not.
    #[error("{}: {reason}", path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// How to reach the daemon, for clients on this machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reach {
    /// Its address.
    pub(crate) url: String,
    /// The file with the admin token; `null` under open access.
    pub(crate) token_file: Option<PathBuf>,
    /// Its process.
    pub(crate) pid: u32,
}

impl StateDir {
    /// Makes the folder if there is none, checks it and locks it.
    pub(crate) fn open(root: &Path) -> Result<Self, StateError> {
        private_dir(root)?;
        let root = fs::canonicalize(root).map_err(|source| io_error(root, source))?;
        check_owner(
            &root,
            0o022,
            "others can write this folder; `chmod go-w` it",
        )?;
        let lock = lock(&root)?;
        let state = Self { root, _lock: lock };
        private_dir(&state.secrets_dir())?;
        check_secrets(&state.secrets_dir(), 0)?;
        // What a daemon that was killed left behind must not send anyone to a dead address.
        state.forget_reach()?;
        Ok(state)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn secrets_dir(&self) -> PathBuf {
        self.root.join("secrets")
    }

    pub(crate) fn admin_token_file(&self) -> PathBuf {
        self.secrets_dir().join("admin-token")
    }

    /// The admin token, which is made at the first start.
    pub(crate) fn admin_token(&self) -> Result<String, StateError> {
        let path = self.admin_token_file();
        match fs::read_to_string(&path) {
            Ok(text) => known_token(&path, text.trim()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let token =
                    mint().map_err(|error| io_error(&path, io::Error::other(error.to_string())))?;
                write_private(&path, format!("{token}\n").as_bytes())?;
                Ok(token)
            }
            Err(source) => Err(io_error(&path, source)),
        }
    }

    /// Says how to reach the daemon, now that it answers.
    pub(crate) fn announce(&self, reach: &Reach) -> Result<(), StateError> {
        let path = self.root.join("daemon.json");
        let mut bytes =
            serde_json::to_vec(reach).map_err(|error| io_error(&path, io::Error::other(error)))?;
        bytes.push(b'\n');
        write_private(&path, &bytes)
    }

    /// Takes that back.
    pub(crate) fn forget_reach(&self) -> Result<(), StateError> {
        let path = self.root.join("daemon.json");
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(&path, source)),
            _ => Ok(()),
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> StateError {
    StateError::Io {
        path: path.to_owned(),
        source,
    }
}

fn private_dir(path: &Path) -> Result<(), StateError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| io_error(path, source))
}

fn check_owner(path: &Path, forbidden: u32, advice: &str) -> Result<(), StateError> {
    let refused = |reason: String| StateError::Unsafe {
        path: path.to_owned(),
        reason,
    };
    let metadata = fs::symlink_metadata(path).map_err(|source| io_error(path, source))?;
    let own = nix::unistd::geteuid().as_raw();
    if metadata.uid() != own {
        return Err(refused(format!(
            "belongs to user {}, not to {own}",
            metadata.uid()
        )));
    }
    if metadata.mode() & forbidden != 0 {
        return Err(refused(advice.to_owned()));
    }
    Ok(())
}

fn check_secrets(path: &Path, depth: usize) -> Result<(), StateError> {
    let metadata = fs::symlink_metadata(path).map_err(|source| io_error(path, source))?;
    if metadata.is_symlink() {
        let reason = "a link among the secrets; put the file itself there".to_owned();
        return Err(StateError::Unsafe {
            path: path.to_owned(),
            reason,
        });
    }
    check_owner(path, 0o077, "others can get at this secret; `chmod go=` it")?;
    if !metadata.is_dir() || depth >= SECRETS_DEPTH_MAX {
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(|source| io_error(path, source))? {
        check_secrets(
            &entry.map_err(|source| io_error(path, source))?.path(),
            depth + 1,
        )?;
    }
    Ok(())
}

fn lock(root: &Path) -> Result<Flock<File>, StateError> {
    let path = root.join("lock");
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let file = options
        .open(&path)
        .map_err(|source| io_error(&path, source))?;
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            let known = file.read_to_string(&mut holder).is_ok();
            let holder = Some(holder.trim().to_owned()).filter(|pid| known && !pid.is_empty());
            return Err(StateError::Held {
                root: root.to_owned(),
                holder,
            });
        }
        Err((_, errno)) => return Err(io_error(&path, errno.into())),
    };
    // Who holds it is only told for the error message of the next one.
    lock.set_len(0)
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .map_err(|source| io_error(&path, source))?;
    Ok(lock)
}

fn mint() -> Result<String, getrandom::Error> {
    let mut random = [0_u8; ADMIN_TOKEN_BYTES];
    getrandom::fill(&mut random)?;
    Ok(format!("{ADMIN_TOKEN_PREFIX}{}", hex::encode(random)))
}

fn known_token(path: &Path, token: &str) -> Result<String, StateError> {
    let digits = token.strip_prefix(ADMIN_TOKEN_PREFIX).unwrap_or_default();
    let whole = digits.len() == 2 * ADMIN_TOKEN_BYTES;
    if !whole || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let reason = "holds no admin token; remove it and a new one is made".to_owned();
        return Err(StateError::Unsafe {
            path: path.to_owned(),
            reason,
        });
    }
    Ok(token.to_owned())
}

/// Writes a file that only we can read, whole or not at all.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        path.parent()
            .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    })();
    written.map_err(|source| io_error(path, source))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("exists").mode() & 0o777
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn the_first_start_makes_everything_private_and_the_second_finds_the_same_token() {
        let temp = tempfile::tempdir().expect("folder");
        let root = temp.path().join("a/state");
        let state = StateDir::open(&root).expect("opened");
        let token = state.admin_token().expect("minted");
        assert!(
            token.starts_with("fxad_") && token.len() == 5 + 64,
            "{token}"
        );
        assert_eq!((mode(&root), mode(&state.secrets_dir())), (0o700, 0o700));
        assert_eq!(mode(&state.admin_token_file()), 0o600);
        drop(state);
        let state = StateDir::open(&root).expect("opened again");
        assert_eq!(state.admin_token().expect("read"), token);
    }

    #[test]
    fn a_second_daemon_is_told_who_holds_the_folder() {
        let temp = tempfile::tempdir().expect("folder");
        let _first = StateDir::open(temp.path()).expect("opened");
        let error = StateDir::open(temp.path()).expect_err("held");
        assert!(matches!(error, StateError::Held { .. }), "{error}");
        assert!(
            error.to_string().contains(&std::process::id().to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let temp = tempfile::tempdir().expect("folder");
        let state = StateDir::open(temp.path()).expect("opened");
        state.admin_token().expect("minted");
        let token_file = state.admin_token_file();
        drop(state);
        chmod(&token_file, 0o640);
        let error = StateDir::open(temp.path())
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("admin-token") && error.contains("chmod"),
            "{error}"
        );
        chmod(&token_file, 0o600);
        chmod(temp.path(), 0o777);
        let error = StateDir::open(temp.path())
            .expect_err("refused")
            .to_string();
        assert!(error.contains("others can write"), "{error}");
    }

    #[test]
    fn how_to_reach_the_daemon_is_there_only_while_it_runs() {
        let temp = tempfile::tempdir().expect("folder");
        let state = StateDir::open(temp.path()).expect("opened");
        let file = temp.path().join("daemon.json");
        let reach = Reach {
            url: "http://127.0.0.1:1".into(),
            token_file: None,
            pid: 7,
        };
        state.announce(&reach).expect("written");
        let text = fs::read_to_string(&file).expect("there");
        assert_eq!(
            text,
            "{\"url\":\"http://127.0.0.1:1\",\"token_file\":null,\"pid\":7}\n"
        );
        drop(state);
        let _state = StateDir::open(temp.path()).expect("after a crash");
        assert!(!file.exists());
    }
}
