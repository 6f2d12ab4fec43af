//! Starting the real daemon, in every way that a test needs.

use std::fs::OpenOptions;
use std::io::BufRead;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::mpsc;

use serde_json::Value;

use crate::api::Api;
use crate::binaries::Program;
use crate::binaries::program;
use crate::daemon::Daemon;
use crate::daemon::Ended;
use crate::state::State;
use crate::state::last_lines;
use crate::wait::PATIENCE;
use crate::wait::eventually;

/// How a daemon is to be started.
#[derive(Clone, Debug)]
pub struct Start {
    program: PathBuf,
    agentd: PathBuf,
    launcher: PathBuf,
    state: PathBuf,
    log: PathBuf,
    listen: String,
    words: Vec<String>,
    variables: Vec<(String, String)>,
    user: Option<u32>,
}

impl Start {
    /// The daemon as it is built, on a free port.
    #[must_use]
    pub fn new(state: &State) -> Self {
        Self {
            program: program(Program::Daemon),
            agentd: program(Program::Agentd),
            launcher: program(Program::Launcher),
            state: state.root(),
            log: state.log(),
            listen: "127.0.0.1:0".to_owned(),
            words: Vec::new(),
            variables: Vec::new(),
            user: None,
        }
    }

    /// The daemon that ends at this point, as a power cut would end it.
    #[must_use]
    pub fn crashing_at(state: &State, point: &str) -> Self {
        let start = Self {
            program: program(Program::CrashDaemon),
            ..Self::new(state)
        };
        start.variable("FLUXVM_CRASH_AT", point)
    }

    /// A copy of the programs (see [`crate::copy_programs`]), run as an ordinary user.
    ///
    /// # Panics
    ///
    /// When the daemon's place is no place.
    #[must_use]
    pub fn as_user(daemon: &Path, state: &State, uid: u32) -> Self {
        let folder = daemon.parent().expect("a folder");
        Self {
            program: daemon.to_owned(),
            agentd: folder.join("guest/microvms-agentd"),
            launcher: folder.join("fluxvm-procbox"),
            user: Some(uid),
            ..Self::new(state)
        }
    }

    /// On another state folder than the state's own.
    #[must_use]
    pub fn state_dir(self, state: &Path) -> Self {
        Self {
            state: state.to_owned(),
            ..self
        }
    }

    /// On another address.
    #[must_use]
    pub fn listen(self, address: &str) -> Self {
        Self {
            listen: address.to_owned(),
            ..self
        }
    }

    /// With another launcher of sandboxes.
    #[must_use]
    pub fn launcher(self, path: &str) -> Self {
        Self {
            launcher: path.into(),
            ..self
        }
    }

    /// With more words on the command line.
    #[must_use]
    pub fn words(mut self, words: &[&str]) -> Self {
        self.words
            .extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    /// With one more variable in an otherwise fixed environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    ///
    /// When it ends or says nothing.
    #[must_use]
    pub fn ready(self) -> Daemon {
        let mut child = self.spawn();
        let Some(ready) = ready_line(&mut child) else {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            panic!("the daemon did not start:\n{}", self.last_words());
        };
        assert_eq!(ready["pid"], child.id(), "{ready}");
        let token_file = ready["token_file"]
            .as_str()
            .map(PathBuf::from)
            .unwrap_or_default();
        let token = std::fs::read_to_string(&token_file).ok();
        let url = ready["url"].as_str().expect("an address");
        let api = Api::new(url, token.as_deref().map(str::trim));
        Daemon {
            child: Some(child),
            api,
            state: self.state,
            log: self.log,
            token_file,
        }
    }

    /// Starts what must end by itself, and answers how it ended and what its log says.
    ///
    /// # Panics
    ///
    /// When it does not end.
    #[must_use]
    pub fn refused(self) -> (Ended, String) {
        let mut child = self.spawn();
        let ended = eventually("a daemon that must not run has ended", || {
            child.try_wait().expect("our own child")
        });
        (ended.into(), self.last_words())
    }

    fn spawn(&self) -> Child {
        let mut command = Command::new(&self.program);
        // What the developer's own environment says must not decide.
        command.env_clear();
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/nonexistent");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
            .arg("--state-dir")
            .arg(&self.state)
            .arg("--listen")
            .arg(&self.listen);
        command
            .arg("--agentd")
            .arg(&self.agentd)
            .arg("--launcher")
            .arg(&self.launcher);
        command.arg("--ready-json").args(&self.words);
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid).current_dir("/");
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("a log");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        command.spawn().expect("the daemon's program runs")
    }

    fn last_words(&self) -> String {
        last_lines(&self.log)
    }
}

/// The one line that a daemon prints when it answers.
fn ready_line(child: &mut Child) -> Option<Value> {
    let stdout = child.stdout.take()?;
    let (sender, line) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines();
        // The test may have given up.
        let _ = sender.send(lines.next());
        // Whatever else it prints is read, so that it never waits for us.
        lines.for_each(drop);
    });
    let line = line.recv_timeout(PATIENCE).ok()??.ok()?;
    Some(serde_json::from_str(&line).expect("--ready-json prints JSON"))
}
