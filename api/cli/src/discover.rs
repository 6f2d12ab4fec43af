//! How fluxctl finds the daemon. What is said outright wins (`--server`, `FLUXVM_URL`); else the
//! state folder that was named; else the first usual state folder whose `daemon.json` names a
//! process that lives. A token is only ever sent to the address that the same state folder names,
//! so that a token of one daemon cannot leak to another.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use serde_json::Value;

use crate::args::Global;
use crate::error::CliError;

/// Where the daemon is, and what to show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `http://host:port`, without a trailing slash.
    pub(crate) url: String,
    /// The bearer token, when one is known.
    pub(crate) token: Option<String>,
}

/// What of the environment decides where to look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// `$HOME`.
    pub(crate) home: Option<PathBuf>,
    /// `$XDG_STATE_HOME`.
    pub(crate) xdg_state_home: Option<PathBuf>,
    /// Root's daemon keeps its state elsewhere.
    pub(crate) root: bool,
}

impl Surroundings {
    /// As this process sees them.
    pub(crate) fn of_this_process() -> Self {
        let folder = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        Self {
            home: folder("HOME"),
            xdg_state_home: folder("XDG_STATE_HOME"),
            root: fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0),
        }
    }

    /// The usual state folders, the likeliest first.
    fn state_dirs(&self) -> Vec<PathBuf> {
        let system = PathBuf::from("/var/lib/fluxvm");
        let own = self
            .xdg_state_home
            .clone()
            .or_else(|| self.home.as_ref().map(|home| home.join(".local/state")))
            .map(|state| state.join("fluxvm"));
        if self.root {
            return [system].into_iter().chain(own).collect();
        }
        own.into_iter().chain([system]).collect()
    }
}

/// Finds the daemon.
pub(crate) fn discover(global: &Global, surroundings: &Surroundings) -> Result<Endpoint, CliError> {
    let found = match &global.state_dir {
        Some(dir) => read_state_dir(dir).transpose(),
        None => first_living(&surroundings.state_dirs()),
    };
    // A variable that is set to nothing says nothing.
    let said = |option: &Option<String>| option.clone().filter(|text| !text.is_empty());
    let (server, server_token) = (said(&global.server), said(&global.server_token));
    let Some(server) = server else {
        let looked = match &global.state_dir {
            Some(dir) => vec![dir.clone()],
            None => surroundings.state_dirs(),
        };
        let state = found.ok_or(CliError::NoDaemon { looked })??;
        let token = match server_token {
            Some(token) => Some(token),
            None => state.read_token()?,
        };
        return Ok(Endpoint {
            url: state.url,
            token,
        });
    };
    let url = plain_url(&server)?;
    let token = match (server_token, found) {
        (Some(token), _) => Some(token),
        (None, Some(Ok(state))) if state.url == url => state.read_token()?,
        (None, _) => None,
    };
    Ok(Endpoint { url, token })
}

/// What a daemon wrote about itself.
#[derive(Debug)]
struct DaemonFile {
    url: String,
    token_file: Option<PathBuf>,
    alive: bool,
}

impl DaemonFile {
    fn read_token(&self) -> Result<Option<String>, CliError> {
        let Some(path) = &self.token_file else {
            return Ok(None);
        };
        let refused = |reason: String| CliError::Discovery {
            path: path.clone(),
            reason,
        };
        let metadata = fs::metadata(path).map_err(|error| refused(error.to_string()))?;
        // The token is all of an administrator's power; one that others can read is no secret.
        if metadata.mode() & 0o077 != 0 {
            return Err(refused(
                "others can read this token: `chmod 600` it first".to_owned(),
            ));
        }
        let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        Ok(Some(text.trim().to_owned()))
    }
}

/// The first folder with a daemon that lives; when none lives, the first that held one, so that
/// the error names an address.
fn first_living(dirs: &[PathBuf]) -> Option<Result<DaemonFile, CliError>> {
    let mut second_best = None;
    for dir in dirs {
        match read_state_dir(dir) {
            Ok(Some(state)) if state.alive => return Some(Ok(state)),
            Ok(Some(state)) => second_best = second_best.or(Some(Ok(state))),
            Err(error) => second_best = second_best.or(Some(Err(error))),
            Ok(None) => {}
        }
    }
    second_best
}

/// Reads `<dir>/daemon.json`. A folder that is absent, or another user's, holds no daemon for us.
fn read_state_dir(dir: &Path) -> Result<Option<DaemonFile>, CliError> {
    let path = dir.join("daemon.json");
    let refused = |reason: String| CliError::Discovery {
        path: path.clone(),
        reason,
    };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error)
            if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied]
                .contains(&error.kind()) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(refused(error.to_string())),
    };
    let value: Value = serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
    let url = value
        .get("url")
        .and_then(Value::as_str)
        .ok_or_else(|| refused("no `url`".to_owned()))?;
    let pid = value.get("pid").and_then(Value::as_u64);
    Ok(Some(DaemonFile {
        url: plain_url(url)?,
        token_file: value
            .get("token_file")
            .and_then(Value::as_str)
            .map(|file| dir.join(file)),
        alive: pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists()),
    }))
}

