//! What may reach a terminal of text that others wrote: commands, reasons, the daemon's words. A
//! character that moves the cursor, changes the order in which the others are read, or cannot be
//! seen at all is shown as its escape, so that what a person reads is what was recorded. Pipes and
//! files get every byte as it is.

use std::fmt::Write;

/// First and last of each run of characters that format text without being seen: the controls of
/// direction, separators of lines, joiners, fillers, variation selectors and tags. Marks of the
/// same Unicode category that do have a shape, like the Arabic number sign, stay.
const UNSEEN: [(char, char); 18] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

fn misleads(c: char) -> bool {
    c.is_control()
        || UNSEEN
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&c))
}

/// The text on one line, with escapes like `\u{1b}` and `\n` for what must not reach a terminal.
pub(crate) fn clean(text: &str) -> String {
    escaped(text, |_| false, |shown, c| shown.extend(c.escape_default()))
}

/// The same for text of several lines, which stay lines.
pub(crate) fn clean_lines(text: &str) -> String {
    escaped(
        text,
        |c| c == '\n',
        |shown, c| shown.extend(c.escape_default()),
    )
}

/// JSON with the escapes that JSON has for it, so that it still means the same. Outside of its
/// strings JSON has nothing to escape but the line breaks of its indentation.
pub(crate) fn clean_json(document: &str) -> String {
    escaped(
        document,
        |c| c == '\n',
        |shown, c| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        },
    )
}

fn escaped(text: &str, keeps: fn(char) -> bool, escape: fn(&mut String, char)) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) && !keeps(c) {
            escape(&mut shown, c);
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_cannot_move_the_cursor() {
        assert_eq!(
            clean("printf \x1b[2J\tx\x07"),
            "printf \\u{1b}[2J\\tx\\u{7}"
        );
    }

    #[test]
    fn what_reorders_text_or_is_not_seen_is_shown_as_an_escape() {
        let reordering = ('\u{202a}'..='\u{202e}')
            .chain('\u{2066}'..='\u{2069}')
            .chain(['\u{200e}', '\u{200f}', '\u{61c}']);
        let unseen =
            "\u{200b}\u{200d}\u{2028}\u{2029}\u{2060}\u{feff}\u{ad}\u{fe0f}\u{e0041}\u{9b}";
        for c in reordering.chain(unseen.chars()) {
            let shown = format!("\\u{{{:x}}}", u32::from(c));
            assert_eq!(clean(&format!("rm {c}x")), format!("rm {shown}x"));
        }
    }

    #[test]
    fn what_people_write_stays() {
        for text in [
            "grüße, 世界 🙂",
            "עברית عربي",
            "a\u{301} \u{600}1",
            "\\u{202e}",
        ] {
            assert_eq!(clean(text), text);
        }
    }

    #[test]
    fn lines_stay_lines_where_they_are_ours() {
        assert_eq!(clean_lines("a\nb\u{202e}\r"), "a\nb\\u{202e}\\r");
    }

    #[test]
    fn json_means_the_same_after_it() {
        let value = serde_json::json!({"command": "a\u{202e}b\u{7f}\u{9b}\u{e0041}\n", "n": [1]});
        let shown = clean_json(&format!("{value:#}"));
        assert!(!shown.chars().any(|c| misleads(c) && c != '\n'), "{shown}");
        assert!(shown.contains("\\u202e"), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read, value);
    }
}
