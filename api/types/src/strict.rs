//! Reading a body strictly, and saying exactly which field is wrong.
//!
//! The body is read straight from its bytes and not through a generic JSON value: only so is a second
//! copy of a field seen, and only so does even a syntax error (`NaN`) carry the path of its field.

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use crate::object::Object;

/// Why a body is not what the route takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// There is none.
    #[error("a JSON object is required as the body")]
    Empty,
    /// It is not JSON in UTF-8, or not an object.
    #[error("the body is not a JSON object: {0}")]
    NotJson(String),
    /// A field that no version knows, or that does not belong there.
    #[error("{field}: unknown field{expected}")]
    UnknownField {
        /// Its path.
        field: String,
        /// Which ones there are, as the tail of the sentence.
        expected: String,
    },
    /// A field that is required is not there.
    #[error("{field}: this field is required")]
    MissingField {
        /// Its path.
        field: String,
    },
    /// A value of another type or out of range.
    #[error("{field}: {message}")]
    InvalidField {
        /// Its path.
        field: String,
        /// What it should be.
        message: String,
    },
}

impl BodyError {
    /// The stable code that clients can branch on.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty | Self::NotJson(_) => "invalid_body",
            Self::UnknownField { .. } => "unknown_field",
            Self::MissingField { .. } => "missing_field",
            Self::InvalidField { .. } => "invalid_field",
        }
    }

    /// The path of the field that is at fault, if one is.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Empty | Self::NotJson(_) => None,
            Self::UnknownField { field, .. }
            | Self::MissingField { field }
            | Self::InvalidField { field, .. } => Some(field),
        }
    }
}

/// Reads one JSON object and nothing beside it.
///
/// # Errors
///
/// [`BodyError`], which names the field wherever one is at fault.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(BodyError::Empty);
    }
    // Checked on its own, so that the message speaks of the encoding and not of a syntax error.
    let text = std::str::from_utf8(body).map_err(|error| BodyError::NotJson(error.to_string()))?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value: Object<T> =
        serde_path_to_error::deserialize(&mut reader).map_err(|error| classify(&error))?;
    reader
        .end()
        .map_err(|error| BodyError::NotJson(error.to_string()))?;
    Ok(value.0)
}

/// serde has no error kinds, so that its own fixed wording is the only thing to tell them apart by. The
/// tests of the request types hold that wording in place.
fn classify(error: &serde_path_to_error::Error<serde_json::Error>) -> BodyError {
    // Where the syntax breaks before a field has its name, the name is unknown: what is around it counts.
    let mut path = error.path().to_string();
    if matches!(error.path().iter().next_back(), Some(Segment::Unknown)) {
        path.truncate(path.len().saturating_sub(".?".len()));
    }
    let at_root = path.is_empty() || path == ".";
    let message = plain(&error.inner().to_string());
    if let Some((name, known)) = quoted(&message, "unknown field `") {
        let expected = known
            .strip_prefix(", expected")
            .map_or(String::new(), |known| {
                format!(
                    "; known here: {}",
                    known.trim_start_matches(" one of").trim()
                )
            });
        // The path of an unknown field already ends in it.
        let field = if at_root { name.to_owned() } else { path };
        return BodyError::UnknownField { field, expected };
    }
    let below = |name: &str| {
        if at_root {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    if let Some((name, _)) = quoted(&message, "missing field `") {
        return BodyError::MissingField { field: below(name) };
    }
    if let Some((name, _)) = quoted(&message, "duplicate field `") {
        let message = "this field is there twice".to_owned();
        return BodyError::InvalidField {
            field: below(name),
            message,
        };
    }
    if at_root {
        return BodyError::NotJson(message);
    }
    // An error of the syntax between two fields (a missing comma, an early end) belongs to no field.
    if error.inner().is_eof() {
        return BodyError::NotJson(message);
    }
    BodyError::InvalidField {
        field: path,
        message,
    }
}

/// The name after `start`, up to the closing quote, and what follows it.
fn quoted<'a>(message: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(start)?.split_once('`')
}

/// The message without `at line 1 column 34`, which helps nobody who has the path.
fn plain(message: &str) -> String {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(head, _)| head)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExecRequest;

    fn error(body: &[u8]) -> BodyError {
        parse::<ExecRequest>(body).expect_err("refused")
    }

    #[test]
    fn a_body_that_is_no_object_is_refused_without_a_field() {
        for body in [
            &b""[..],
            b"  \n",
            b"[1]",
            b"\"x\"",
            b"{",
            b"{\"command\"",
            b"{command: 1}",
            b"{\"command\":\"a\" \"b\"}",
            b"{\"command\":\"a\",}",
            b"{\"command\":\"a\",'b':1}",
            b"{\"command\":\"a\"]",
            b"not json",
            b"null",
            b"\xff{}",
        ] {
            let error = error(body);
            assert_eq!(error.code(), "invalid_body", "{body:?}: {error}");
            assert_eq!(error.field(), None, "{body:?}: {error}");
        }
    }

    #[test]
    fn what_follows_the_object_is_refused() {
        assert_eq!(error(b"{\"command\":\"true\"} x").code(), "invalid_body");
        assert_eq!(error(b"{\"command\":\"true\"}{}").code(), "invalid_body");
    }

    #[test]
    fn a_second_copy_of_a_field_is_refused() {
        let error = error(b"{\"command\":\"true\",\"command\":\"false\"}");
        assert_eq!(error.field(), Some("command"), "{error}");
    }
}
