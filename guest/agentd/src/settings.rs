//! The daemon's knobs: environment variables with a default each.
//!
//! A number that cannot be read is a warning and the default: a guest that does not boot helps
//! nobody. What the image asks for to be safer and this daemon cannot do, it refuses to start
//! with.

use std::ffi::OsString;
use std::time::Duration;

use agentd_protocol::limits;

/// Where the daemon listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// On a TCP port of every address.
    Port(u16),
    /// On a listening socket that it inherited under this descriptor.
    Inherited(i32),
}

/// Everything that can be set from outside.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) listen: Listen,
    pub(crate) log_filter: String,
    pub(crate) body_bytes_max: u64,
    pub(crate) output_bytes_max: usize,
    pub(crate) output_linger: Duration,
    pub(crate) exec_ttl: Duration,
    pub(crate) stream_buffer_bytes: usize,
    pub(crate) sse_keepalive: Duration,
    pub(crate) disk_reserve_bytes: u64,
    pub(crate) stdin_write_bytes_max: u64,
    pub(crate) default_user: Option<String>,
    pub(crate) kill_grace: Duration,
    /// What could not be read, for the log.
    pub(crate) warnings: Vec<String>,
}

/// A knob asks for something that this daemon cannot promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {why}")]
pub(crate) struct SettingsError {
    variable: &'static str,
    why: &'static str,
}

/// The port of a guest.
const PORT: u16 = 9000;

impl Default for Settings {
    fn default() -> Self {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            listen: Listen::Port(PORT),
            log_filter: "info".into(),
            body_bytes_max: limits::BODY_BYTES_MAX,
            output_bytes_max: bytes(limits::OUTPUT_BYTES_MAX),
            output_linger: limits::OUTPUT_LINGER,
            exec_ttl: limits::EXEC_TTL,
            stream_buffer_bytes: bytes(limits::STREAM_BUFFER_BYTES),
            sse_keepalive: limits::SSE_KEEPALIVE,
            disk_reserve_bytes: limits::DISK_RESERVE_BYTES,
            stdin_write_bytes_max: limits::STDIN_WRITE_BYTES_MAX,
            default_user: None,
            kill_grace: limits::KILL_GRACE,
            warnings: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the process's environment.
    pub(crate) fn from_environment() -> Result<Self, SettingsError> {
        Self::read(|name| std::env::var_os(name))
    }

    /// Reads variables through `lookup`.
    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        refuse_unkept_promises(&lookup)?;
        let mut settings = Self::default();
        let mut warnings = Vec::new();
        let mut number = |name: &str, least: u64, target: &mut u64| {
            let Some(text) = lookup(name) else { return };
            let parsed = text.to_str().and_then(|text| text.trim().parse().ok());
            match parsed.filter(|&value: &u64| value >= least) {
                Some(value) => *target = value,
                None => warnings.push(format!("{name} is no number from {least} up")),
            }
        };
        let mut bytes = |name: &str, least: u64, target: &mut usize| {
            let mut value = u64::try_from(*target).unwrap_or(u64::MAX);
            number(name, least, &mut value);
            *target = usize::try_from(value).unwrap_or(usize::MAX);
        };
        bytes("AGENTD_MAX_OUTPUT_BYTES", 0, &mut settings.output_bytes_max);
        bytes(
            "AGENTD_STREAM_BUFFER_BYTES",
            1,
            &mut settings.stream_buffer_bytes,
        );
        number("AGENTD_MAX_BODY_BYTES", 0, &mut settings.body_bytes_max);
        number(
            "AGENTD_DISK_RESERVE_BYTES",
            0,
            &mut settings.disk_reserve_bytes,
        );
        number(
            "AGENTD_MAX_STDIN_WRITE_BYTES",
            0,
            &mut settings.stdin_write_bytes_max,
        );
        let mut seconds = |name: &str, least: u64, target: &mut Duration| {
            let mut value = target.as_secs();
            number(name, least, &mut value);
            // A timer has to be able to count it.
            *target = Duration::from_secs(value.min(u64::from(u32::MAX)));
        };
        seconds("AGENTD_OUTPUT_LINGER_SECS", 0, &mut settings.output_linger);
        seconds("AGENTD_EXEC_TTL_SECS", 0, &mut settings.exec_ttl);
        seconds("AGENTD_SSE_KEEPALIVE_SECS", 1, &mut settings.sse_keepalive);
        let mut port = u64::from(PORT);
        number("AGENTD_PORT", 0, &mut port);
        match u16::try_from(port) {
            Ok(port) => settings.listen = Listen::Port(port),
            Err(_) => warnings.push("AGENTD_PORT is no port".into()),
        }
        let text = |name: &str| lookup(name).map(|text| text.to_string_lossy().into_owned());
        if let Some(text) = text("AGENTD_LISTEN_FD") {
            // Not a number with a default: a daemon that listens elsewhere is not reachable.
            let descriptor = text.trim().parse().map_err(|_| SettingsError {
                variable: "AGENTD_LISTEN_FD",
                why: "is no descriptor",
            })?;
            settings.listen = Listen::Inherited(descriptor);
        }
        if let Some(filter) = text("AGENTD_LOG") {
            settings.log_filter = filter;
        }
        settings.default_user = text("AGENTD_DEFAULT_USER");
        settings.warnings = warnings;
        Ok(settings)
    }
}

