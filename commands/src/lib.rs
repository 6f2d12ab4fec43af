//! What fluxvm does, one module per capability.
//!
//! Every command goes the same way: load the state, decide (pure), append the intent, run the effect,
//! append the outcome. The answer is built from the outcome event. A rule lives in a `decide` and nowhere
//! else; an effect never decides.
//!
//! ```text
//! request ─► decide(state, request, now) ─► intent ─► effect ─► outcome ─► answer
//!                │                             │                    │
//!                └─ CommandError               └──── the ledger ────┘
//! ```
//!
//! This crate knows no HTTP, no sled and no system calls. It is told the time and it is told what makes
//! sandboxes.

mod aftermath;
mod answer;
mod approvals;
mod bisect;
mod book;
mod caller;
mod capabilities;
mod capture;
mod changes;
mod checkpoint;
mod clock;
mod crash;
mod create;
mod delete;
mod diff;
mod engine;
mod error;
mod evidence;
mod exec;
mod expiry;
mod files;
mod fork;
mod gate;
mod git;
mod guard;
mod guest;
mod holds;
mod idempotency;
mod jobs;
pub mod limits;
mod lineage;
mod policy;
mod probe;
mod promote;
mod queries;
mod reason;
mod recovery;
mod redaction;
mod replay;
mod request;
mod restore;
mod revive;
mod rewind;
mod sandboxes;
mod session_erasure;
mod snapshots;
mod space;
mod spec;
mod states;
#[cfg(test)]
mod testing;
mod time_travel;
mod tokens;
mod turns;
mod uploads;
mod usage;
mod work;

pub use aftermath::Done;
pub use agentd_protocol::EntryKind;
pub use agentd_protocol::FileEntry;
pub use agentd_protocol::FileFacts;
pub use agentd_protocol::FileFault;
pub use agentd_protocol::OutputStream;
pub use answer::CheckpointAnswer;
pub use answer::ExecAnswer;
pub use answer::ForkAnswer;
pub use answer::RedactAnswer;
pub use answer::ReplayAnswer;
pub use answer::ReplayError;
pub use answer::ReplayExec;
pub use answer::ReplayResult;
pub use answer::ReplayStep;
pub use answer::RestoreAnswer;
pub use answer::RetentionAnswer;
pub use answer::RewindAnswer;
pub use answer::ShredAnswer;
pub use answer::SkippedStep;
pub use approvals::Answer;
pub use bisect::Bisect;
pub use bisect::BisectAnswer;
pub use caller::Caller;
pub use changes::ChangeKind;
pub use changes::Conflict;
pub use clock::Clock;
pub use clock::SystemClock;
pub use diff::ArtifactsAnswer;
pub use diff::DiffAnswer;
pub use diff::DiffQuery;
pub use diff::Omitted;
pub use diff::PathDiff;
pub use diff::Rendered;
pub use diff::StateName;
pub use engine::Engine;
pub use engine::EngineOptions;
pub use engine::StartError;
pub use error::CommandError;
pub use files::DeleteFile;
pub use files::RangeAnswer;
pub use files::ReadRange;
pub use files::WriteAnswer;
pub use files::WriteFile;
pub use gate::status_name;
pub use git::CommitAnswer;
pub use git::GitBranch;
pub use git::GitChange;
pub use git::GitCommit;
pub use git::GitDiff;
pub use git::GitFault;
pub use git::GitLogEntry;
pub use git::GitStatus;
pub use idempotency::ClaimedKey;
pub use idempotency::KeyAnswer;
pub use idempotency::KeyClaim;
pub use jobs::InputTaken;
pub use jobs::JobNow;
pub use jobs::JobReader;
pub use jobs::SignalSent;
pub use probe::ProbeAnswer;
pub use promote::Promote;
pub use promote::PromoteAnswer;
pub use promote::PromoteOutcome;
pub use queries::EventPages;
pub use request::AskRequest;
pub use request::Checkpoint;
pub use request::ConfigureRewind;
pub use request::CreateSession;
pub use request::Enforcement;
pub use request::EventsQuery;
pub use request::Exec;
pub use request::FilesystemRequest;
pub use request::Fork;
pub use request::ForkFrom;
pub use request::HostRequest;
pub use request::InputBytes;
pub use request::JobInput;
pub use request::NetworkRequest;
pub use request::PlaceHold;
pub use request::PolicyRequest;
pub use request::ProcessRequest;
pub use request::Redact;
pub use request::Replay;
pub use request::Restore;
pub use request::Retain;
pub use request::RewindTo;
pub use request::RuntimeRequest;
pub use request::ShredSession;
pub use request::StartJob;
pub use request::StdinSource;
pub use request::WorkspaceRequest;
pub use space::RESERVE_BYTES_MAX;
pub use space::Room;
pub use space::Space;
pub use tokens::LiveToken;
pub use tokens::MintToken;
pub use tokens::MintedToken;
pub use tokens::RefusedRequest;
pub use tokens::TOKEN_PREFIX;
pub use uploads::OpenUpload;
pub use uploads::PartStream;
pub use uploads::UploadRecord;
pub use usage::ReportUsage;
