//! Words: what is known of them, and the lines that their substitutions hold.

use brush_parser::ast::AssignmentValue;
use brush_parser::ast::Word;
use brush_parser::word;
use brush_parser::word::WordPiece;
use brush_parser::word::WordPieceWithSource;

use super::Reader;
use super::Stdin;
use crate::policy::text::Text;

impl Reader {
    /// A word as the command gets it.
    pub(super) fn word(&mut self, word: &Word, depth: usize) -> Text {
        self.raw_word(&word.value, depth)
    }

    /// Several words of which only the substitutions matter.
    pub(super) fn substitutions_of<'a>(
        &mut self,
        words: impl IntoIterator<Item = &'a Word>,
        depth: usize,
    ) {
        for word in words {
            self.word(word, depth);
        }
    }

    /// What a variable is set to.
    pub(super) fn assigned(&mut self, value: &AssignmentValue, depth: usize) {
        match value {
            AssignmentValue::Scalar(word) => drop(self.word(word, depth)),
            AssignmentValue::Array(items) => {
                for (key, value) in items {
                    self.substitutions_of(key.iter().chain([value]), depth);
                }
            }
        }
    }

    /// The text of a here document.
    pub(super) fn here_document(&mut self, text: &str, expands: bool, depth: usize) -> Text {
        if !expands {
            return Text::literal(text);
        }
        let pieces = word::parse_heredoc(text, &self.options);
        let Ok(pieces) = pieces else {
            self.unparsed("a here document that cannot be parsed");
            return Text::gap();
        };
        let mut known = Text::default();
        self.pieces(&pieces, text, Quoted::Yes, depth, &mut known);
        known
    }

    /// Text in which substitutions may stand, but no quotes that matter: the inside of `${…}` and of
    /// arithmetic.
    pub(super) fn inside(&mut self, text: &str, depth: usize) {
        if text.contains(['$', '`']) {
            self.raw_word(text, depth);
        }
    }

    fn raw_word(&mut self, raw: &str, depth: usize) -> Text {
        let mut known = Text::default();
        if depth > super::DEPTH_MAX {
            self.unparsed("words within words, deeper than is followed");
            return Text::gap();
        }
        match word::parse(raw, &self.options) {
            Ok(pieces) => {
                self.pieces(&pieces, raw, Quoted::No, depth, &mut known);
                if pieces.iter().all(|piece| is_expansion(&piece.piece)) && !pieces.is_empty() {
                    known.set_vanishing();
                }
            }
            Err(_) => {
                self.unparsed("a word that cannot be parsed");
                known.push_gap();
            }
        }
        known
    }

    fn pieces(
        &mut self,
        pieces: &[WordPieceWithSource],
        raw: &str,
        quoted: Quoted,
        depth: usize,
        known: &mut Text,
    ) {
        for (index, piece) in pieces.iter().enumerate() {
            let source = raw.get(piece.start_index..piece.end_index).unwrap_or(raw);
            match &piece.piece {
                WordPiece::Text(text) if quoted == Quoted::Yes => known.push_str(text),
                WordPiece::Text(text) => {
                    if !unquoted(text, known) {
                        // The rest belongs to the same pattern. Its substitutions still run.
                        let rest = pieces.get(index + 1..).unwrap_or_default();
                        self.pieces(rest, raw, quoted, depth, &mut Text::default());
                        return;
                    }
                }
                WordPiece::SingleQuotedText(text) => known.push_str(text),
                WordPiece::DoubleQuotedSequence(inner) => {
                    self.pieces(inner, raw, Quoted::Yes, depth, known);
                }
                WordPiece::EscapeSequence(escape) => match escape.strip_prefix('\\') {
                    Some("\n") => {}
                    Some(character) => known.push_str(character),
                    None => known.push_str(escape),
                },
                // Shells do not agree on these two.
                WordPiece::GettextDoubleQuotedSequence(inner) => {
                    self.pieces(inner, raw, Quoted::Yes, depth, &mut Text::default());
                    known.push_gap();
                }
                WordPiece::AnsiCQuotedText(_) | WordPiece::TildeExpansion(_) => known.push_gap(),
                WordPiece::ParameterExpansion(_) => {
                    let inner = source
                        .strip_prefix("${")
                        .and_then(|it| it.strip_suffix('}'));
                    self.inside(inner.unwrap_or_default(), depth + 1);
                    known.push_gap();
                }
                WordPiece::ArithmeticExpression(expression) => {
                    self.inside(&expression.value, depth + 1);
                    known.push_gap();
                }
                WordPiece::CommandSubstitution(line)
                | WordPiece::BackquotedCommandSubstitution(line) => {
                    self.line(line, depth + 1, &Stdin::Unknown);
                    known.push_gap();
                }
            }
        }
    }
}

/// Whether a piece of a word stands in quotes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quoted {
    Yes,
    No,
}

/// Adds text that the shell still expands: patterns of file names and lists in braces become gaps.
/// Answers whether the text goes on behind it.
fn unquoted(text: &str, known: &mut Text) -> bool {
    // Alone they are words of their own: a test, a block, the place that `find` fills.
    if matches!(text, "[" | "{" | "}" | "{}") {
        known.push_str(text);
        return true;
    }
    for (index, character) in text.char_indices() {
        let rest = text.get(index..).unwrap_or_default();
        let is_list = character == '{' && (rest.contains(',') || rest.contains(".."));
        if character == '[' || character == '(' || is_list {
            known.push_gap();
            return false;
        }
        match character {
            '*' | '?' => known.push_gap(),
            character => known.push(character),
        }
    }
    true
}

/// A piece that may come to nothing.
fn is_expansion(piece: &WordPiece) -> bool {
    matches!(
        piece,
        WordPiece::ParameterExpansion(_)
            | WordPiece::CommandSubstitution(_)
            | WordPiece::BackquotedCommandSubstitution(_)
    )
}