/// An address that we can speak to. TLS is not built in, and a token must not go out in the hope
/// that it would be encrypted.
fn plain_url(text: &str) -> Result<String, CliError> {
    let url = text.trim_end_matches('/');
    match url.split_once("://") {
        Some(("http", host)) if !host.is_empty() && !host.contains(['/', '@', ' ']) => {
            Ok(url.to_owned())
        }
        Some(("https", _)) => Err(CliError::Usage(format!(
            "{text}: this version speaks http only; reach a distant daemon through an ssh tunnel"
        ))),
        _ => Err(CliError::Usage(format!(
            "{text}: write the address as http://127.0.0.1:7788"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn state(dir: &Path, url: &str, pid: u32) {
        fs::create_dir_all(dir).expect("folder");
        let token_file = dir.join("admin-token");
        fs::write(&token_file, format!("token-of-{url}\n")).expect("token");
        fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).expect("mode");
        let body = serde_json::json!({"url": url, "token_file": token_file, "pid": pid});
        fs::write(dir.join("daemon.json"), body.to_string()).expect("daemon.json");
    }

    fn global() -> Global {
        Global {
            server: None,
            server_token: None,
            state_dir: None,
            json: false,
            table: false,
        }
    }

    /// No process has this id: it is above the kernel's limit.
    const DEAD: u32 = 99_999_999;

    #[test]
    fn a_named_state_folder_gives_address_and_token() {
        let temp = tempfile::tempdir().expect("tempdir");
        state(temp.path(), "http://127.0.0.1:4000/", std::process::id());
        let global = Global {
            state_dir: Some(temp.path().to_owned()),
            ..global()
        };
        let endpoint = discover(&global, &Surroundings::default()).expect("found");
        assert_eq!(endpoint.url, "http://127.0.0.1:4000");
        assert_eq!(
            endpoint.token.as_deref(),
            Some("token-of-http://127.0.0.1:4000/")
        );
    }

    #[test]
    fn a_living_daemon_wins_over_the_remains_of_a_dead_one() {
        let temp = tempfile::tempdir().expect("tempdir");
        let (xdg, home) = (temp.path().join("xdg"), temp.path().join("home"));
        state(&xdg.join("fluxvm"), "http://127.0.0.1:1", DEAD);
        let dead_only = Surroundings {
            xdg_state_home: Some(xdg),
            ..Surroundings::default()
        };
        assert_eq!(
            discover(&global(), &dead_only).expect("found").url,
            "http://127.0.0.1:1"
        );
        state(
            &home.join("fluxvm"),
            "http://127.0.0.1:2",
            std::process::id(),
        );
        let dirs = [dead_only.state_dirs(), vec![home.join("fluxvm")]].concat();
        let state = first_living(&dirs).expect("one").expect("readable");
        assert_eq!(state.url, "http://127.0.0.1:2");
    }

    #[test]
    fn a_token_goes_only_to_the_address_of_its_own_state_folder() {
        let temp = tempfile::tempdir().expect("tempdir");
        state(temp.path(), "http://127.0.0.1:4000", std::process::id());
        let to = |server: &str| Global {
            server: Some(server.to_owned()),
            state_dir: Some(temp.path().to_owned()),
            ..global()
        };
        let own = discover(&to("http://127.0.0.1:4000"), &Surroundings::default()).expect("own");
        assert!(own.token.is_some());
        let other = discover(&to("http://10.0.0.1:4000"), &Surroundings::default()).expect("other");
        assert_eq!(other.token, None);
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let temp = tempfile::tempdir().expect("tempdir");
        state(temp.path(), "http://127.0.0.1:4000", std::process::id());
        let token = temp.path().join("admin-token");
        fs::set_permissions(token, fs::Permissions::from_mode(0o644)).expect("mode");
        let global = Global {
            state_dir: Some(temp.path().to_owned()),
            ..global()
        };
        let error = discover(&global, &Surroundings::default()).expect_err("refused");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn without_a_daemon_the_error_says_where_we_looked() {
        let temp = tempfile::tempdir().expect("tempdir");
        let global = Global {
            state_dir: Some(temp.path().to_owned()),
            ..global()
        };
        let error = discover(&global, &Surroundings::default()).expect_err("nothing there");
        assert!(
            error
                .to_string()
                .contains(&temp.path().display().to_string()),
            "{error}"
        );
        assert_eq!(error.exit_code(), crate::error::EXIT_UNREACHABLE);
    }

    #[test]
    fn an_address_that_we_cannot_speak_to_is_a_usage_error() {
        for wrong in [
            "https://host",
            "127.0.0.1:7788",
            "http://",
            "ftp://x",
            "http://a/b",
            "http://u@h",
        ] {
            let global = Global {
                server: Some(wrong.to_owned()),
                ..global()
            };
            let error = discover(&global, &Surroundings::default()).expect_err(wrong);
            assert_eq!(error.exit_code(), crate::error::EXIT_USAGE, "{wrong}");
        }
    }
}
