//! Destroying the key of a sealed stream.
//!
//! ```text
//! 1  the events that record it, and the note that the key is to go: one batch, durable
//! 2  from here on everything that was sealed with it reads as erased
//! 3  the key's file is overwritten, and a line that says so is put in its place, durable
//! ```
//!
//! A crash between the first step and the third leaves a key that the next opening destroys. Nothing
//! of the store or of the archive is written anew: what is left in them, and in every copy that was
//! ever made of them, is noise.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use fluxvm_verify::StreamName;
use tokio::sync::oneshot;

use crate::Append;
use crate::AppendError;
use crate::Appended;
use crate::committer::Committer;
use crate::group::Group;
use crate::prepare::Prepared;

/// Which stream's key is to be destroyed, and the events that say so.
#[derive(Clone, Debug)]
pub struct Shred {
    /// The stream.
    pub stream: StreamName,
    /// What is recorded first. It must not be sealed with the key that goes. Its `command_id` makes it
    /// happen once.
    pub append: Append,
}

/// Why no key was destroyed, unless the ledger is poisoned: then it is not known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ShredError {
    /// The stream is not sealed, or its key was destroyed before.
    #[error("stream {stream} has no key")]
    NoKey {
        /// The stream.
        stream: StreamName,
    },
    /// What was to be recorded of it was refused.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Where the answer goes.
pub(crate) type ShredReply = oneshot::Sender<Result<Appended, ShredError>>;

/// The same as the committer gets it.
pub(crate) struct PreparedShred {
    pub(crate) stream: StreamName,
    pub(crate) append: Prepared,
}

impl Committer {
    /// Destroys and answers. Whatever had queued up before is committed already.
    pub(crate) fn shred(&mut self, shred: PreparedShred, reply: ShredReply) {
        let answer = catch_unwind(AssertUnwindSafe(|| self.try_shred(shred)));
        let answer = answer.unwrap_or_else(|_| {
            let reason = "the committer or its observer panicked";
            Err(self.poisoned_by(reason).into())
        });
        // Who no longer waits has it destroyed all the same.
        let _ = reply.send(answer);
    }

    fn try_shred(&mut self, shred: PreparedShred) -> Result<Appended, ShredError> {
        let PreparedShred { stream, append } = shred;
        if let Some(earlier) = {
            let group = Group::new(self.head, self.last_recorded_at);
            self.earlier_result(append.command_id, &group)?
        } {
            return Ok(earlier);
        }
        let no_key = ShredError::NoKey {
            stream: stream.clone(),
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let seals = shared.blobs.seals().ok_or_else(|| no_key.clone())?;
        let recorded_by = self.head.position.next_seq();
        let note = seals.note_destroyed(&stream, recorded_by);
        let note = note.ok_or(no_key)?;
        let mut group = Group::new(self.head, self.last_recorded_at);
        let appended = self.admit(append, &mut group)?;
        group.writes.push(note);
        let poisoned = |reason: String| AppendError::Poisoned { reason };
        self.make_durable(group).map_err(poisoned)?;
        let destroyed = seals.destroy(&stream);
        let forgotten = self.shared.snapshots.forget_all();
        forgotten.map_err(|e| self.poisoned_by(&format!("snapshots cannot be removed: {e}")))?;
        self.shared.memory_mut().forget_tail();
        destroyed.map_err(|e| {
            self.poisoned_by(&format!("the key of stream {stream} is not destroyed: {e}"))
        })?;
        Ok(appended)
    }
}
