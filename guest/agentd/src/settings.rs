//! The daemon's knobs: environment variables with a default each.
//!
//! A number that cannot be read is a warning and the default: a guest that does not boot helps
//! nobody. What the image asks for to be safer and this daemon cannot do, it refuses to start
//! with.

use std::ffi::OsString;
use std::time::Duration;

use agentd_protocol::limits;

use crate::image_user;
use crate::image_user::ImageUser;

/// Where the daemon listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// On a TCP port of every address.
    Port(u16),
    /// On a listening socket that it inherited under this descriptor.
    Inherited(i32),
}

/// Who runs a start that names no user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DefaultUser {
    /// The daemon's own user.
    #[default]
    Daemon,
    /// A name or a number that has a row among the guest's users.
    Named(String),
    /// The user that the image was built to run as.
    Captured(ImageUser),
    /// It was to be kept from the build, and what was kept is broken.
    Broken(String),
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
    pub(crate) default_user: DefaultUser,
    pub(crate) repair_identity: bool,
    pub(crate) drop_capabilities: bool,
    /// Whether commands are kept from looking into this daemon, root's included.
    pub(crate) guard_self: bool,
    pub(crate) hook_handler_timeout: Duration,
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
            default_user: DefaultUser::Daemon,
            repair_identity: true,
            drop_capabilities: false,
            guard_self: false,
            hook_handler_timeout: limits::HOOK_HANDLER_TIMEOUT,
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
        let mut settings = Self {
            drop_capabilities: about_rights("AGENTD_DROP_EXEC_CAPABILITIES", &lookup)?,
            guard_self: about_rights("AGENTD_GUARD_SELF", &lookup)?,
            ..Self::default()
        };
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
        seconds(
            "AGENTD_HOOK_HANDLER_TIMEOUT_SECS",
            0,
            &mut settings.hook_handler_timeout,
        );
        let (least, most) = limits::HOOK_HANDLER_TIMEOUT_SECS.into_inner();
        settings.hook_handler_timeout = settings
            .hook_handler_timeout
            .clamp(Duration::from_secs(least), Duration::from_secs(most));
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
        if let Some(text) = text("AGENTD_REPAIR_IDENTITY") {
            match text.trim().to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => settings.repair_identity = true,
                "0" | "false" | "no" | "off" => settings.repair_identity = false,
                _ => warnings.push("AGENTD_REPAIR_IDENTITY is neither true nor false".into()),
            }
        }
        if let Some(name) = text("AGENTD_DEFAULT_USER") {
            settings.default_user = DefaultUser::Named(name);
        } else if text("AGENTD_PRESERVE_IMAGE_USER").is_some_and(|text| text == "1") {
            settings.default_user = match image_user::sealed(image_user::RECORD.as_ref()) {
                Ok(user) => DefaultUser::Captured(user),
                Err(why) => DefaultUser::Broken(why),
            };
        }
        settings.warnings = warnings;
        Ok(settings)
    }
}

/// Whether commands are to lose rights. What cannot be understood refuses the start: going on would
/// mean running with more rights than the image asked for.
fn about_rights(
    variable: &'static str,
    lookup: &impl Fn(&str) -> Option<OsString>,
) -> Result<bool, SettingsError> {
    match lookup(variable).as_ref().map(|text| text.to_str()) {
        None | Some(Some("false" | "0")) => Ok(false),
        Some(Some("true" | "1")) => Ok(true),
        Some(_) => Err(SettingsError {
            variable,
            why: "is not true, false, 1 or 0",
        }),
    }
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
    fn what_is_not_plainly_yes_or_no_about_rights_refuses_the_start() {
        let drop = |value: &str| read(&[("AGENTD_DROP_EXEC_CAPABILITIES", value)]);
        for value in ["", "yes", "TRUE", " true"] {
            assert!(drop(value).is_err(), "{value:?}");
        }
        for (value, expected) in [("true", true), ("1", true), ("false", false), ("0", false)] {
            assert_eq!(drop(value).unwrap().drop_capabilities, expected);
            let guard = read(&[("AGENTD_GUARD_SELF", value)]).unwrap();
            assert_eq!(guard.guard_self, expected);
        }
    }

    #[test]
    fn knobs_that_are_not_numbers_are_read_as_leniently() {
        let settings = read(&[
            ("AGENTD_REPAIR_IDENTITY", " OFF "),
            ("AGENTD_HOOK_HANDLER_TIMEOUT_SECS", "600"),
            ("AGENTD_DEFAULT_USER", "web"),
            ("AGENTD_PRESERVE_IMAGE_USER", "1"),
        ])
        .unwrap();
        assert!(!settings.repair_identity);
        assert_eq!(settings.hook_handler_timeout, Duration::from_secs(55));
        assert_eq!(settings.default_user, DefaultUser::Named("web".into()));
        let settings = read(&[
            ("AGENTD_REPAIR_IDENTITY", "perhaps"),
            ("AGENTD_HOOK_HANDLER_TIMEOUT_SECS", "0"),
        ])
        .unwrap();
        assert!(settings.repair_identity && settings.warnings.len() == 1);
        assert_eq!(settings.hook_handler_timeout, Duration::from_secs(1));
    }
}
