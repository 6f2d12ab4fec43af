//! Where signed checkpoints are pushed, so that they are held by someone else.
//!
//! Nothing inside a ledger can show that its end was cut off. A checkpoint that lies elsewhere can.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use fluxvm_verify::SignedCheckpoint;
use tokio::sync::watch;

use crate::Environment;
use crate::files;

/// Takes checkpoints and keeps them somewhere else. Blocks for as long as that takes.
pub trait CheckpointSink: Send + Sync {
    /// Keeps one. The same one may come twice, after a restart for instance.
    fn push(&self, checkpoint: &SignedCheckpoint) -> io::Result<()>;
}

/// Keeps checkpoints in a folder, on other storage for instance: a file for each, named by its
/// size with as many digits as a size can have, so that the names sort as the sizes do.
#[derive(Clone)]
pub struct FolderSink {
    dir: PathBuf,
    environment: Environment,
}

impl FolderSink {
    /// A sink that keeps them in `dir`, which is made if it is not there.
    pub fn new(dir: PathBuf) -> FolderSink {
        FolderSink {
            dir,
            environment: Environment::default(),
        }
    }
}

impl CheckpointSink for FolderSink {
    fn push(&self, checkpoint: &SignedCheckpoint) -> io::Result<()> {
        let disk = &*self.environment.disk;
        files::create_private_dir(&self.dir, disk)?;
        let name = format!("{:020}.checkpoint", checkpoint.size().get());
        let path = self.dir.join(&name);
        let note = checkpoint.to_string();
        if let Ok(kept) = fs::read_to_string(&path) {
            return match kept == note {
                true => Ok(()),
                // What was kept is evidence, and is not replaced by what contradicts it.
                false => Err(io::Error::other(format!("{name} holds another checkpoint"))),
            };
        }
        let unfinished = self.dir.join(format!("{name}.tmp"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o644);
        let mut file = options.open(&unfinished)?;
        file.write_all(note.as_bytes())?;
        disk.sync_all(&file)?;
        fs::rename(&unfinished, &path)?;
        files::sync_path(&self.dir, disk)
    }
}

/// Pushes the newest checkpoint into the sink whenever there is a newer one, until the ledger
/// closes. A push that fails is told to `failed` and tried again with the next checkpoint, which
/// says all that the one before it said.
pub async fn push_checkpoints(
    mut checkpoints: watch::Receiver<Option<Arc<SignedCheckpoint>>>,
    sink: Arc<dyn CheckpointSink>,
    failed: impl Fn(io::Error) + Send,
) {
    loop {
        let newest = checkpoints.borrow_and_update().clone();
        if let Some(newest) = newest {
            let sink = Arc::clone(&sink);
            let pushed = tokio::task::spawn_blocking(move || sink.push(&newest)).await;
            if let Err(e) = pushed.unwrap_or_else(|e| Err(io::Error::other(e))) {
                failed(e);
            }
        }
        if checkpoints.changed().await.is_err() {
            return;
        }
    }
}
