//! What the command line, the environment and the config file add up to.

use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use crate::cli::Cli;
use crate::config::Config;
use crate::config::LedgerConfig;
use crate::config::TokenConfig;
use crate::config::check_archive;

/// Where a daemon listens that was told nothing else.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7788);

/// The first host user id that guests get when nothing else is said: above those of people and services.
const UID_BASE_DEFAULT: u32 = 100_000;

/// How many: what the usual programs in a guest expect to exist.
const UID_COUNT_DEFAULT: u32 = 65_536;

/// The name of the guest daemon's program.
const AGENTD: &str = "microvms-agentd";

/// The name of the program that builds namespaces.
const LAUNCHER: &str = "fluxvm-procbox";

/// Everything that a start needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Address to listen on.
    pub(crate) listen: SocketAddr,
    /// Everyone who reaches the listener is an administrator.
    pub(crate) open: bool,
    /// The state folder.
    pub(crate) state_dir: PathBuf,
    /// Tokens beside the admin token.
    pub(crate) tokens: Vec<TokenConfig>,
    /// Requests that one actor may make in a second, and at once.
    pub(crate) rate: (Option<u32>, Option<u32>),
    /// The ledger.
    pub(crate) ledger: LedgerConfig,
    /// The guest daemon.
    pub(crate) agentd: PathBuf,
    /// The program that builds namespaces.
    pub(crate) launcher: PathBuf,
    /// Where named images lie; `None` is the state folder's own.
    pub(crate) images_dir: Option<PathBuf>,
    /// The first host user id of guests.
    pub(crate) uid_base: u32,
    /// How many there are.
    pub(crate) uid_count: u32,
    /// Paths that no sandbox may see.
    pub(crate) masked_paths: Vec<PathBuf>,
    /// How to say that the daemon answers.
    pub(crate) ready_json: bool,
}

/// What of the surroundings decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// `$HOME`.
    pub(crate) home: Option<PathBuf>,
    /// `$XDG_STATE_HOME`.
    pub(crate) xdg_state_home: Option<PathBuf>,
    /// Whether this is root.
    pub(crate) root: bool,
    /// The folder of this program.
    pub(crate) program_dir: Option<PathBuf>,
}

/// Why these settings cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingsError {
    /// Open access on a listener that others can reach.
    #[error(
        "--open lets everyone in who reaches {0}, which is not a loopback address; leave --open out, or listen on 127.0.0.1"
    )]
    OpenToOthers(SocketAddr),
    /// Open access and tokens.
    #[error(
        "--open lets everyone in, so that the tokens of the config mean nothing; leave one of them out"
    )]
    OpenWithTokens,
    /// `--open` here, `auth.require = true` there.
    #[error("--open contradicts auth.require = true in the config; leave one of them out")]
    OpenButRequired,
    /// Copies of the ledger in the ledger's own place.
    #[error("{0}")]
    Ledger(String),
    /// Two kinds of lines on one stdout.
    #[error(
        "--ready-json says one line on standard output, and ledger.checkpoint_stdout = true in the config \
         puts checkpoints there; leave one of them out, or use ledger.checkpoint_dir"
    )]
    StdoutTwice,
    /// Nowhere to keep the state.
    #[error("neither $XDG_STATE_HOME nor $HOME names a folder; name one with --state-dir")]
    NoStateDir,
    /// A program of ours is not where it should be.
    #[error("{name}, a program, was not found at {}; build it with `make build`, or name it with {option}",
        looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoProgram {
        /// Its name.
        name: &'static str,
        /// The option that names it.
        option: &'static str,
        /// Where we looked.
        looked: Vec<PathBuf>,
    },
}

impl Surroundings {
    /// As this process sees them.
    pub(crate) fn of_this_process() -> Self {
        let folder = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let program = std::env::current_exe().ok();
        Self {
            home: folder("HOME"),
            xdg_state_home: folder("XDG_STATE_HOME"),
            root: nix::unistd::geteuid().is_root(),
            program_dir: program.and_then(|program| program.parent().map(Path::to_owned)),
        }
    }

    /// The usual state folder of this user.
    pub(crate) fn state_dir(&self) -> Option<PathBuf> {
        if self.root {
            return Some(PathBuf::from("/var/lib/fluxvm"));
        }
        let own = self.home.as_ref().map(|home| home.join(".local/state"));
        self.xdg_state_home
            .clone()
            .or(own)
            .map(|state| state.join("fluxvm"))
    }

    fn beside(&self, places: &[&str], name: &str) -> Vec<PathBuf> {
        let Some(dir) = &self.program_dir else {
            return Vec::new();
        };
        places
            .iter()
            .map(|place| dir.join(place).join(name))
            .collect()
    }
}

