//! Wire types of the host API.
//!
//! Two halves with opposite habits. **Requests** are strict: a field that is not known by name, a value
//! of another type or range, a second copy of a field is refused with the path of the field, because a
//! misspelt limit that is silently dropped is a limit that nobody enforces. Every field of the contract
//! is known here by name, also those that this version can not enforce; refusing them is a decision, and
//! decisions are made elsewhere. **Answers** say everything: a key that has no value is `null` and not
//! absent, unless its absence is the message (`timed_out`, `signal`, …).
//!
//! Nothing here knows HTTP, the ledger's types or any rule.

mod answer;
mod event;
mod guard;
mod job;
mod number;
mod object;
mod policy;
mod request;
mod session;
mod strict;
mod time;
mod time_travel;

pub use answer::ErrorBody;
pub use answer::ExecAnswer;
pub use answer::HoldView;
pub use answer::KeyView;
pub use answer::KeysView;
pub use answer::LedgerHead;
pub use answer::LedgerInfo;
pub use answer::List;
pub use answer::RedactionView;
pub use answer::ReplayAnswer;
pub use answer::ReplayStep;
pub use answer::SkippedStep;
pub use answer::StepError;
pub use answer::Survivor;
pub use answer::Survivors;
pub use event::EventView;
pub use guard::ApprovalView;
pub use guard::DecideRequest;
pub use guard::DecisionView;
pub use guard::MintTokenRequest;
pub use guard::TokenView;
pub use guard::UsageRequest;
pub use job::JobExitView;
pub use job::JobFailureView;
pub use job::JobInputView;
pub use job::JobPageView;
pub use job::JobSignalView;
pub use job::JobView;
pub use number::Dollars;
pub use number::Milliseconds;
pub use number::WholeSeconds;
pub use object::Object;
pub use policy::AskRule;
pub use policy::Budget;
pub use policy::Enforcement;
pub use policy::Exhaust;
pub use policy::FilesystemRules;
pub use policy::HostRule;
pub use policy::NetworkDefault;
pub use policy::NetworkRules;
pub use policy::Policy;
pub use policy::ProcessEnforcement;
pub use policy::ProcessRules;
pub use request::CreateSessionRequest;
pub use request::ExecRequest;
pub use request::HoldRequest;
pub use request::JobStdinRequest;
pub use request::RecordRequest;
pub use request::RedactRequest;
pub use request::ReplayRequest;
pub use request::RuntimeRequest;
pub use request::StartJobRequest;
pub use request::VolumeRequest;
pub use request::WorkspaceRequest;
pub use session::AskView;
pub use session::BudgetView;
pub use session::CapabilitiesView;
pub use session::FilesystemView;
pub use session::InterruptedView;
pub use session::OperationView;
pub use session::PolicyView;
pub use session::ProcessView;
pub use session::RuntimeView;
pub use session::SessionView;
pub use session::UsageView;
pub use session::WorkspaceView;
pub use strict::BodyError;
pub use strict::parse;
pub use time::parse_rfc3339;
pub use time::rfc3339;
pub use time_travel::BranchRequest;
pub use time_travel::CheckpointAnswer;
pub use time_travel::CheckpointRequest;
pub use time_travel::CheckpointView;
pub use time_travel::ForkAnswer;
pub use time_travel::ForkRequest;
pub use time_travel::IdentityRequest;
pub use time_travel::OriginView;
pub use time_travel::PinRequest;
pub use time_travel::PointView;
pub use time_travel::RestoreAnswer;
pub use time_travel::RestoreRequest;
pub use time_travel::RevivalView;
pub use time_travel::RewindConfigRequest;
pub use time_travel::RewindConfigView;
pub use time_travel::RewindMoveAnswer;
pub use time_travel::RewindMoveRequest;
pub use time_travel::RewindView;
pub use time_travel::SnapshotView;
pub use time_travel::TriggerName;
