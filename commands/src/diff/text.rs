//! Two texts as the lines that differ. Pure.

use std::time::Duration;

use similar::Algorithm;
use similar::TextDiff;

/// How long one pair of texts may take. When it is over the rest is shown as replaced, which is longer
/// and as true.
const TIME_MAX: Duration = Duration::from_millis(250);

/// Lines around each change.
const CONTEXT_LINES: usize = 3;

/// The lines of a path that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendered {
    /// As a patch.
    Text(String),
    /// Only its kind, permissions or owner differ.
    SameContent,
    /// Neither side is a file.
    NoFile,
    /// There are lines, or bytes, and they are not shown.
    Omitted(Omitted),
}

/// Why lines are not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omitted {
    /// It is no text.
    Binary,
    /// One side is too long.
    FileTooLarge,
    /// The answer as a whole would be.
    AnswerTooLarge,
}

impl Rendered {
    /// The patch, where there is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Omitted {
    /// As the API spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::FileTooLarge => "file_too_large",
            Self::AnswerTooLarge => "answer_too_large",
        }
    }
}

/// What the two sides are called.
pub(super) struct Names {
    pub(super) old: String,
    pub(super) new: String,
}

/// Two contents as a patch. What is not UTF-8 or holds a NUL is no text.
pub(super) fn unified(names: &Names, old: &[u8], new: &[u8]) -> Rendered {
    let (Some(old), Some(new)) = (text(old), text(new)) else {
        return Rendered::Omitted(Omitted::Binary);
    };
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Myers)
        .timeout(TIME_MAX)
        .diff_lines(old, new);
    let patch = diff
        .unified_diff()
        .context_radius(CONTEXT_LINES)
        .header(&names.old, &names.new)
        .to_string();
    Rendered::Text(patch)
}

fn text(content: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(content).ok()?;
    (!text.contains('\0')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::Expect;
    use expect_test::expect;

    fn check(old: &str, new: &str, expected: Expect) {
        let names = Names {
            old: "a/f".into(),
            new: "b/f".into(),
        };
        let rendered = unified(&names, old.as_bytes(), new.as_bytes());
        expected.assert_eq(rendered.text().unwrap_or("nothing"));
    }

    #[test]
    fn text_is_shown_as_a_patch() {
        check(
            "one\ntwo\nthree\n",
            "one\n2\nthree",
            expect![[r#"
                --- a/f
                +++ b/f
                @@ -1,3 +1,3 @@
                 one
                -two
                -three
                +2
                +three
                \ No newline at end of file
            "#]],
        );
        check(
            "",
            "new\n",
            expect![[r#"
            --- a/f
            +++ b/f
            @@ -0,0 +1 @@
            +new
        "#]],
        );
    }

    #[test]
    fn what_is_no_text_is_not_shown() {
        let names = Names {
            old: "a".into(),
            new: "b".into(),
        };
        for binary in [&b"a\0b"[..], b"\xff\xfe"] {
            let rendered = unified(&names, b"text", binary);
            assert_eq!(rendered, Rendered::Omitted(Omitted::Binary));
        }
    }
}
