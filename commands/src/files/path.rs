//! Which paths are taken, and which are not. Pure.

use crate::error::CommandError;
use crate::limits::GUEST_NAME_BYTES_MAX;
use crate::limits::GUEST_PATH_BYTES_MAX;

/// An absolute path in the guest, in its shortest spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPath(String);

impl GuestPath {
    /// Takes a path that is absolute, goes nowhere upwards and holds nothing that could end a line.
    pub(crate) fn parse(field: &'static str, text: &str) -> Result<Self, CommandError> {
        let refuse = |message: &str| {
            let message = message.to_owned();
            Err(CommandError::Invalid { field, message })
        };
        if !text.starts_with('/') {
            return refuse("must be absolute, as /workspace/file");
        }
        if text.len() > GUEST_PATH_BYTES_MAX {
            return refuse("is longer than 4095 bytes, the longest path that a guest takes");
        }
        if text.contains(['\0', '\n', '\r']) {
            return refuse("must not hold a zero byte or a line's end");
        }
        let parts: Vec<&str> = text
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        if parts.contains(&"..") {
            return refuse("must not go upwards with ..");
        }
        if parts.iter().any(|part| part.len() > GUEST_NAME_BYTES_MAX) {
            return refuse("has a name of more than 255 bytes");
        }
        Ok(Self(format!("/{}", parts.join("/"))))
    }

    /// Takes only a path that may be removed: never the root, never what lies right below it.
    pub(crate) fn parse_removable(text: &str) -> Result<Self, CommandError> {
        let path = Self::parse("path", text)?;
        match path.0.matches('/').count() {
            0 | 1 => Err(CommandError::Invalid {
                field: "path",
                message: "must lie at least two levels below the root".to_owned(),
            }),
            _ => Ok(path),
        }
    }

    /// Takes only a path that a file can have.
    pub(crate) fn parse_file(text: &str) -> Result<Self, CommandError> {
        let path = Self::parse("path", text)?;
        let named = path.0.len() > 1 && !text.ends_with('/') && !text.ends_with("/.");
        match named {
            true => Ok(path),
            false => Err(CommandError::Invalid {
                field: "path",
                message: "must name a file".to_owned(),
            }),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> String {
        match GuestPath::parse("path", text) {
            Ok(path) => path.0,
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_path_is_absolute_and_goes_nowhere_upwards() {
        assert_eq!(parse("/workspace/a b/ä"), "/workspace/a b/ä");
        assert_eq!(parse("//w/./a//b/"), "/w/a/b");
        assert_eq!(parse("/"), "/");
        for bad in ["", "a", "./a", "/a/../b", "/..", "/a\0", "/a\nb", "/a\r"] {
            assert!(parse(bad).starts_with("path: must"), "{bad:?}");
        }
        assert!(parse(&format!("/{}", "x".repeat(256))).contains("255"));
        assert!(parse(&"/x".repeat(2_048)).contains("4095"));
    }

    #[test]
    fn the_root_and_what_lies_right_below_it_cannot_be_removed() {
        for bad in ["/", "/etc", "/etc/", "//etc", "/./etc/."] {
            assert!(GuestPath::parse_removable(bad).is_err(), "{bad}");
        }
        assert!(GuestPath::parse_removable("/workspace/a").is_ok());
    }

    #[test]
    fn a_file_has_a_name() {
        for bad in ["/", "/a/", "/a/."] {
            assert!(GuestPath::parse_file(bad).is_err(), "{bad}");
        }
    }
}
