//! Names that end up under a hash: streams, kinds of events, actors.
//!
//! Each is parsed once at the edge and cheap to clone afterwards. The alphabets are narrow so that
//! a name reads the same in a log, a URL, a file name and a shell, and so that two different names
//! never look alike.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error as _;

/// The longest stream name in bytes.
pub const STREAM_NAME_BYTES_MAX: usize = 160;
/// The longest part of a stream name behind its slash, in bytes.
const STREAM_LOCAL_BYTES_MAX: usize = 128;
/// The longest kind of an event in bytes.
pub const EVENT_KIND_BYTES_MAX: usize = 64;
/// The longest actor in bytes.
pub const ACTOR_BYTES_MAX: usize = 256;

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing at all was given.
    #[error("{what} must not be empty")]
    Empty {
        /// Which kind of name was wanted.
        what: &'static str,
    },
    /// More bytes than the name may have.
    #[error("{what} has {bytes} bytes, the limit is {bytes_max}")]
    TooLong {
        /// Which kind of name was wanted.
        what: &'static str,
        /// How many bytes were given.
        bytes: usize,
        /// How many are allowed.
        bytes_max: usize,
    },
    /// The text does not have the form of the name.
    #[error("{what} must be {form}, but is {text:?}")]
    Form {
        /// Which kind of name was wanted.
        what: &'static str,
        /// What it has to look like.
        form: &'static str,
        /// What was given.
        text: String,
    },
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Reads a name; the error says what is wrong with it.
            pub fn parse(text: &str) -> Result<$name, NameError> {
                $check(text)?;
                Ok($name(Arc::from(text)))
            }

            /// The text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), &self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<$name, NameError> {
                $name::parse(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(text: &str) -> Result<$name, NameError> {
                $name::parse(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                $name::parse(&text).map_err(D::Error::custom)
            }
        }
    };
}

name! {
    /// The name of a stream: `host`, or a kind and a name such as `session/5f0c…`.
    StreamName, check_stream_name
}
name! {
    /// What happened, in the past tense, for example `session.create`.
    EventKind, check_event_kind
}
name! {
    /// Who caused an event, for example `admin:ops` or `system:recovery`.
    Actor, check_actor
}

impl StreamName {
    /// The part before the slash, or the whole name where there is none.
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(kind, _)| kind)
    }

    /// The part behind the slash.
    pub fn local(&self) -> Option<&str> {
        self.0.split_once('/').map(|(_, local)| local)
    }
}

fn check_length(what: &'static str, text: &str, bytes_max: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > bytes_max {
        return Err(NameError::TooLong {
            what,
            bytes: text.len(),
            bytes_max,
        });
    }
    Ok(())
}

fn check_stream_name(text: &str) -> Result<(), NameError> {
    check_length("a stream name", text, STREAM_NAME_BYTES_MAX)?;
    let (kind, local) = match text.split_once('/') {
        Some((kind, local)) => (kind, Some(local)),
        None => (text, None),
    };
    let kind_ok = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_lowercase());
    let local_ok = local.is_none_or(|local| {
        (1..=STREAM_LOCAL_BYTES_MAX).contains(&local.len())
            && local
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    });
    if kind_ok && local_ok {
        return Ok(());
    }
    Err(NameError::Form {
        what: "a stream name",
        form: "lower-case letters, then optionally `/` and letters, digits, `.`, `_`, `-`",
        text: text.to_owned(),
    })
}

fn check_event_kind(text: &str) -> Result<(), NameError> {
    check_length("an event kind", text, EVENT_KIND_BYTES_MAX)?;
    let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.');
    if text.bytes().all(ok) {
        return Ok(());
    }
    Err(NameError::Form {
        what: "an event kind",
        form: "lower-case letters, digits, `_` and `.`",
        text: text.to_owned(),
    })
}

fn check_actor(text: &str) -> Result<(), NameError> {
    check_length("an actor", text, ACTOR_BYTES_MAX)?;
    if !text.chars().any(hides_or_reorders) {
        return Ok(());
    }
    Err(NameError::Form {
        what: "an actor",
        form: "printable, without control or text direction characters",
        text: text.to_owned(),
    })
}

/// Characters with which one actor could be made to look like another one in a report.
fn hides_or_reorders(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_name_is_a_kind_and_an_optional_name() {
        for good in [
            "host",
            "session/5f0c-1",
            "volume/A_b.c",
            &format!("s/{}", "x".repeat(128)),
        ] {
            assert_eq!(StreamName::parse(good).unwrap().as_str(), good);
        }
        let long = format!("s/{}", "x".repeat(129));
        for bad in [
            "", "/", "host/", "Host", "host1", "s/a/b", "s/ä", "s/a b", "s/\n", &long,
        ] {
            assert!(StreamName::parse(bad).is_err(), "{bad:?} was taken");
        }
        let name = StreamName::parse("session/x").unwrap();
        assert_eq!((name.kind(), name.local()), ("session", Some("x")));
    }

    #[test]
    fn a_kind_is_lower_case_with_dots() {
        assert!(EventKind::parse("session.create_2").is_ok());
        for bad in ["", "Session", "a-b", "a b", &"x".repeat(65)] {
            assert!(EventKind::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn an_actor_is_printable_and_does_not_play_tricks() {
        assert!(Actor::parse("token:Jörg \"x\"").is_ok());
        for bad in ["", "a\nb", "a\u{202e}b", "a\u{200b}", &"x".repeat(257)] {
            assert!(Actor::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_name_is_checked_when_it_is_deserialised() {
        assert!(serde_json::from_str::<StreamName>("\"host\"").is_ok());
        assert!(serde_json::from_str::<StreamName>("\"Host\"").is_err());
    }
}
