//! Whether what is sought was there already in an older content of the same path. Pure.

use similar::Algorithm;
use similar::DiffOp;
use similar::TextDiff;

/// What is sought: all of a file's bytes, or one of its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sought {
    Whole,
    /// Counted from 0.
    Line(usize),
}

/// Where what is sought in `newer` is in `older`; `None` when it is not there. No content is a path where no
/// file is.
pub(super) fn find(sought: Sought, older: Option<&[u8]>, newer: Option<&[u8]>) -> Option<Sought> {
    if older == newer {
        return Some(sought);
    }
    let Sought::Line(number) = sought else {
        return None;
    };
    // What is no text is compared by what it would be shown as.
    let (older, newer) = (
        String::from_utf8_lossy(older?),
        String::from_utf8_lossy(newer?),
    );
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Patience)
        .diff_lines(older.as_ref(), newer.as_ref());
    diff.ops().iter().find_map(|op| match op {
        DiffOp::Equal {
            old_index,
            new_index,
            len,
        } if (*new_index..new_index + len).contains(&number) => {
            Some(Sought::Line(old_index + (number - new_index)))
        }
        _ => None,
    })
}

/// The text of a line, without its end.
pub(super) fn line(content: &[u8], number: usize) -> Option<String> {
    let mut lines = content.split_inclusive(|byte| *byte == b'\n');
    let text = String::from_utf8_lossy(lines.nth(number)?).into_owned();
    Some(text.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sought: Sought, older: &str, newer: &str) -> Option<Sought> {
        find(sought, Some(older.as_bytes()), Some(newer.as_bytes()))
    }

    #[test]
    fn a_file_is_the_same_or_another() {
        assert_eq!(found(Sought::Whole, "a", "a"), Some(Sought::Whole));
        assert_eq!(found(Sought::Whole, "a", "b"), None);
        assert_eq!(find(Sought::Whole, None, Some(b"")), None);
        assert_eq!(find(Sought::Whole, None, None), Some(Sought::Whole));
    }

    #[test]
    fn a_line_is_followed_to_where_it_was() {
        let (older, newer) = ("one\ntwo\nthree\n", "zero\none\n2\nthree\n");
        for (line, expected) in [(0, None), (1, Some(0)), (2, None), (3, Some(2))] {
            let expected = expected.map(Sought::Line);
            assert_eq!(found(Sought::Line(line), older, newer), expected, "{line}");
        }
        assert_eq!(find(Sought::Line(0), None, Some(b"one\n")), None);
    }

    #[test]
    fn a_line_is_shown_without_its_end() {
        assert_eq!(line(b"a\r\nb", 0).as_deref(), Some("a"));
        assert_eq!(line(b"a\nb", 1).as_deref(), Some("b"));
        assert_eq!(line(b"a\n", 1), None);
    }
}
