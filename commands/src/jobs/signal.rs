//! The signals that a job can be sent, by name or number.

use crate::error::CommandError;

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    /// Its name, without `SIG`.
    pub(crate) name: &'static str,
    /// Its number.
    pub(crate) number: i32,
}

const fn signal(name: &'static str, number: i32) -> Signal {
    Signal { name, number }
}

/// Those that mean something to a program that is sent one. The numbers are those of every machine that
/// sandboxes run on.
const SIGNALS: &[Signal] = &[
    signal("HUP", 1),
    signal("INT", 2),
    signal("QUIT", 3),
    signal("ABRT", 6),
    signal("KILL", 9),
    signal("USR1", 10),
    signal("USR2", 12),
    signal("ALRM", 14),
    signal("TERM", 15),
    signal("CONT", 18),
    signal("STOP", 19),
    signal("TSTP", 20),
    signal("WINCH", 28),
];

impl Signal {
    /// What is sent when the caller names none.
    pub(crate) const TERM: Self = signal("TERM", 15);

    /// What nobody can refuse.
    pub(crate) const KILL: Self = signal("KILL", 9);

    /// Reads a name, with or without `SIG`, or a number.
    pub(crate) fn parse(text: &str) -> Result<Self, CommandError> {
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let is_meant = |it: &&Self| it.name == name || it.number.to_string() == text;
        SIGNALS.iter().find(is_meant).copied().ok_or_else(|| {
            let known: Vec<&str> = SIGNALS.iter().map(|it| it.name).collect();
            CommandError::Invalid {
                field: "signal",
                message: format!("must be one of {}", known.join(", ")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_and_a_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(Signal::parse(text).expect(text), Signal::TERM);
        }
        for text in ["", "SIG", "0", "99", "TERMINATE"] {
            assert_eq!(Signal::parse(text).expect_err(text).field(), Some("signal"));
        }
    }
}
