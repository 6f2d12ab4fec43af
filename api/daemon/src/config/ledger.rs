//! `[ledger]`: where copies of the ledger, and of what it signed, go, and how it is opened.

use std::path::PathBuf;

use serde::Deserialize;

/// `[ledger]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerConfig {
    /// Where a second copy of everything goes.
    pub(crate) archive: Option<PathBuf>,
    /// What it means when that copy cannot be written.
    pub(crate) archive_failure: ArchivePolicy,
    /// Sessions that begin are sealed at rest, each with a key of its own in the secrets folder.
    pub(crate) seal: bool,
    /// A folder that every signed checkpoint is kept in, best on other storage.
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// Every signed checkpoint goes to standard output.
    pub(crate) checkpoint_stdout: bool,
    /// An address that every signed checkpoint is posted to.
    pub(crate) witness: Option<String>,
    /// How much of the ledger is read and checked before it is used.
    pub(crate) verify_at_start: VerifyAtStart,
}

/// How much of the ledger is read and checked before it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VerifyAtStart {
    /// What came after the newest snapshot; what was before it is checked while work goes on.
    #[default]
    Tail,
    /// Every event. No snapshots are kept.
    Full,
}

/// What it means when the archive cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ArchivePolicy {
    /// It is reported, and work goes on without the copy.
    #[default]
    Report,
    /// The daemon ends: no work without the copy.
    Stop,
}

/// Refuses what could not be meant.
pub(super) fn check(ledger: &LedgerConfig) -> Result<(), String> {
    for (name, path) in [
        ("archive", &ledger.archive),
        ("checkpoint_dir", &ledger.checkpoint_dir),
    ] {
        if let Some(path) = path.as_deref().filter(|path| !path.is_absolute()) {
            let path = path.display();
            return Err(format!("ledger.{name}: {path} is not an absolute path"));
        }
    }
    match &ledger.witness {
        Some(url) if !url.starts_with("http://") => Err(
            "ledger.witness: must be an http:// address; for TLS put a forwarder on this machine"
                .into(),
        ),
        _ => Ok(()),
    }
}
