//! A sandbox's own folder on the host: its layers, its socket, its record, its log, its token.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use agentd_client::AgentToken;

use super::skeleton::give_to_root;
use super::wire::{GRAFTS, SOCKET, UPPER, Users, WORK};
use crate::layers::Entry;
use crate::spec::SandboxId;

const LOG: &str = "agentd.log";
/// Where removed sandboxes wait for their files to go.
pub(super) const TRASH_PREFIX: &str = ".trash-";
/// Random bytes of a token: 256 bits.
const TOKEN_BYTES: usize = 32;
/// What a person is shown of a log.
const LOG_TAIL_BYTES: u64 = 2048;

/// The paths of one sandbox.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    token: PathBuf,
    trash: PathBuf,
}

impl Folder {
    pub(super) fn new(sandboxes_dir: &Path, secrets_dir: &Path, id: &SandboxId) -> Self {
        let name = id.to_string();
        Self {
            path: sandboxes_dir.join(&name),
            token: agents_dir(secrets_dir).join(&name),
            trash: sandboxes_dir.join(format!("{TRASH_PREFIX}{name}")),
        }
    }

    /// Makes the empty folder, for nobody but the daemon's user.
    pub(super) fn create(&self) -> io::Result<()> {
        private_folder(&self.path)
    }

    /// Makes what an overlay needs.
    pub(super) fn create_layers(&self, users: Users, root: Option<&Entry>) -> io::Result<()> {
        if matches!(users, Users::Single { .. }) {
            private_folder(&self.path.join(GRAFTS))?;
        }
        for name in [UPPER, WORK] {
            let place = self.path.join(name);
            // The upper's own mode is the mode of `/` inside.
            private_folder(&place)?;
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
            give_to_root(&place, users)?;
        }
        if let Some(root) = root {
            let place = self.path.join(UPPER);
            if matches!(users, Users::Shifted { .. }) {
                chown(&place, Some(root.uid), Some(root.gid))?;
            }
            fs::set_permissions(&place, fs::Permissions::from_mode(root.mode))?;
        }
        Ok(())
    }

    /// The socket on which the guest daemon answers. Its path is the host's alone.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// The file that takes the guest daemon's output. It is quiet by contract, so nothing rotates
    /// it.
    pub(super) fn create_log(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.path.join(LOG))
    }

    /// The end of the log, for a message.
    pub(super) fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(self.path.join(LOG))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        read().unwrap_or_default()
    }

    /// Draws a token and keeps it for a later daemon. It opens one process that ends with the
    /// machine, so it is not worth a sync.
    pub(super) fn create_token(&self) -> io::Result<AgentToken> {
        let mut bytes = [0_u8; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let text = hex::encode(bytes);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.token)?;
        file.write_all(text.as_bytes())?;
        Ok(AgentToken::new(text))
    }

    pub(super) fn read_token(&self) -> io::Result<AgentToken> {
        read_token(&self.token)
    }

    /// Keeps a copy of the token, for a guest daemon that comes back with it.
    pub(super) fn keep_token(&self, copy: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(copy)?;
        file.write_all(self.read_token()?.expose().as_bytes())
    }

    pub(super) fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Takes the folder and the token out of sight in one step each. Returns where the files wait
    /// to be removed.
    pub(super) fn discard(&self) -> io::Result<Option<PathBuf>> {
        ignore_missing(fs::remove_file(&self.token))?;
        match fs::rename(&self.path, &self.trash) {
            Ok(()) => Ok(Some(self.trash.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // An earlier removal of the same id was interrupted.
            Err(error) if self.trash.exists() => {
                super::tree::remove_tree(&self.trash)?;
                fs::rename(&self.path, &self.trash).map_err(|_| error)?;
                Ok(Some(self.trash.clone()))
            }
            Err(error) => Err(error),
        }
    }
}

/// Where tokens are kept.
pub(super) fn agents_dir(secrets_dir: &Path) -> PathBuf {
    secrets_dir.join("agents")
}

/// Makes a folder for nobody but this user.
pub(super) fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads a token.
pub(super) fn read_token(path: &Path) -> io::Result<AgentToken> {
    let text = fs::read_to_string(path)?;
    if text.len() == 2 * TOKEN_BYTES {
        Ok(AgentToken::new(text))
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the token is cut short",
        ))
    }
}
