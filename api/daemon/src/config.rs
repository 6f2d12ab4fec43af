//! The config file: TOML, read strictly.
//!
//! An unknown key is an error that names it: a misspelt `requrie = true` must not be a daemon that lets
//! everyone in. No error prints a line of the file, because the line may hold a token.

mod ledger;

use std::fs::File;
use std::io;
use std::io::Read;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::Error;

pub(crate) use ledger::ArchivePolicy;
pub(crate) use ledger::LedgerConfig;
pub(crate) use ledger::VerifyAtStart;
pub(crate) use ledger::check_archive;

use crate::limits::CONFIG_BYTES_MAX;
use crate::limits::NAME_BYTES_MAX;
use crate::limits::TOKEN_BYTES_MAX;
use crate::limits::TOKEN_BYTES_MIN;

/// An address and port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) SocketAddr);

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self(address));
        }
        if let Some(port) = text
            .strip_prefix("localhost:")
            .and_then(|port| port.parse().ok())
        {
            return Ok(Self(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
        }
        Err(format!(
            "`{text}` is not an address with a port, such as 127.0.0.1:7788 or [::1]:7788"
        ))
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Address to listen on.
    pub(crate) listen: Option<ListenAddress>,
    /// The state folder.
    pub(crate) state_dir: Option<PathBuf>,
    /// Who may do what.
    pub(crate) auth: AuthConfig,
    /// The ledger.
    pub(crate) ledger: LedgerConfig,
    /// The sandbox engine.
    pub(crate) sandbox: SandboxConfig,
}

/// `[auth]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthConfig {
    /// `false` is the same as `--open`. Left out, a token is required.
    pub(crate) require: Option<bool>,
    /// Tokens beside the admin token of the state folder.
    pub(crate) tokens: Vec<TokenConfig>,
    /// Requests that one actor may make in a second; left out, any number.
    pub(crate) rate_limit_rps: Option<u32>,
    /// Requests that one actor may make at once, after a silence.
    pub(crate) rate_limit_burst: Option<u32>,
}

/// One of `[[auth.tokens]]`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    /// The secret itself.
    pub(crate) token: String,
    /// What it may do.
    pub(crate) role: Role,
    /// How the ledger names its holder.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// The tenant that it is confined to.
    #[serde(default)]
    pub(crate) tenant: Option<String>,
}

impl std::fmt::Debug for TokenConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenConfig")
            .field("role", &self.role)
            .field("name", &self.name)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Everything, within its tenant if it has one.
    Admin,
    /// Look at the host; no session.
    ReadOnly,
}

impl Role {
    /// The role's name.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::ReadOnly => "read-only",
        }
    }
}

/// `[sandbox]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxConfig {
    /// The guest daemon.
    pub(crate) agentd: Option<PathBuf>,
    /// The program that builds namespaces.
    pub(crate) launcher: Option<PathBuf>,
    /// Where named images lie.
    pub(crate) images_dir: Option<PathBuf>,
    /// The first host user id that guests are mapped to.
    pub(crate) uid_base: Option<u32>,
    /// How many there are.
    pub(crate) uid_count: Option<u32>,
    /// Paths of this machine that no sandbox may see, beside those that none ever sees.
    pub(crate) masked_paths: Vec<PathBuf>,
}

/// Why a config file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// It cannot be read.
    #[error("config {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is larger than any config.
    #[error("config {}: larger than {CONFIG_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It holds tokens and others can read it.
    #[error("config {}: it holds tokens and others can read it (mode {mode:03o}); `chmod 600` it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It does not say something that makes sense.
    #[error("config {}: {reason}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What, and where.
        reason: String,
    },
}

/// Reads a config file.
///
/// # Errors
///
/// [`ConfigError`]; its message names the key.
pub(crate) fn load(path: &Path) -> Result<Config, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.len() > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
        });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    let config = parse(&text).map_err(|reason| ConfigError::Wrong {
        path: path.to_owned(),
        reason,
    })?;
    if !config.auth.tokens.is_empty() && metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(ConfigError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(config)
}

