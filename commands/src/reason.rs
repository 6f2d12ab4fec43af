//! The reason that a redaction and a hold have to give. Pure.

use crate::error::CommandError;
use crate::limits::REASON_CHARS_MAX;

/// The reason as it is recorded, if it is one.
pub(crate) fn check(reason: &str) -> Result<String, CommandError> {
    let invalid = |message: &str| CommandError::Invalid {
        field: "reason",
        message: message.to_owned(),
    };
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(invalid("must say why"));
    }
    if reason.chars().count() > REASON_CHARS_MAX {
        return Err(invalid(&format!(
            "must be at most {REASON_CHARS_MAX} characters"
        )));
    }
    if reason.chars().any(char::is_control) {
        return Err(invalid("must be one line without control characters"));
    }
    Ok(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_that_says_something() {
        assert_eq!(check(" GDPR 17, ticket 9 ").unwrap(), "GDPR 17, ticket 9");
        assert!(check(&"é".repeat(REASON_CHARS_MAX)).is_ok());
        for bad in [
            "",
            "  ",
            "a\nb",
            "a\u{0}",
            &"x".repeat(REASON_CHARS_MAX + 1),
        ] {
            assert_eq!(check(bad).unwrap_err().field(), Some("reason"), "{bad:?}");
        }
    }
}
