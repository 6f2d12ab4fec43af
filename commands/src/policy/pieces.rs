//! The plain reading: the line cut at the shell's separators.

/// The pieces between `;`, `&&`, `||`, `|`, `&` and line ends, trimmed, whatever is quoted.
pub(super) fn cut(line: &str) -> Vec<&str> {
    line.split([';', '&', '|', '\n'])
        .map(str::trim)
        .filter(|piece| !piece.is_empty())
        .collect()
}

/// The same pieces, but separators in quotes and behind a backslash separate nothing.
pub(super) fn cut_outside_quotes(line: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut quote) = (0, None);
    let mut characters = line.char_indices();
    while let Some((index, character)) = characters.next() {
        match (quote, character) {
            (None | Some('"'), '\\') => {
                characters.next();
            }
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), character) if open == character => quote = None,
            (None, ';' | '&' | '|' | '\n') => {
                pieces.push(line.get(start..index).unwrap_or_default().trim());
                start = index + character.len_utf8();
            }
            _ => {}
        }
    }
    pieces.push(line.get(start..).unwrap_or_default().trim());
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_every_separator() {
        let line = "a && b||c ; d | e & f\n\ng 'h & i'";
        assert_eq!(cut(line), ["a", "b", "c", "d", "e", "f", "g 'h", "i'"]);
        let quoted = ["a", "b", "c", "d", "e", "f", "g 'h & i'"];
        assert_eq!(cut_outside_quotes(line), quoted);
        assert_eq!(
            cut_outside_quotes(r#"a "b\";c" \; d;"#),
            [r#"a "b\";c" \; d"#]
        );
        assert!(cut(" ; ").is_empty() && cut_outside_quotes("\n").is_empty());
    }
}
