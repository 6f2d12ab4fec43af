//! The engine that needs no virtual machine: Linux namespaces over an overlay root.

mod options;
pub mod wire;

pub use options::{ProcboxOptions, UID_BASE_DEFAULT, UID_COUNT_DEFAULT};
