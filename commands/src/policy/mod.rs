//! What a session may do: rules as callers write them, compiled into what is recorded, and held against
//! what is about to run. Pure.
//!
//! Rules about commands are read twice. One reading cuts the line at the shell's separators and holds the
//! pieces against the patterns as they stand, as the contract describes. The other one parses the line as
//! a shell does and follows what would run: in quotes, substitutions, `sh -c`, `env`, `xargs` and so on.
//! Either reading can refuse; only both together allow.

mod compile;
mod glob;
mod judge;
mod pieces;
mod shell;
mod text;

pub(crate) use compile::Enforceable;
pub(crate) use compile::compile;
pub(crate) use judge::Judgement;
pub(crate) use judge::Verdict;
pub(crate) use judge::judge;