impl Settings {
    /// Adds everything up.
    pub(crate) fn resolve(
        cli: &Cli,
        config: Config,
        surroundings: &Surroundings,
    ) -> Result<Self, SettingsError> {
        let listen = cli
            .listen
            .or(config.listen)
            .map_or(LISTEN_DEFAULT, |listen| listen.0);
        let open = cli.open || config.auth.require == Some(false);
        if open && !listen.ip().is_loopback() {
            return Err(SettingsError::OpenToOthers(listen));
        }
        if open && config.auth.require == Some(true) {
            return Err(SettingsError::OpenButRequired);
        }
        if open && !config.auth.tokens.is_empty() {
            return Err(SettingsError::OpenWithTokens);
        }
        let named = cli.state_dir.clone().or(config.state_dir);
        let state_dir = named
            .or_else(|| surroundings.state_dir())
            .ok_or(SettingsError::NoStateDir)?;
        check_archive(&config.ledger, &state_dir).map_err(SettingsError::Ledger)?;
        if cli.ready_json && config.ledger.checkpoint_stdout {
            return Err(SettingsError::StdoutTwice);
        }
        let sandbox = config.sandbox;
        let agentd = program(
            cli.agentd.clone().or(sandbox.agentd),
            surroundings.beside(&["guest", "../guest", "../libexec/fluxvm"], AGENTD),
            (AGENTD, "--agentd"),
        )?;
        let launcher = program(
            cli.launcher.clone().or(sandbox.launcher),
            surroundings.beside(&[".", "../libexec/fluxvm"], LAUNCHER),
            (LAUNCHER, "--launcher"),
        )?;
        Ok(Self {
            listen,
            open,
            state_dir,
            rate: (config.auth.rate_limit_rps, config.auth.rate_limit_burst),
            tokens: config.auth.tokens,
            ledger: config.ledger,
            agentd,
            launcher,
            images_dir: sandbox.images_dir,
            uid_base: sandbox.uid_base.unwrap_or(UID_BASE_DEFAULT),
            uid_count: sandbox.uid_count.unwrap_or(UID_COUNT_DEFAULT),
            masked_paths: sandbox.masked_paths,
            ready_json: cli.ready_json,
        })
    }
}

/// The program that was named, or the first that is there. What was named must be there too.
fn program(
    named: Option<PathBuf>,
    usual: Vec<PathBuf>,
    (name, option): (&'static str, &'static str),
) -> Result<PathBuf, SettingsError> {
    let looked = named.map_or(usual, |named| vec![named]);
    let found = looked.iter().find(|path| is_program(path)).cloned();
    found.ok_or(SettingsError::NoProgram {
        name,
        option,
        looked,
    })
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("folder");
            std::fs::create_dir(folder.path().join("guest")).expect("guest");
            for name in ["guest/microvms-agentd", "fluxvm-procbox"] {
                let path = folder.path().join(name);
                std::fs::write(&path, "").expect("program");
                let mode = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(&path, mode).expect("mode");
            }
            Self { folder }
        }

        fn resolve(&self, words: &[&str], config: Config) -> Result<Settings, SettingsError> {
            let cli = Cli::try_parse_from([&["fluxvmd"], words].concat()).expect("parses");
            let surroundings = Surroundings {
                home: Some("/home/u".into()),
                program_dir: Some(self.folder.path().to_owned()),
                ..Surroundings::default()
            };
            Settings::resolve(&cli, config, &surroundings)
        }
    }

    fn config(listen: &str) -> Config {
        Config {
            listen: Some(listen.parse().expect("address")),
            ..Config::default()
        }
    }

    #[test]
    fn the_command_line_wins_over_the_config_and_that_over_the_default() {
        let machine = Machine::new();
        let listen = |words: &[&str], config| machine.resolve(words, config).expect("ok").listen;
        assert_eq!(listen(&[], Config::default()), LISTEN_DEFAULT);
        assert_eq!(listen(&[], config("[::1]:1")).to_string(), "[::1]:1");
        let words = ["--listen", "localhost:0"];
        assert_eq!(listen(&words, config("[::1]:1")).to_string(), "127.0.0.1:0");
    }

    #[test]
    fn the_state_lies_where_the_user_keeps_state() {
        let machine = Machine::new();
        let settings = machine.resolve(&[], Config::default()).expect("ok");
        assert_eq!(settings.state_dir, Path::new("/home/u/.local/state/fluxvm"));
        let root = Surroundings {
            root: true,
            ..Surroundings::default()
        };
        assert_eq!(
            root.state_dir().as_deref(),
            Some(Path::new("/var/lib/fluxvm"))
        );
        assert_eq!(Surroundings::default().state_dir(), None);
    }

    #[test]
    fn open_access_is_refused_where_others_could_use_it() {
        let machine = Machine::new();
        let refused = |words: &[&str], config| machine.resolve(words, config).expect_err("refused");
        let words = ["--open", "--listen", "0.0.0.0:0"];
        assert!(matches!(
            refused(&words, Config::default()),
            SettingsError::OpenToOthers(_)
        ));
        let mut both = Config::default();
        both.auth.require = Some(true);
        assert_eq!(
            refused(&["--open"], both.clone()),
            SettingsError::OpenButRequired
        );
        both.auth.require = Some(false);
        assert!(machine.resolve(&[], both).expect("ok").open);
        assert!(!machine.resolve(&[], Config::default()).expect("ok").open);
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_where_we_looked() {
        let machine = Machine::new();
        let words = ["--agentd", "/nonexistent/agentd"];
        let error = machine
            .resolve(&words, Config::default())
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("/nonexistent/agentd") && error.contains("--agentd"),
            "{error}"
        );
        std::fs::remove_file(machine.folder.path().join("fluxvm-procbox")).expect("removed");
        let error = machine
            .resolve(&[], Config::default())
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("fluxvm-procbox") && error.contains("libexec"),
            "{error}"
        );
    }
}
