//! What can be asked of jobs, as tasks of their own: a caller that stops waiting stops nothing.

use fluxvm_projections::Job;
use fluxvm_projections::JobId;
use fluxvm_projections::SessionId;

use super::InputTaken;
use super::SignalSent;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::CommandError;
use crate::request::JobInput;
use crate::request::StartJob;

impl Engine {
    /// Starts a job in a session and answers when it runs.
    ///
    /// # Errors
    ///
    /// As [`Self::exec`], of what happens before a command runs.
    pub async fn start_job(
        &self,
        caller: &Caller,
        id: SessionId,
        request: StartJob,
    ) -> Result<Job, CommandError> {
        self.run(caller, move |inner, caller| async move {
            super::start(&inner, &caller, id, request).await
        })
        .await
    }

    /// Writes to a job's standard input. A job that does not read takes fewer bytes than were sent, unless
    /// they come as a stream.
    ///
    /// # Errors
    ///
    /// `Invalid` for too many bytes at once, for an `offset` behind what the job took and for a stream that
    /// broke off, `NotFound`, `NotRunning`, `Busy`, `JobNotFound`, `JobEnded`,
    /// `StdinClosed`, `ExecFailed` when the guest does not answer, `Ledger`.
    pub async fn write_to_job(
        &self,
        caller: &Caller,
        id: SessionId,
        job: JobId,
        input: JobInput,
    ) -> Result<InputTaken, CommandError> {
        self.run(caller, move |inner, caller| async move {
            super::input::write(&inner, &caller, id, job, input).await
        })
        .await
    }

    /// Sends a signal to all processes of a job; TERM when none is named.
    ///
    /// # Errors
    ///
    /// `Invalid` for a signal that is not known, `NotFound`, `NotRunning`, `Busy`, `JobNotFound`,
    /// `JobEnded`, `Ledger`.
    pub async fn kill_job(
        &self,
        caller: &Caller,
        id: SessionId,
        job: JobId,
        signal: Option<String>,
    ) -> Result<SignalSent, CommandError> {
        self.run(caller, move |inner, caller| async move {
            super::kill::kill(&inner, &caller, id, job, signal.as_deref()).await
        })
        .await
    }
}
