//! `ledger rebuild`: the daemon's own program does it, since it alone knows the store.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use crate::args::Global;
use crate::args::ledger::RebuildArgs;
use crate::error::CliError;
use crate::error::EXIT_FAILED;

/// The name of the daemon's program.
const DAEMON: &str = "fluxvmd";

/// Runs the daemon's program, which says what it finds, and has its exit code.
pub(super) fn run(global: &Global, args: &RebuildArgs) -> Result<u8, CliError> {
    let program = args.daemon.clone().unwrap_or_else(beside);
    let mut command = Command::new(&program);
    command.arg("rebuild").arg("--from").arg(&args.from);
    if let Some(state_dir) = &args.state_dir {
        command.arg("--state-dir").arg(state_dir);
    }
    if global.json {
        command.arg("--json");
    }
    let ended = command.status();
    let ended = ended.map_err(|error| {
        let program = program.display();
        CliError::Usage(format!(
            "{program} cannot be run: {error}; name it with --daemon"
        ))
    })?;
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(EXIT_FAILED))
}

/// The program beside this one; by its bare name it is looked for on the PATH.
fn beside() -> PathBuf {
    let this = std::env::current_exe().ok();
    let beside = this
        .as_deref()
        .and_then(Path::parent)
        .map(|dir| dir.join(DAEMON));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(DAEMON))
}