fn parse(text: &str) -> Result<Config, String> {
    let line = |span: Option<std::ops::Range<usize>>| {
        let before = span.and_then(|span| text.get(..span.start));
        before.map_or(String::new(), |before| {
            format!("line {}: ", before.matches('\n').count() + 1)
        })
    };
    let reader = toml::Deserializer::parse(text)
        .map_err(|error| format!("{}{}", line(error.span()), error.message()))?;
    let config: Config = serde_path_to_error::deserialize(reader).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner());
        format!("{}{path}: {}", line(inner.span()), inner.message())
    })?;
    check(&config)?;
    Ok(config)
}

fn check(config: &Config) -> Result<(), String> {
    for (index, token) in config.auth.tokens.iter().enumerate() {
        let key = |name: &str| format!("auth.tokens[{index}].{name}");
        let length = token.token.len();
        let printable = token.token.bytes().all(|byte| byte.is_ascii_graphic());
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&length) || !printable {
            return Err(format!(
                "{}: must be {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} visible ASCII characters",
                key("token")
            ));
        }
        if config
            .auth
            .tokens
            .iter()
            .take(index)
            .any(|other| other.token == token.token)
        {
            return Err(format!("{}: the same token twice", key("token")));
        }
        for (name, value) in [("name", &token.name), ("tenant", &token.tenant)] {
            if value.as_deref().is_some_and(|value| !is_name(value)) {
                return Err(format!(
                    "{}: must be 1 to {NAME_BYTES_MAX} of letters, digits, `.`, `_`, `@` and `-`",
                    key(name)
                ));
            }
        }
    }
    if config.auth.require == Some(false) && !config.auth.tokens.is_empty() {
        return Err(
            "auth.require: false lets everyone in, so that auth.tokens mean nothing".into(),
        );
    }
    let rates = [config.auth.rate_limit_rps, config.auth.rate_limit_burst];
    if rates.contains(&Some(0)) {
        return Err("auth.rate_limit_rps and auth.rate_limit_burst: must be at least 1".into());
    }
    if config.auth.rate_limit_burst.is_some() && config.auth.rate_limit_rps.is_none() {
        return Err("auth.rate_limit_burst: goes with auth.rate_limit_rps".into());
    }
    ledger::check(&config.ledger)?;
    if config.sandbox.uid_count == Some(0) {
        return Err("sandbox.uid_count: must be at least 1".into());
    }
    if let Some(path) = config
        .sandbox
        .masked_paths
        .iter()
        .find(|path| !path.is_absolute())
    {
        return Err(format!(
            "sandbox.masked_paths: {} is not an absolute path",
            path.display()
        ));
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use expect_test::Expect;
    use expect_test::expect;

    use super::*;

    fn check(configs: &[&str], expected: Expect) {
        let lines: Vec<String> = configs
            .iter()
            .map(|text| match parse(text) {
                Ok(_) => "ok\n".to_owned(),
                Err(reason) => format!("{reason}\n"),
            })
            .collect();
        expected.assert_eq(&lines.concat());
    }

    #[test]
    fn every_key_is_known_and_every_other_is_named() {
        check(
            &[
                "",
                "listen = \"[::1]:0\"\nstate_dir = \"/s\"\n[auth]\nrequire = true\n\
                 [[auth.tokens]]\ntoken = \"0123456789abcdef\"\nrole = \"admin\"\nname = \"ops\"\n\
                 tenant = \"a\"\n[sandbox]\nagentd = \"/a\"\nlauncher = \"/l\"\nimages_dir = \"/i\"\n\
                 uid_base = 100000\nuid_count = 65536\nmasked_paths = [\"/srv/private\"]\n",
                "lsten = \"127.0.0.1:1\"",
                "listen = \"7788\"",
                "[auth]\nrequrie = true",
                "[auth]\nrequire = \"yes\"",
                "[[auth.tokens]]\ntoken = \"0123456789abcdef\"\nrole = \"root\"",
                "[[auth.tokens]]\ntoken = \"0123456789abcdef\"",
                "[[auth.tokens]]\ntoken = \"short\"\nrole = \"admin\"",
                "[[auth.tokens]]\ntoken = \"0123456789abcdef\"\nrole = \"admin\"\ntenant = \"a/b\"",
                "[auth]\nrequire = false\n[[auth.tokens]]\ntoken = \"0123456789abcdef\"\nrole = \"admin\"",
                "[sandbox]\nuid_count = 0",
                "[sandbox]\nmasked_paths = [\"srv\"]",
                "[sandbox]\nuid_base = -1",
                "[ledger]\narchive = \"/a\"\narchive_failure = \"stop\"\n\
                 checkpoint_dir = \"/c\"\ncheckpoint_stdout = true\nwitness = \"http://w:1/x\"",
                "[ledger]\narchive = \"a\"",
                "[ledger]\narchive_failure = \"ignore\"",
                "[ledger]\nwitness = \"https://w/\"",
                "[ledger]\nverify_at_start = \"full\"",
                "[ledger]\nverify_at_start = \"never\"",
                "listen = ",
            ],
            expect![[r#"
                ok
                ok
                line 1: lsten: unknown field `lsten`, expected one of `listen`, `state_dir`, `auth`, `ledger`, `sandbox`
                line 1: listen: `7788` is not an address with a port, such as 127.0.0.1:7788 or [::1]:7788
                line 2: auth.requrie: unknown field `requrie`, expected one of `require`, `tokens`, `rate_limit_rps`, `rate_limit_burst`
                line 2: auth.require: invalid type: string "yes", expected a boolean
                line 3: auth.tokens[0].role: unknown variant `root`, expected `admin` or `read-only`
                line 1: auth.tokens[0]: missing field `role`
                auth.tokens[0].token: must be 16 to 512 visible ASCII characters
                auth.tokens[0].tenant: must be 1 to 64 of letters, digits, `.`, `_`, `@` and `-`
                auth.require: false lets everyone in, so that auth.tokens mean nothing
                sandbox.uid_count: must be at least 1
                sandbox.masked_paths: srv is not an absolute path
                line 2: sandbox.uid_base: invalid value: integer `-1`, expected u32
                ok
                ledger.archive: a is not an absolute path
                line 2: ledger.archive_failure: unknown variant `ignore`, expected `report` or `stop`
                ledger.witness: must be an http:// address; for TLS put a forwarder on this machine
                ok
                line 2: ledger.verify_at_start: unknown variant `never`, expected `tail` or `full`
                line 1: string values must be quoted, expected literal string
            "#]],
        );
    }

    #[test]
    fn no_error_prints_a_token() {
        for text in [
            "[[auth.tokens]]\ntoken = \"secret-of-mine-0001\"\nrole = \"root\"",
            "[[auth.tokens]]\ntoken = \"secret-of-mine-0001\" x",
            "[[auth.tokens]]\ntokn = \"secret-of-mine-0001\"",
            "[[auth.tokens]]\ntoken = [\"secret-of-mine-0001\"]",
            "[auth]\nrequire = \"secret-of-mine-0001\"",
        ] {
            let reason = parse(text).expect_err("wrong");
            assert!(
                !reason.contains("secret-of-mine") || text.contains("require"),
                "{reason}"
            );
        }
    }

    #[test]
    fn a_config_with_tokens_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("config.toml");
        let text = "[[auth.tokens]]\ntoken = \"0123456789abcdef\"\nrole = \"admin\"";
        std::fs::write(&path, text).expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o640).expect("mode");
        assert!(matches!(
            load(&path),
            Err(ConfigError::Exposed { mode: 0o640, .. })
        ));
        mode(0o600).expect("mode");
        assert!(load(&path).is_ok());
    }
}
