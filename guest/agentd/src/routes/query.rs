//! Queries: names and values, decoded as forms are.

use agentd_protocol::paths::decode_segment;

/// A query that cannot be read, or says a thing twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// The value of a name; `None` when it is not there.
pub(super) fn value(query: Option<&str>, name: &str) -> Result<Option<String>, Unreadable> {
    let mut found = None;
    for pair in query.unwrap_or_default().split('&') {
        let (known, value) = pair.split_once('=').unwrap_or((pair, ""));
        if known != name {
            continue;
        }
        let value = decode_segment(&value.replace('+', " ")).ok_or(Unreadable)?;
        if found.replace(value).is_some() {
            return Err(Unreadable);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_said_once() {
        let path = |query| value(Some(query), "path");
        assert_eq!(path("a=b&path=%2Fa+b%2Bc"), Ok(Some("/a b+c".into())));
        assert_eq!(path("path"), Ok(Some(String::new())));
        assert_eq!(path("paths=x"), Ok(None));
        assert_eq!(path("path=%zz"), Err(Unreadable));
        assert_eq!(path("path=a&path=a"), Err(Unreadable));
    }
}