/// Refuses to start where going on would mean running with more rights than the image asked for.
fn refuse_unkept_promises(lookup: &impl Fn(&str) -> Option<OsString>) -> Result<(), SettingsError> {
    let drop = "AGENTD_DROP_EXEC_CAPABILITIES";
    match lookup(drop).as_ref().map(|text| text.to_str()) {
        None | Some(Some("false" | "0")) => {}
        Some(Some("true" | "1")) => {
            let why = "asks for dropped capabilities, which this daemon does not do";
            return Err(SettingsError {
                variable: drop,
                why,
            });
        }
        Some(_) => {
            return Err(SettingsError {
                variable: drop,
                why: "is not true, false, 1 or 0",
            });
        }
    }
    let preserve = "AGENTD_PRESERVE_IMAGE_USER";
    if lookup(preserve).is_some_and(|text| text == "1") && lookup("AGENTD_DEFAULT_USER").is_none() {
        let why = "asks for the image's sealed user, which this daemon does not read";
        return Err(SettingsError {
            variable: preserve,
            why,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::read(|name| {
            pairs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        })
    }

    #[test]
    fn a_number_that_cannot_be_read_is_a_warning_and_the_default() {
        let settings = read(&[
            ("AGENTD_STREAM_BUFFER_BYTES", "0"),
            ("AGENTD_EXEC_TTL_SECS", "soon"),
            ("AGENTD_OUTPUT_LINGER_SECS", " 7 "),
            ("AGENTD_PORT", "99999"),
        ])
        .unwrap();
        assert_eq!(settings.stream_buffer_bytes, 1024 * 1024);
        assert_eq!(settings.exec_ttl, limits::EXEC_TTL);
        assert_eq!(settings.output_linger, Duration::from_secs(7));
        assert_eq!(settings.listen, Listen::Port(PORT));
        assert_eq!(settings.warnings.len(), 3, "{:?}", settings.warnings);
    }

    #[test]
    fn an_inherited_socket_comes_before_a_port() {
        let settings = read(&[("AGENTD_LISTEN_FD", "5"), ("AGENTD_PORT", "1234")]).unwrap();
        assert_eq!(settings.listen, Listen::Inherited(5));
        assert!(read(&[("AGENTD_LISTEN_FD", "x")]).is_err());
    }

    #[test]
    fn what_it_cannot_promise_it_does_not_start_with() {
        for value in ["true", "1", "", "yes"] {
            assert!(
                read(&[("AGENTD_DROP_EXEC_CAPABILITIES", value)]).is_err(),
                "{value:?}"
            );
        }
        for value in ["false", "0"] {
            assert!(
                read(&[("AGENTD_DROP_EXEC_CAPABILITIES", value)]).is_ok(),
                "{value:?}"
            );
        }
        assert!(read(&[("AGENTD_PRESERVE_IMAGE_USER", "1")]).is_err());
    }
}
