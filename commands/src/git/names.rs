//! Names that git is given, checked before it sees them. Pure.

use crate::error::CommandError;
use crate::limits::GIT_BRANCH_BYTES_MAX;
use crate::limits::GIT_MESSAGE_BYTES_MAX;
use crate::limits::GUEST_PATH_BYTES_MAX;

/// Characters that no branch's name may hold, beside control characters.
const FORBIDDEN: [char; 8] = [' ', '~', '^', ':', '?', '*', '[', '\\'];

fn refuse<T>(field: &'static str, message: &str) -> Result<T, CommandError> {
    let message = message.to_owned();
    Err(CommandError::Invalid { field, message })
}

/// A branch's name, by git's own rules, and none that could be taken for an option.
pub(super) fn branch(name: &str) -> Result<&str, CommandError> {
    if name.is_empty() || name.len() > GIT_BRANCH_BYTES_MAX {
        return refuse("name", "must have from 1 to 200 bytes");
    }
    let part_is_bad =
        |part: &str| part.is_empty() || part.starts_with('.') || part.ends_with(".lock");
    let bad = name.starts_with('-')
        || name.ends_with('.')
        || name == "@"
        || name == "HEAD"
        || name.contains("..")
        || name.contains("@{")
        || name.contains(FORBIDDEN)
        || name.contains(char::is_control)
        || name.split('/').any(part_is_bad);
    match bad {
        true => refuse("name", "is no name that a branch can have"),
        false => Ok(name),
    }
}

/// A path below the repository's folder.
pub(super) fn path(path: &str) -> Result<&str, CommandError> {
    if path.is_empty() || path.len() > GUEST_PATH_BYTES_MAX {
        return refuse("path", "must have from 1 to 4095 bytes");
    }
    let bad = path.starts_with(['/', '-', ':'])
        || path.contains(['\0', '\n', '\r'])
        || path.split('/').any(|part| part == "..");
    match bad {
        true => refuse("path", "must be a path below the repository, without .."),
        false => Ok(path),
    }
}

/// A commit's message.
pub(super) fn message(message: &str) -> Result<&str, CommandError> {
    if message.trim().is_empty() {
        return refuse("message", "must not be empty");
    }
    if message.len() > GIT_MESSAGE_BYTES_MAX {
        return refuse("message", "is longer than 16 KiB");
    }
    match message.contains('\0') {
        true => refuse("message", "must not hold a zero byte"),
        false => Ok(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_has_a_name_that_git_takes_and_that_is_no_option() {
        for good in ["main", "agent/try-1", "ä", "a.b", "v1.0", "feature/#7"] {
            assert!(branch(good).is_ok(), "{good}");
        }
        for bad in [
            "", "-d", "--force", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", ".a",
            "a/.b", "a.lock", "a.lock/b", "/a", "a/", "a//b", "a.", "@", "a@{1}", "HEAD", "a\nb",
            "a\0b", "a\x7f",
        ] {
            assert!(branch(bad).is_err(), "{bad:?}");
        }
        assert!(branch(&"x".repeat(GIT_BRANCH_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_path_stays_below_the_repository() {
        for good in ["a", "src/main.rs", "a b", "-/x/..a"] {
            assert_eq!(path(good).is_ok(), !good.starts_with('-'), "{good}");
        }
        for bad in [
            "",
            "/etc",
            "../a",
            "a/../../b",
            "--output=x",
            ":(top)a",
            "a\0",
            "a\nb",
        ] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_message_says_something() {
        assert!(message("fix: ü\n\nbody").is_ok());
        for bad in ["", " \n", "a\0b", &"x".repeat(GIT_MESSAGE_BYTES_MAX + 1)] {
            assert!(message(bad).is_err());
        }
    }
}
