//! A range of a file's lines, cut out of portions as they are read.
//!
//! Lines count from 1, both ends belong to the range, and a line owns its newline: two ranges that
//! meet make the file again. The lines of a range lie together, so each portion gives one piece.

/// Which lines are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    first: u64,
    last: u64,
}

/// A window on its way through a file.
#[derive(Debug)]
pub(super) struct Cut {
    window: Window,
    /// The line that the next byte belongs to.
    line: u64,
}

impl Window {
    /// Reads the two bounds of a query; `None` when there are none.
    pub(crate) fn parse(first: Option<&str>, last: Option<&str>) -> Result<Option<Self>, String> {
        if first.is_none() && last.is_none() {
            return Ok(None);
        }
        let bound = |name: &str, text: Option<&str>, default: u64| match text {
            None => Ok(default),
            Some(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                // More digits than the number holds: past every file's end.
                Ok(text.parse().unwrap_or(u64::MAX))
            }
            Some(_) => Err(format!("{name} is not an integer")),
        };
        let first = bound("start_line", first, 1)?;
        let last = bound("end_line", last, u64::MAX)?;
        if first == 0 {
            return Err("start_line counts from 1".into());
        }
        if last < first {
            return Err("end_line is before start_line".into());
        }
        Ok(Some(Self { first, last }))
    }

    pub(super) fn cut(self) -> Cut {
        Cut {
            window: self,
            line: 1,
        }
    }
}

impl Cut {
    /// Whether nothing that follows can belong to the window.
    pub(super) fn is_closed(&self) -> bool {
        self.line > self.window.last
    }

    /// The piece of a portion that belongs to the window.
    pub(super) fn take<'a>(&mut self, portion: &'a [u8]) -> &'a [u8] {
        let start = self.skip_to(portion, self.window.first);
        let rest = portion.get(start..).unwrap_or_default();
        let end = self.skip_to(rest, self.window.last.saturating_add(1));
        rest.get(..end).unwrap_or_default()
    }

    /// How many bytes lie before the line `target`, all of them if it does not begin here.
    fn skip_to(&mut self, bytes: &[u8], target: u64) -> usize {
        let mut at = 0;
        while self.line < target {
            let rest = bytes.get(at..).unwrap_or_default();
            match memchr::memchr(b'\n', rest) {
                Some(newline) => {
                    at += newline + 1;
                    self.line += 1;
                }
                None => return bytes.len(),
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(text: &[u8], first: u64, last: u64, portion: usize) -> Vec<u8> {
        let mut cut = Window { first, last }.cut();
        let mut taken = Vec::new();
        for portion in text.chunks(portion) {
            taken.extend_from_slice(cut.take(portion));
        }
        taken
    }

    #[test]
    fn bounds_are_numbers_from_one_in_order() {
        let parse = |first, last| Window::parse(first, last);
        assert_eq!(parse(None, None), Ok(None));
        assert!(parse(Some("2"), None).unwrap().is_some());
        assert!(parse(None, Some("99999999999999999999999")).is_ok());
        for (first, last) in [
            (Some("0"), None),
            (Some("3"), Some("2")),
            (None, Some("0")),
            (Some("x"), None),
            (Some(""), None),
            (Some("-1"), None),
            (Some("1.5"), None),
        ] {
            assert!(parse(first, last).is_err(), "{first:?} {last:?}");
        }
    }

    proptest! {
        #[test]
        fn a_cut_is_what_splitting_the_whole_text_gives(
            text in "[ab\n]{0,40}",
            first in 1u64..8,
            more in 0u64..8,
            portion in 1usize..9,
        ) {
            let lines = text.split_inclusive('\n');
            let expected: String = lines
                .skip(usize::try_from(first - 1).unwrap())
                .take(usize::try_from(more + 1).unwrap())
                .collect();
            let found = cut(text.as_bytes(), first, first + more, portion);
            prop_assert_eq!(String::from_utf8(found).unwrap(), expected);
        }
    }
}
