//! The event vocabulary of fluxvm and the pure folds over it.
//!
//! [`Event`] names everything that can be recorded; [`World`] is what all recorded events add up to.
//! A projection sees events and nothing else: no clock, no randomness, no environment, no I/O. Times
//! and ids come out of the events, and every output is ordered, so that two replays of one ledger give
//! byte-identical state. Nothing here decides anything: rules live in `fluxvm-commands`.

mod envelope;
mod event;
mod holds;
mod idempotency;
mod ids;
mod sessions;
mod snapshot;
mod world;

pub use envelope::DecodeError;
pub use envelope::Envelope;
pub use event::Event;
pub use event::exec::ExecCompleted;
pub use event::exec::ExecFailed;
pub use event::exec::ExecRefused;
pub use event::exec::ExecStarted;
pub use event::exec::OutputRecord;
pub use event::exec::SurvivorRecord;
pub use event::exec::Survivors;
pub use event::host::HostReconciled;
pub use event::host::HostStarted;
pub use event::host::HostStopped;
pub use event::idempotency::IdempotencyAnswered;
pub use event::idempotency::IdempotencyClaimed;
pub use event::idempotency::IdempotencyReleased;
pub use event::ledger::HoldScope;
pub use event::ledger::IdempotencyErased;
pub use event::ledger::LedgerHold;
pub use event::ledger::LedgerHoldReleased;
pub use event::ledger::LedgerKeyRotated;
pub use event::ledger::LedgerRedactRefused;
pub use event::ledger::LedgerRedacted;
pub use event::ledger::SessionRedacted;
pub use event::lifecycle::LifecycleInterrupted;
pub use event::lifecycle::SandboxGone;
pub use event::lifecycle::SessionCleanedUp;
pub use event::lifecycle::SessionDeleteStarted;
pub use event::lifecycle::SessionDeleted;
pub use event::lifecycle::SessionExpired;
pub use event::replay::ReplayCompleted;
pub use event::replay::ReplayStarted;
pub use event::session::AskRecord;
pub use event::session::Capabilities;
pub use event::session::FilesystemRecord;
pub use event::session::HttpUnenforced;
pub use event::session::PolicyRecord;
pub use event::session::ProcessRecord;
pub use event::session::Recording;
pub use event::session::RuntimeRecord;
pub use event::session::SessionCreateFailed;
pub use event::session::SessionCreateStarted;
pub use event::session::SessionCreated;
pub use event::session::WorkspaceMode;
pub use event::session::WorkspaceRecord;
pub use holds::Hold;
pub use holds::Holds;
pub use idempotency::Idempotency;
pub use idempotency::KeyState;
pub use ids::ExecId;
pub use ids::SandboxId;
pub use ids::SessionId;
pub use sessions::Operation;
pub use sessions::OperationKind;
pub use sessions::Session;
pub use sessions::SessionStatus;
pub use sessions::Sessions;
pub use sessions::Usage;
pub use snapshot::FOLDS_VERSION;
pub use world::StateDigest;
pub use world::World;
