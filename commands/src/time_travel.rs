//! Commands that capture a session's state, go back to one, and make children of one.

use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use crate::answer::CheckpointAnswer;
use crate::answer::ForkAnswer;
use crate::answer::RestoreAnswer;
use crate::answer::RewindAnswer;
use crate::caller::Caller;
use crate::checkpoint;
use crate::engine::Engine;
use crate::error::CommandError;
use crate::fork;
use crate::request::Checkpoint;
use crate::request::ConfigureRewind;
use crate::request::Fork;
use crate::request::Restore;
use crate::request::RewindTo;
use crate::restore;
use crate::rewind;

impl Engine {
    /// Captures the session's state under a tag. Commands may run meanwhile.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `Busy`, `RevisionDiffers`, `TagTaken`, `Full`, `NotSupported`
    /// and `MemoryImpossible` before anything happened; `MemoryImpossible`, `Snapshot` and `SnapshotLate`
    /// when it could not be captured, with nothing of it left; `Ledger`.
    pub async fn take_checkpoint(
        &self,
        caller: &Caller,
        id: SessionId,
        request: Checkpoint,
    ) -> Result<CheckpointAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            inner.check_room()?;
            checkpoint::take(&inner, &caller, id, request).await
        })
        .await
    }

    /// Lets go of a checkpoint.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Busy`, `TagNotFound`, `Ledger`.
    pub async fn delete_checkpoint(
        &self,
        caller: &Caller,
        id: SessionId,
        tag: String,
    ) -> Result<(), CommandError> {
        self.run(caller, move |inner, caller| async move {
            checkpoint::delete(&inner, &caller, id, &tag).await
        })
        .await
    }

    /// Goes back to one of the session's own checkpoints. A session whose sandbox ended by itself runs
    /// again after it.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `Busy`, `CommandsRunning`, `RevisionDiffers`, `TagNotFound`
    /// and `NotSupported` before anything happened; `Revive` and `SnapshotLate` when the state could not
    /// be brought back, with the session as it was; `Ledger`.
    pub async fn restore(
        &self,
        caller: &Caller,
        id: SessionId,
        request: Restore,
    ) -> Result<RestoreAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            restore::restore(&inner, &caller, id, request).await
        })
        .await
    }

    /// Makes children of the session, all or none.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `Busy`, `CommandsRunning`, `RevisionDiffers`, `TagNotFound`,
    /// `Full`, `CannotFork`, `MemoryImpossible` and `InsufficientStorage` before anything happened; `Snapshot`, `Revive` and
    /// `SnapshotLate` when a child could not be made, with none of them left; `Ledger`.
    pub async fn fork(
        &self,
        caller: &Caller,
        id: SessionId,
        request: Fork,
    ) -> Result<ForkAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            inner.check_room()?;
            fork::fork(&inner, &caller, id, request).await
        })
        .await
    }

    /// Changes whether, when and how the session takes points by itself.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `NotSupported`, `RingFull`, `Ledger`.
    pub async fn configure_rewind(
        &self,
        caller: &Caller,
        id: SessionId,
        request: ConfigureRewind,
    ) -> Result<Session, CommandError> {
        self.run(caller, move |inner, caller| async move {
            rewind::configure(&inner, &caller, id, request).await
        })
        .await
    }

    /// Keeps a point, or no longer.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `TagNotFound`, `RingFull`, `Ledger`.
    pub async fn pin_point(
        &self,
        caller: &Caller,
        id: SessionId,
        tag: String,
        pinned: bool,
    ) -> Result<Session, CommandError> {
        self.run(caller, move |inner, caller| async move {
            rewind::pin(&inner, &caller, id, &tag, pinned).await
        })
        .await
    }

    /// Goes back to an earlier point. The state of now stays, so that it can be come back to.
    ///
    /// # Errors
    ///
    /// As [`Self::restore`], and `NoSuchStep`.
    pub async fn undo(
        &self,
        caller: &Caller,
        id: SessionId,
        to: RewindTo,
    ) -> Result<RewindAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            rewind::undo(&inner, &caller, id, to).await
        })
        .await
    }

    /// Goes to a point that was undone.
    ///
    /// # Errors
    ///
    /// As [`Self::undo`].
    pub async fn redo(
        &self,
        caller: &Caller,
        id: SessionId,
        to: RewindTo,
    ) -> Result<RewindAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            rewind::redo(&inner, &caller, id, to).await
        })
        .await
    }
}
