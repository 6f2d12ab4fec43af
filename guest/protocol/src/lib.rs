//! Wire types of the guest protocol, version 1 of its path namespace.
//!
//! Host and guest both build on this crate, so that a field has one name and one meaning. It does
//! no I/O and decides nothing: it says what a body looks like, which paths exist, which limits
//! both sides count on, and how an error is spelled.
//!
//! Reading follows serde's usual two contracts. A reader ignores keys that it does not know, and
//! every field added after the first release has a default, so that an older peer stays a peer.
//! What this project adds to the protocol lives under an `x` key or under `/v1/x/`, and is always
//! optional.

mod error;
mod exec;
mod files;
mod health;
mod hooks;
mod identifier;
pub mod limits;
pub mod paths;
mod policy;
mod renewal;
mod stream;
pub mod tunnel;

pub use error::ErrorBody;
pub use error::ErrorExtension;
pub use error::Slug;
pub use exec::Discovery;
pub use exec::ExecState;
pub use exec::KillScope;
pub use exec::KillState;
pub use exec::Outcome;
pub use exec::Phase;
pub use exec::PrincipalRef;
pub use exec::ProcGroup;
pub use exec::Procs;
pub use exec::ResizeState;
pub use exec::ShellChoice;
pub use exec::StartExtension;
pub use exec::StartRequest;
pub use exec::StartedExtension;
pub use exec::StartedState;
pub use exec::StdinExtension;
pub use exec::StdinRequest;
pub use exec::StdinState;
pub use exec::StdinStateExtension;
pub use exec::TerminalSize;
pub use files::EntryKind;
pub use files::FileEntry;
pub use files::FileFacts;
pub use files::FileFault;
pub use files::Placed;
pub use files::Removed;
pub use files::SLICE_HEADER;
pub use files::SliceFacts;
pub use health::DiskHealth;
pub use health::HandlerOutcome;
pub use health::Health;
pub use health::HookRecord;
pub use health::IdentityStep;
pub use health::IdentityStepOutcome;
pub use hooks::AgentToken;
pub use hooks::Hook;
pub use hooks::IdentityPair;
pub use hooks::RunHookEnvelope;
pub use hooks::RunHookPayload;
pub use hooks::RunHookRefusal;
pub use identifier::ExecId;
pub use identifier::InvalidExecId;
pub use policy::Enforcement;
pub use policy::ExecPolicy;
pub use policy::Isolation;
pub use policy::PortPolicy;
pub use policy::RunAs;
pub use policy::SeccompPolicy;
pub use renewal::DiscoveryExtension;
pub use renewal::IdentityRequest;
pub use renewal::IdentityState;
pub use renewal::QuiesceRequest;
pub use renewal::QuiesceState;
pub use stream::ExitEvent;
pub use stream::ExitExtension;
pub use stream::GapEvent;
pub use stream::OutputEvent;
pub use stream::OutputStream;
pub use stream::Survivor;
pub use stream::event_names;

/// The protocol's own version, which is not the version of its path namespace: it moved when the
/// framing of verified tunnels did.
pub const PROTOCOL_VERSION: &str = "2";

/// The response header that carries the daemon's version; every response has it.
pub const VERSION_HEADER: &str = "microvms-agentd-version";
