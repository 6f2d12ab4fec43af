//! Attempts to get out of a sandbox, around its policy or at the daemon, in real sandboxes.
//!
//! Each row of the tables below is one attempt and names the layer that has to stop it. An attempt is a
//! line that ends with 0 exactly if it got what it was after. So that no row holds because its line could
//! never work, each has a control: the same line where it is allowed, or another that shows that its
//! means work there. After every table the sandbox and the daemon live on.
//!
//! What cannot be a row is beside the tables: what the host has to be looked at for ([`host`]), what uses
//! a sandbox up ([`hogs`]), and who calls the API for what ([`callers`]). That a full disk ends whoever
//! fills it, and is 507 for new work, is tested in `full_disk.rs`.

mod callers;
mod commands;
mod files;
mod hogs;
mod host;
mod kernel;
mod programs;
mod row;
