//! The parsed reading: which commands a shell line runs, as far as that can be known before it runs.
//!
//! The line is parsed as a shell does. What stands in quotes, substitutions, here documents, `sh -c`,
//! `eval`, `env`, `xargs`, `find -exec` and the like is followed. What only the shell will know, such as
//! the value of a variable, is a gap in a text. What cannot be followed at all is said in words. Programs
//! and scripts are not looked into: what `python3 x.py` does, no line shows.

mod programs;
mod walk;
mod words;

use brush_parser::ParserOptions;
use brush_parser::TokenizerOptions;

use crate::policy::text::Text;

/// What opens something in one line, at most: each costs the parser some of its stack.
const OPENERS_MAX: usize = 1_000;

/// The stack of the parser, in bytes. A thousand nested openers take under 24 MiB of it, unoptimised.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// How deep lines within lines are followed.
const DEPTH_MAX: usize = 16;

/// Commands that are followed in one line.
const RUNS_MAX: usize = 4_096;

/// Characters of all followed commands together: wrappers within wrappers name the same words again.
const ATOMS_MAX: usize = 1024 * 1024;

/// Different things that are reported as unjudged.
pub(super) const UNJUDGED_MAX: usize = 8;

/// More digits in front of a redirection or behind a tilde than any number there has: the parser takes
/// them for a number without looking.
const DIGITS_MAX: usize = 9;

/// A command that runs, as far as it is known.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Its words without quotes.
    pub(super) words: Vec<Text>,
    /// It runs unless an option that is not known takes a word. What may run can be refused, and is not
    /// needed to be allowed.
    pub(super) certain: bool,
}

/// What a line runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) runs: Vec<Run>,
    /// What could not be followed, for people.
    pub(super) unjudged: Vec<String>,
    /// The line is one that a shell would run: every part of it was parsed.
    pub(super) parsed: bool,
    /// The here documents of the line itself, each with the word that ends it.
    pub(super) documents: Vec<(String, String)>,
}

/// Reads a line. It has a thread of its own, whose stack and whose panics are nobody else's.
pub(super) fn read(line: &str) -> Reading {
    if let Err(reason) = check(line) {
        return Reading::unparsed(reason);
    }
    let reader = || {
        let mut reader = Reader::new();
        reader.line(line, 0, &Stdin::Empty);
        reader.reading
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("shell-line".to_owned())
            .stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, reader) {
            Ok(running) => running
                .join()
                .unwrap_or_else(|_| Reading::unparsed("the line cannot be parsed")),
            Err(_) => Reading::unparsed("there is no room to parse the line"),
        }
    })
}

impl Reading {
    fn unparsed(reason: &str) -> Self {
        Self {
            unjudged: vec![reason.to_owned()],
            ..Self::default()
        }
    }
}

/// What the parser could not take.
fn check(line: &str) -> Result<(), &'static str> {
    let opens = |byte: &&u8| b"({[`!".contains(byte);
    let words = line.split(|character: char| !character.is_alphanumeric());
    let keywords = [
        "if", "elif", "while", "until", "for", "case", "do", "then", "function",
    ];
    let openers = line.as_bytes().iter().filter(opens).count()
        + words.filter(|word| keywords.contains(word)).count();
    if openers > OPENERS_MAX {
        return Err("the line nests too much to be parsed");
    }
    let mut digits = 0;
    let mut after_tilde = false;
    for byte in line.bytes() {
        match byte {
            b'0'..=b'9' => digits += 1,
            b'<' | b'>' if digits > DIGITS_MAX => return Err("the line redirects no descriptor"),
            b'~' => (digits, after_tilde) = (0, true),
            b'+' | b'-' if after_tilde && digits == 0 => {}
            _ => (digits, after_tilde) = (0, false),
        }
        if after_tilde && digits > DIGITS_MAX {
            return Err("the line names no folder");
        }
    }
    Ok(())
}

/// Where a command's input comes from.
#[derive(Clone, Debug)]
pub(super) enum Stdin {
    /// It has none.
    Empty,
    /// This text.
    Text(Text),
    /// A file, or another command.
    Unknown,
}

/// A reading in the making.
struct Reader {
    reading: Reading,
    options: ParserOptions,
    atoms_left: usize,
}

impl Reader {
    fn new() -> Self {
        Self {
            reading: Reading {
                parsed: true,
                ..Reading::default()
            },
            options: ParserOptions::default(),
            atoms_left: ATOMS_MAX,
        }
    }

    /// Reads one line, or one within another.
    fn line(&mut self, line: &str, depth: usize, stdin: &Stdin) {
        if depth > DEPTH_MAX {
            self.unparsed("lines within lines, deeper than is followed");
            return;
        }
        let tokens = brush_parser::uncached_tokenize_str(line, &TokenizerOptions::default());
        let program = tokens
            .ok()
            .and_then(|tokens| brush_parser::parse_tokens(&tokens, &self.options).ok());
        match program {
            Some(program) => self.program(&program, depth, stdin),
            None => self.unparsed("not a line of the shell"),
        }
    }

    /// Reads a text that another command takes for a line.
    fn script(&mut self, text: &Text, depth: usize, stdin: &Stdin) {
        if !text.is_known() {
            self.unjudged("a line that is put together only when it runs");
        }
        // The known parts are still there to be refused. A gap becomes a variable, which is one again.
        let line = text.with_gaps_as("${_}");
        match check(&line) {
            Ok(()) => self.line(&line, depth + 1, stdin),
            Err(reason) => self.unparsed(reason),
        }
    }

    fn run(&mut self, words: &[Text], certain: bool) -> bool {
        let atoms: usize = words.iter().map(|word| word.atoms().len() + 1).sum();
        let room = self.atoms_left.checked_sub(atoms);
        match room {
            Some(left) if self.reading.runs.len() < RUNS_MAX => {
                self.atoms_left = left;
                self.reading.runs.push(Run {
                    words: words.to_vec(),
                    certain,
                });
                true
            }
            _ => {
                self.unparsed("more commands than are followed");
                false
            }
        }
    }

    fn unparsed(&mut self, what: &str) {
        self.reading.parsed = false;
        self.unjudged(what);
    }

    fn unjudged(&mut self, what: &str) {
        let unjudged = &mut self.reading.unjudged;
        if unjudged.len() < UNJUDGED_MAX && !unjudged.iter().any(|known| known == what) {
            unjudged.push(what.to_owned());
        }
    }
}
