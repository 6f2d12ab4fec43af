//! Making the ledger again out of its archive, while no daemon runs.
//!
//! It takes the state folder's lock, and replaces nothing: where there is a ledger it refuses. What an error
//! or a kill leaves is no ledger, and the next attempt clears it.

use std::fs;
use std::io::Write as _;

use fluxvm_eventstore::rebuild_from_archive;
use serde_json::json;

use crate::cli::RebuildArgs;
use crate::daemon::DaemonError;
use crate::daemon::ledger_options;
use crate::settings::Settings;
use crate::state::StateDir;

/// Rebuilds, and says what was found.
pub(crate) fn run(settings: &Settings, args: &RebuildArgs) -> Result<(), DaemonError> {
    let root = args.state_dir.as_ref().unwrap_or(&settings.state_dir);
    let state = StateDir::open(root)?;
    let options = ledger_options(settings, &state);
    let archive = fs::canonicalize(&args.from).map_err(|source| DaemonError::System {
        what: "the archive",
        source,
    })?;
    let rebuilt = rebuild_from_archive(&archive, &options)?;
    let key = &options.signing_key_file;
    let said = match args.json {
        true => json!({
            "events": rebuilt.head.position.get(),
            "head_hash": rebuilt.head.hash.to_string(),
            "blobs": rebuilt.blobs,
            "complete": rebuilt.was_complete,
            "signing_key": key.exists(),
            "state_dir": state.root(),
        })
        .to_string(),
        false => sentence(&rebuilt, key.exists().then_some(()), state.root(), key),
    };
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{said}").map_err(|source| DaemonError::System {
        what: "stdout",
        source,
    })
}

fn sentence(
    rebuilt: &fluxvm_eventstore::RebuiltLedger,
    key_is_there: Option<()>,
    root: &std::path::Path,
    key: &std::path::Path,
) -> String {
    let events = rebuilt.head.position.get();
    let (hash, blobs) = (rebuilt.head.hash, rebuilt.blobs);
    let end = match rebuilt.was_complete {
        true => "The archive was complete when the ledger was closed.",
        false => {
            "The archive does not say that it was complete: the ledger may have gone some groups further."
        }
    };
    let key = match key_is_there {
        Some(()) => String::new(),
        None => format!(
            "\nPut the ledger's signing key back at {} before the start.",
            key.display()
        ),
    };
    let root = root.display();
    format!(
        "REBUILT {events} events and {blobs} blob files in {root}; every hash and link holds.\n\
         head {events} {hash}\n{end}{key}"
    )
}
