//! The real daemon, as a process of the test.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;

use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

use crate::api::Api;
use crate::census::Census;
use crate::census::first_process;
use crate::ctl::Ctl;
use crate::start::Start;
use crate::state::State;
use crate::state::last_lines;
use crate::wait::PATIENCE;

/// A running daemon. Going out of scope it deletes its sessions, looks whether anything of them is
/// left, and ends in order.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) child: Option<Child>,
    pub(crate) api: Api,
    pub(crate) state: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) token_file: PathBuf,
}

/// A daemon that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        Self {
            code: status.code(),
            signal: status.signal(),
        }
    }
}

impl Daemon {
    /// Starts the daemon on a state folder.
    #[must_use]
    pub fn start(state: &State) -> Self {
        Start::new(state).ready()
    }

    /// Its HTTP surface, with the admin token.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The command line beside it.
    #[must_use]
    pub fn ctl(&self) -> Ctl {
        Ctl::new(self.state.clone())
    }

    /// Where its admin token lies.
    #[must_use]
    pub fn token_file(&self) -> &Path {
        &self.token_file
    }

    /// Its state folder.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// Its process.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running daemon").id()
    }

    /// What its sandboxes have on the host now.
    #[must_use]
    pub fn census(&self) -> Census {
        Census::take(&self.state, self.child.as_ref().map(Child::id))
    }

    /// The process on the host that is the first one in this session's sandbox.
    ///
    /// # Panics
    ///
    /// When there is none, or more than one.
    #[must_use]
    pub fn guest_pid(&self, session: &str) -> i32 {
        let record = self.api.session(session);
        let sandbox = record["sandbox_id"].as_str().expect("an id");
        let folder = self.state.join("sandboxes").join(sandbox);
        first_process(&folder).expect("its record names its first process")
    }

    /// Ends it without warning.
    pub fn kill9(mut self) {
        let mut child = self.child.take().expect("a running daemon");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Asks it to end and waits until it has.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn terminate(mut self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("our own child");
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn ended(mut self) -> Ended {
        self.wait()
    }

    fn wait(&mut self) -> Ended {
        let mut child = self.child.take().expect("a running daemon");
        let mut ended = None;
        let deadline = std::time::Instant::now() + PATIENCE;
        while ended.is_none() && std::time::Instant::now() < deadline {
            ended = child.try_wait().expect("our own child");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let Some(ended) = ended else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the daemon did not end:\n{}", self.last_words());
        };
        ended.into()
    }

    /// Deletes every session and asserts that nothing of any sandbox is left.
    ///
    /// # Panics
    ///
    /// When something is.
    pub fn remove_everything(&self) {
        let before = self.census();
        for session in self.api.sessions() {
            self.api.remove(session["id"].as_str().expect("an id"));
        }
        let made = self.sandboxes_ever();
        for left in [self.census(), before.still_there(&made)] {
            let log = self.last_words();
            assert!(left.is_empty(), "left behind: {left:#?}\n{log}");
        }
    }

    /// Every sandbox that the ledger knows of.
    fn sandboxes_ever(&self) -> Vec<String> {
        let events = crate::ledger::events_of(&self.api.export_ledger());
        let asked = events
            .iter()
            .filter(|event| event.header.kind.as_str() == "session.create.started");
        let sandbox = |payload: &[u8]| -> Option<String> {
            let payload: Value = serde_json::from_slice(payload).ok()?;
            payload["sandbox_id"].as_str().map(str::to_owned)
        };
        asked
            .filter_map(|event| sandbox(event.payload_bytes()?))
            .collect()
    }

    fn last_words(&self) -> String {
        last_lines(&self.log)
    }

    /// After a failure: end what runs, whatever it says.
    fn clear_away(&mut self) {
        println!("the daemon's log:\n{}", self.last_words());
        if let Ok(list) = self.api.try_send("GET", crate::SESSIONS, &[], &[])
            && let Ok(list) = serde_json::from_slice::<Value>(&list.body)
        {
            for session in list["items"].as_array().into_iter().flatten() {
                let id = session["id"].as_str().unwrap_or_default();
                let path = format!("{}/{id}", crate::SESSIONS);
                let _ = self.api.try_send("DELETE", &path, &[], &[]);
            }
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Census::take(&self.state, None).sweep();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.is_none() {
            return;
        }
        if std::thread::panicking() {
            return self.clear_away();
        }
        self.remove_everything();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        assert!(!log.contains("panicked at"), "the daemon panicked:\n{log}");
        self.signal(Signal::SIGTERM);
        let ended = self.wait();
        assert_eq!(
            ended.code,
            Some(0),
            "it did not end in order:\n{}",
            self.last_words()
        );
    }
}

/// A daemon that the tests of one program share when they run side by side in it. It goes with the
/// last of them.
///
/// # Panics
///
/// When it does not start.
#[must_use]
pub fn shared() -> Arc<SharedDaemon> {
    static SHARED: Mutex<Weak<SharedDaemon>> = Mutex::new(Weak::new());
    let mut slot = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = slot.upgrade() {
        return running;
    }
    let state = State::new();
    let daemon = Daemon::start(&state);
    let fresh = Arc::new(SharedDaemon {
        daemon,
        _state: state,
    });
    *slot = Arc::downgrade(&fresh);
    fresh
}

/// A daemon and its state folder.
#[derive(Debug)]
pub struct SharedDaemon {
    daemon: Daemon,
    _state: State,
}

impl std::ops::Deref for SharedDaemon {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
