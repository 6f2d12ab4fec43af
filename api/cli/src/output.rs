//! Where output goes and in which form: JSON when asked for or when stdout is not a terminal,
//! tables for people otherwise. Colours only on a terminal that has them, and never with
//! `NO_COLOR` set.

use std::io;
use std::io::IsTerminal;
use std::io::Write;

use serde_json::Value;

use crate::args::Global;
use crate::error::CliError;
use crate::visible::clean_json;
use crate::visible::clean_lines;

/// How tables look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    /// Whether colour codes may be written.
    pub(crate) colour: bool,
    /// Width to fit into, in columns; none when nobody looks at a terminal. A terminal that does
    /// not know its size says 0.
    pub(crate) columns: Option<u16>,
}

/// The form and the place of the output.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    stdout_is_terminal: bool,
    style: Style,
}

impl Output {
    /// Decided once, from the options and from what stdout is.
    pub(crate) fn new(global: &Global) -> Self {
        let stdout_is_terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            json: global.json || (!stdout_is_terminal && !global.table),
            stdout_is_terminal,
            style: Style {
                colour: stdout_is_terminal && !no_colour,
                columns: comfy_table::Table::new()
                    .width()
                    .filter(|_| stdout_is_terminal),
            },
        }
    }

    /// Whether JSON is wanted.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints the value as JSON, or what `table` makes of it.
    pub(crate) fn show(
        &self,
        value: &Value,
        table: impl FnOnce(&Value, Style) -> String,
    ) -> Result<(), CliError> {
        if self.json {
            return self.json_document(value);
        }
        self.text(&table(value, self.style))
    }

    /// One JSON document: indented on a terminal, one line in a pipe.
    pub(crate) fn json_document(&self, value: &Value) -> Result<(), CliError> {
        let text = if self.stdout_is_terminal {
            clean_json(&format!("{value:#}"))
        } else {
            value.to_string()
        };
        self.text(&text)
    }

    /// One JSON document on one line, wherever it goes: one of many.
    pub(crate) fn json_line(&self, value: &Value) -> Result<(), CliError> {
        let text = value.to_string();
        if self.stdout_is_terminal {
            return self.text(&clean_json(&text));
        }
        self.text(&text)
    }

    /// Text, ended by a newline.
    pub(crate) fn text(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            stdout.write_all(b"\n")?;
        }
        Ok(stdout.flush()?)
    }

    /// Bytes, as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }
}

/// Lines on stderr for the person, who may be told there what a session or the daemon said. A
/// stderr that is gone is no reason to fail.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", clean_lines(text));
}
