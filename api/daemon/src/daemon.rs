//! From start to end.
//!
//! The listener opens before the ledger is read, so that who asks early is told `starting` and not
//! refused; nothing is announced before everything answers. The end goes backwards: no more connections,
//! running requests answered, the end recorded, the ledger closed, the announcement taken back.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluxvm_commands::Engine;
use fluxvm_commands::EngineOptions;
use fluxvm_commands::StartError;
use fluxvm_commands::SystemClock;
use fluxvm_eventstore::ArchiveFailure;
use fluxvm_eventstore::ArchiveOptions;
use fluxvm_eventstore::LedgerOptions;
use fluxvm_eventstore::NewStreams;
use fluxvm_eventstore::RebuildError;
use fluxvm_eventstore::SealOptions;
use fluxvm_eventstore::SnapshotOptions;
use fluxvm_vmm::ProbeError;
use fluxvm_vmm::Procbox;
use fluxvm_vmm::ProcboxOptions;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tokio::sync::watch;

use crate::app::App;
use crate::auth::Authenticator;
use crate::config::ArchivePolicy;
use crate::config::ConfigError;
use crate::config::LedgerConfig;
use crate::config::VerifyAtStart;
use crate::lifecycle::Stage;
use crate::metrics::Metrics;
use crate::rate::RateLimit;
use crate::ready;
use crate::routes;
use crate::serve;
use crate::settings::Settings;
use crate::settings::SettingsError;
use crate::space::StateSpace;
use crate::state::Reach;
use crate::state::StateDir;
use crate::state::StateError;
use crate::witness::Pushes;

/// Memory that the ledger's store may use for pages, in bytes.
const LEDGER_CACHE_BYTES: u64 = 128 * 1024 * 1024;

