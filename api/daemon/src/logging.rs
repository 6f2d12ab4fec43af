//! Logs go to stderr, as text for people or JSON for machines. Stdout belongs to `--ready-json`.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::LogChoice;
use crate::cli::LogFormat;

/// Starts logging, once per process.
pub(crate) fn start(choice: LogChoice) {
    // Libraries are heard when something is wrong; below that they say what they do and not what it is for.
    let quiet = choice
        .level
        .min(tracing_subscriber::filter::LevelFilter::WARN);
    let ours = [
        "fluxvmd",
        "fluxvm_commands",
        "fluxvm_eventstore",
        "fluxvm_vmm",
        "agentd_client",
    ];
    let targets = ours
        .into_iter()
        .fold(Targets::new().with_default(quiet), |targets, name| {
            targets.with_target(name, choice.level)
        });
    let registry = tracing_subscriber::registry().with(targets);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // A second start is a test's; the first one's choice stands.
    let _ = match choice.format {
        LogFormat::Text => registry
            .with(layer.with_ansi(std::io::stderr().is_terminal()))
            .try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    };
}
