//! Sandbox engines behind one trait.
//!
//! A [`Backend`] makes sandboxes, finds those that outlived an earlier daemon, and removes them
//! without a trace. A [`Sandbox`] is one of them: a guest daemon that answers the guest protocol,
//! and the means to look at it and to end it. This crate knows nothing of sessions, policy or the
//! ledger: it is told what to make and says what is really enforced ([`Capabilities`]).
//!
//! [`procbox`] is the engine that needs no virtual machine: Linux namespaces over an overlay root.
//!
//! This is the one host crate with `unsafe` code: the system calls that no safe wrapper offers.

mod backend;
mod capabilities;
mod error;
mod layers;
pub mod procbox;
mod snapshot;
mod spec;

pub use backend::{Backend, ExitReason, Inspection, Removal, Sandbox};
pub use capabilities::{Capabilities, Network, UserNamespace};
pub use error::{
    AdoptError, CreateError, CreateFault, CreateStage, ProbeError, RemoveError, ReviveError,
    SnapshotError, SpecError,
};
pub use layers::{escape, unescape};
pub use procbox::{Procbox, ProcboxOptions, become_subreaper};
pub use snapshot::{
    ContentDigest, Disk, EntryKind, Identity, ManifestEntry, ManifestQuery, MemoryKept,
    MemoryWanted, RevivalReport, Revived, Snapshot, SnapshotId, SnapshotSpec,
};
pub use spec::{
    GUEST_PATH_BYTES_MAX, GuestPath, HOSTNAME_BYTES_MAX, IMAGE_NAME_BYTES_MAX, ImageName, ImageRef,
    SandboxId, SandboxSpec,
};