/// How often metrics are moved into their buckets.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Why the daemon did not start, or ended otherwise than in order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("sandboxes cannot be made on this machine: {0}")]
    Probe(#[from] ProbeError),
    #[error("{0}")]
    Engine(#[from] StartError),
    #[error("{0}")]
    Rebuild(#[from] RebuildError),
    #[error("the ledger failed: {0}")]
    Ledger(String),
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: std::io::Error,
    },
}

/// Runs the daemon until it is told to stop.
pub(crate) async fn run(settings: Settings) -> Result<(), DaemonError> {
    let mut signals = Signals::listen()?;
    let state = StateDir::open(&settings.state_dir)?;
    let admin_token = if settings.open {
        None
    } else {
        Some(state.admin_token()?)
    };
    let auth = match &admin_token {
        Some(token) => Authenticator::with_tokens(token, &settings.tokens),
        None => Authenticator::open(),
    };
    let listener = listen(settings.listen).await?;
    let address = local_address(&listener)?;
    let app = App::new(
        auth,
        RateLimit::of(settings.rate.0, settings.rate.1),
        metrics(),
        address.ip().is_loopback(),
    );
    let server = tokio::spawn(serve::serve(
        listener,
        routes::router(app.clone()),
        app.clone(),
    ));
    let engine = tokio::select! {
        started = start_engine(&settings, &state) => started?,
        signal = signals.next() => {
            tracing::info!(signal, "told to stop while starting");
            return Ok(());
        }
    };
    app.ready(engine.clone());
    let pushes = Pushes::start(&settings.ledger, &engine, app.pushes());
    let reach = Reach {
        url: url_of(address),
        token_file: admin_token.map(|_| state.admin_token_file()),
        pid: std::process::id(),
    };
    state.announce(&reach)?;
    ready::say(&settings, &reach, address);
    let ended = end_of(&app, &mut signals, engine.failed()).await;
    app.lifecycle().advance(Stage::Stopping);
    if let Err(error) = server.await {
        tracing::error!(%error, "the server ended early");
    }
    state.forget_reach()?;
    match ended {
        Ended::Signal(name) => {
            engine.shutdown(name).await;
            pushes.finish().await;
            tracing::info!(signal = name, "ended in order; sandboxes keep running");
            Ok(())
        }
        Ended::LedgerFailed(reason) => Err(DaemonError::Ledger(reason)),
    }
}

enum Ended {
    Signal(&'static str),
    LedgerFailed(String),
}

/// Waits for what ends the daemon, and keeps its figures meanwhile.
async fn end_of(
    app: &App,
    signals: &mut Signals,
    mut failed: watch::Receiver<Option<String>>,
) -> Ended {
    let mut upkeep = tokio::time::interval(METRICS_UPKEEP);
    loop {
        tokio::select! {
            name = signals.next() => return Ended::Signal(name),
            reason = failure(&mut failed) => {
                tracing::error!(reason, "the ledger failed; the daemon ends");
                app.lifecycle().fail(reason.clone());
                return Ended::LedgerFailed(reason);
            }
            _ = upkeep.tick() => app.metrics().upkeep(),
        }
    }
}

async fn failure(failed: &mut watch::Receiver<Option<String>>) -> String {
    match failed.wait_for(Option::is_some).await {
        Ok(reason) => reason.clone().unwrap_or_default(),
        // Without its engine nobody can say so; then there is nothing to wait for.
        Err(_) => std::future::pending().await,
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| DaemonError::Listen { address, source })
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, DaemonError> {
    let address = listener.local_addr();
    address.map_err(|source| DaemonError::System {
        what: "the listener has no address",
        source,
    })
}

fn metrics() -> Metrics {
    let (metrics, recorder) = Metrics::new();
    // A recorder that is there already is an earlier daemon's in the same process, which only tests have.
    if metrics::set_global_recorder(recorder).is_ok() {
        metrics.describe();
    }
    metrics
}

async fn start_engine(settings: &Settings, state: &StateDir) -> Result<Engine, DaemonError> {
    let root = state.root();
    let options = ProcboxOptions {
        sandboxes_dir: root.join("sandboxes"),
        layers_dir: root.join("layers"),
        snapshots_dir: root.join("snapshots"),
        images_dir: settings
            .images_dir
            .clone()
            .unwrap_or_else(|| root.join("images")),
        secrets_dir: state.secrets_dir(),
        masked_paths: masked_paths(settings, root),
        agentd: settings.agentd.clone(),
        launcher: settings.launcher.clone(),
        criu: fluxvm_vmm::procbox::find_criu(),
        uid_base: settings.uid_base,
        uid_count: settings.uid_count,
    };
    let probed = tokio::task::spawn_blocking(move || Procbox::new(options)).await;
    let backend = probed.map_err(|error| DaemonError::System {
        what: "looking at what this machine can do",
        source: std::io::Error::other(error),
    })??;
    let options = EngineOptions {
        ledger: ledger_options(settings, state),
        backend: Arc::new(backend),
        clock: Arc::new(SystemClock),
        jobs_dir: root.join("jobs"),
        uploads_dir: root.join("uploads"),
        space: Arc::new(StateSpace::new(state.root())),
    };
    Ok(Engine::start(options).await?)
}

/// Where the ledger of a state folder lies, and what it may use.
pub(crate) fn ledger_options(settings: &Settings, state: &StateDir) -> LedgerOptions {
    let root = state.root();
    LedgerOptions {
        dir: root.join("ledger"),
        blobs_dir: root.join("blobs"),
        signing_key_file: state.secrets_dir().join("ledger-signing-key"),
        origin: origin(),
        cache_bytes: LEDGER_CACHE_BYTES,
        archive: archive(&settings.ledger),
        snapshots: snapshots(&settings.ledger),
        seal: Some(seal(&settings.ledger, state)),
    }
}

/// Where the keys of sealed sessions lie. What is sealed stays so when new sessions no longer are.
fn seal(config: &LedgerConfig, state: &StateDir) -> SealOptions {
    SealOptions {
        keys_dir: state.secrets_dir().join("seals"),
        new_streams: match config.seal {
            true => NewStreams::Sealed,
            false => NewStreams::Open,
        },
    }
}

fn archive(config: &LedgerConfig) -> Option<ArchiveOptions> {
    let on_failure = match config.archive_failure {
        ArchivePolicy::Report => ArchiveFailure::Report,
        ArchivePolicy::Stop => ArchiveFailure::Stop,
    };
    let dir = config.archive.clone()?;
    Some(ArchiveOptions { dir, on_failure })
}

fn snapshots(config: &LedgerConfig) -> Option<SnapshotOptions> {
    match config.verify_at_start {
        VerifyAtStart::Tail => Some(SnapshotOptions::default()),
        VerifyAtStart::Full => None,
    }
}

/// No sandbox may see the state folder, wherever it lies: the ledger and every token are in it.
fn masked_paths(settings: &Settings, root: &Path) -> Vec<std::path::PathBuf> {
    let mut paths = settings.masked_paths.clone();
    paths.push(root.to_owned());
    // What lies elsewhere so that it is safe from this machine is not shown to its guests.
    let ledger = &settings.ledger;
    paths.extend(ledger.archive.iter().chain(&ledger.checkpoint_dir).cloned());
    paths
}

/// Where a new ledger says that it was started. A ledger keeps the origin that it has.
fn origin() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    format!("fluxvm/{}", name.unwrap_or_else(|| "localhost".to_owned()))
}

/// The address that a client on this machine uses.
fn url_of(address: SocketAddr) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// The signals that end the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, DaemonError> {
        let listen = |kind| {
            signal(kind).map_err(|source| DaemonError::System {
                what: "signals",
                source,
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_one_that_a_client_here_can_use() {
        let url = |text: &str| url_of(text.parse().expect("address"));
        assert_eq!(url("127.0.0.1:7788"), "http://127.0.0.1:7788");
        assert_eq!(url("0.0.0.0:1"), "http://127.0.0.1:1");
        assert_eq!(url("[::]:1"), "http://[::1]:1");
    }
}
