//! `[ledger]`: where copies of the ledger, and of what it signed, go, and how it is opened.

use std::path::Path;
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
        let Some(path) = path.as_deref() else {
            continue;
        };
        let shown = path.display();
        if !path.is_absolute() {
            return Err(format!("ledger.{name}: {shown} is not an absolute path"));
        }
        if path.exists() && !path.is_dir() {
            return Err(format!("ledger.{name}: {shown} is there and is no folder"));
        }
    }
    ledger.witness.as_deref().map_or(Ok(()), check_witness)
}

fn check_witness(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(
            "ledger.witness: must be an http:// address; for TLS put a forwarder on this machine"
                .into(),
        );
    };
    match authority(rest) {
        Some(_) => Ok(()),
        None => Err("ledger.witness: names no host".into()),
    }
}

/// The host of an address, and its port if it has one; `None` where there is no host.
fn authority(rest: &str) -> Option<axum::http::uri::Authority> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority: axum::http::uri::Authority = rest.get(..end)?.parse().ok()?;
    (!authority.host().is_empty()).then_some(authority)
}

/// Refuses an archive in the folder that it is to be a second copy of.
pub(crate) fn check_archive(ledger: &LedgerConfig, state_dir: &Path) -> Result<(), String> {
    let Some(archive) = &ledger.archive else {
        return Ok(());
    };
    match resolved(archive).starts_with(resolved(state_dir)) {
        false => Ok(()),
        true => Err(format!(
            "ledger.archive: {} lies in the state folder, and would be lost with it",
            archive.display()
        )),
    }
}

/// The path without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in absolute.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            let rest = absolute.strip_prefix(ancestor).unwrap_or(Path::new(""));
            return real.join(rest);
        }
    }
    absolute
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(archive: &Path) -> LedgerConfig {
        LedgerConfig {
            archive: Some(archive.to_owned()),
            ..LedgerConfig::default()
        }
    }

    #[test]
    fn a_place_for_copies_is_a_folder_apart_from_what_is_copied() {
        let temp = tempfile::tempdir().expect("tempdir");
        let state = temp.path().join("state");
        std::fs::create_dir(&state).expect("state");
        std::os::unix::fs::symlink(&state, temp.path().join("link")).expect("link");
        for inside in ["state", "state/ledger", "state/blobs/a", "link/archive"] {
            let refused = check_archive(&config(&temp.path().join(inside)), &state);
            assert!(refused.is_err_and(|why| why.starts_with("ledger.archive: ")));
        }
        check_archive(&config(&temp.path().join("archive")), &state).expect("apart");

        let file = temp.path().join("file");
        std::fs::write(&file, "").expect("file");
        let refused = check(&config(&file)).expect_err("a file");
        assert!(refused.starts_with("ledger.archive: "), "{refused}");
        let pushed = LedgerConfig {
            checkpoint_dir: Some(file),
            ..LedgerConfig::default()
        };
        let refused = check(&pushed).expect_err("a file");
        assert!(refused.starts_with("ledger.checkpoint_dir: "), "{refused}");
    }

    #[test]
    fn a_witness_has_a_host() {
        for url in ["http://", "http:///x", "http://:80/x", "http://a b/"] {
            assert!(check_witness(url).is_err(), "{url}");
        }
        for url in ["http://w", "http://w:1/x?y", "http://[::1]:1/"] {
            check_witness(url).expect(url);
        }
    }
}
