//! `microvms-agentd`: the guest daemon, PID 1 of every sandbox.
//!
//! It promises: what an exec printed is what its reader gets, byte for byte; every process that an
//! exec ever started stays attributable to it until it ends; no zombie is left; and nobody without
//! the token gets further than a status line.
//!
//! It refuses to be more: it knows nothing of sessions, policies or the host. One thread owns all
//! state, on one runtime, so that nothing needs a lock. Threads of their own only move the content
//! of files, because a disk can be slow.

mod app;
mod auth;
mod body;
mod capabilities;
mod confine;
mod exec;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
mod identity;
mod image_user;
mod respond;
mod routes;
mod server;
mod settings;
mod supervise;
mod tunnel;

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tokio::task::LocalSet;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::app::App;
use crate::exec::Drivers;
use crate::exec::ImageEnvironment;
use crate::exec::Registry;
use crate::handlers::Handlers;
use crate::server::Listener;
use crate::settings::Settings;
use crate::supervise::Reaper;
use crate::supervise::SpawnContext;

/// Threads for file transfers: one for each connection, so that slow ones never hold up another.
const BLOCKING_THREADS_MAX: usize = agentd_protocol::limits::CONNECTIONS_MAX;

/// Bytes of such a thread's stack; nothing on it goes deep.
const BLOCKING_STACK_BYTES: usize = 512 * 1024;

/// How long such a thread waits for more work.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
enum StartupError {
    #[error(transparent)]
    Settings(#[from] settings::SettingsError),
    #[error("rights cannot be taken from commands: {0}")]
    Capabilities(#[from] capabilities::DropError),
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: std::io::Error,
    },
}

/// The whole program: serves the guest, or does the step of an image's build that its argument
/// names.
pub fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => serve_guest(),
        Some("--capture-image-user") => build_step(image_user::capture),
        Some("--seal-image-user") => build_step(image_user::seal),
        Some(other) => {
            log_to_stdout("info");
            tracing::error!(argument = other, "there is no such argument");
            ExitCode::FAILURE
        }
    }
}

/// A step of an image's build: done, or the build fails.
fn build_step(step: impl FnOnce(&Path) -> std::io::Result<()>) -> ExitCode {
    log_to_stdout("info");
    match step(image_user::RECORD.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the image's user cannot be kept");
            ExitCode::FAILURE
        }
    }
}

fn serve_guest() -> ExitCode {
    let settings = Settings::from_environment();
    log_to_stdout(
        settings
            .as_ref()
            .map_or("info", |settings| &settings.log_filter),
    );
    let ended = settings.map_err(StartupError::from).and_then(run);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the daemon cannot run");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: Settings) -> Result<(), StartupError> {
    for warning in &settings.warnings {
        tracing::warn!("{warning}; the default applies");
    }
    match &settings.default_user {
        settings::DefaultUser::Daemon => {}
        user => tracing::info!(?user, "starts without a user run as the image's"),
    }
    if settings.drop_capabilities {
        capabilities::drop_inherited()?;
    }
    if settings.guard_self {
        capabilities::guard_self()?;
    }
    let system = |what| move |source| StartupError::System { what, source };
    // Orphans come here even where this is not PID 1, so that they can be reaped.
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| system("orphans cannot be adopted")(errno.into()))?;
    let context = SpawnContext::prepare().map_err(system("commands cannot be started"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(BLOCKING_STACK_BYTES)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .build()
        .map_err(system("there is no runtime"))?;
    LocalSet::new().block_on(&runtime, async move {
        // Before anyone can connect: whoever sees it listen may end it.
        let signals = Signals::watch().map_err(system("signals cannot be watched"))?;
        let listener = Listener::open(settings.listen)
            .await
            .map_err(system("there is no socket"))?;
        serve(settings, context, signals, listener).await;
        Ok(())
    })
}

/// The signals that the daemon acts on.
struct Signals {
    child: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

async fn serve(settings: Settings, context: SpawnContext, signals: Signals, listener: Listener) {
    let Signals {
        child,
        mut terminate,
        mut interrupt,
    } = signals;
    let settings = Rc::new(settings);
    let reaper = Rc::new(Reaper::default());
    tokio::task::spawn_local(Rc::clone(&reaper).run(child));
    let image = ImageEnvironment::snapshot();
    let image_env_keys = image.len();
    let drivers = Rc::new(Drivers { context, reaper });
    let handlers = Handlers::new(settings.hook_handler_timeout, Rc::clone(&drivers));
    let registry = Rc::new(Registry::new(Rc::clone(&settings), image, drivers));
    tokio::task::spawn_local(Rc::clone(&registry).collect_for_ever());
    let app = Rc::new(App {
        settings,
        bootstrap: Default::default(),
        hook_log: Default::default(),
        registry,
        image_env_keys,
        handlers,
        repair: Default::default(),
        renewal: Default::default(),
        connections: Default::default(),
    });
    tracing::info!(version = routes::VERSION, "serving");
    let ended = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    server::serve(app, listener, ended).await;
    tracing::info!("ended");
}

/// JSON lines on standard output, where the platform looks for them.
fn log_to_stdout(filter: &str) {
    let filter: Targets = filter.parse().unwrap_or_else(|_| {
        Targets::new().with_default(tracing_subscriber::filter::LevelFilter::INFO)
    });
    let lines = tracing_subscriber::fmt::layer().json();
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
}
