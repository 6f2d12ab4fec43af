//! From JSON of the API to text for people. Pure: what time it is and how wide the terminal is
//! come in as arguments. Keys that are missing print as `-`, since an older or newer daemon must
//! still be readable.

pub(crate) mod approvals;
pub(crate) mod capabilities;
pub(crate) mod changes;
pub(crate) mod evaluate;
pub(crate) mod events;
pub(crate) mod evidence;
pub(crate) mod files;
pub(crate) mod git;
pub(crate) mod jobs;
pub(crate) mod ledger;
pub(crate) mod replay;
pub(crate) mod sessions;
pub(crate) mod time_travel;
pub(crate) mod timeline;
pub(crate) mod tokens;
mod tree;
pub(crate) mod verify;

use chrono::DateTime;
use chrono::Utc;
use comfy_table::Cell;
use comfy_table::Color;
use comfy_table::ColumnConstraint;
use comfy_table::ContentArrangement;
use comfy_table::Table;
use comfy_table::presets;
use serde_json::Value;

use crate::output::Style;
pub(crate) use crate::visible::clean;

/// Longest piece of a command shown in a table: one line of an 80 column terminal less the other
/// columns would be too little to recognise it by, so tables wrap on narrow terminals.
const WHAT_CHARS_MAX: usize = 72;

/// Width taken for that of a terminal that says it has none, as serial lines and some editors do.
const TERMINAL_DEFAULT_COLUMNS: u16 = 80;
/// Blanks between two columns.
const COLUMN_GAP: u16 = 2;
/// The last column stays at least this wide, so that a sentence is not a word to a line.
const LAST_COLUMN_MIN_COLUMNS: u16 = 24;
/// Longest word that is kept whole: a seq with its hash and a verifier key are shorter, and one of
/// many pages, as a script in base64, must not make the whole table as wide.
const WORD_MAX_COLUMNS: u16 = 128;

/// What a cell says about how well something went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As wanted.
    Good,
    /// Not as wanted.
    Bad,
    /// Under way, or worth a look.
    Open,
    /// Neither.
    Plain,
}

/// A table with these headers, for this terminal.
pub(crate) fn table(style: Style, headers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    match style.columns {
        Some(columns) => {
            let columns = match columns {
                0 => TERMINAL_DEFAULT_COLUMNS,
                columns => columns,
            };
            table
                .set_width(columns)
                .set_content_arrangement(ContentArrangement::Dynamic);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    if !headers.is_empty() {
        table.set_header(headers);
    }
    table
}

/// The table as text, without the blanks that pad its last column. Only the last column wraps: ids
/// and times in pieces cannot be read or copied. Where even its words do not fit beside the other
/// columns, lines run over the edge of the terminal, which loses nothing.
pub(crate) fn finish(mut table: Table) -> String {
    let last = table.column_count().saturating_sub(1);
    let widths = table.column_max_content_widths();
    let mut needed = 0_u16;
    for (index, column) in table.column_iter_mut().enumerate() {
        let width = widths.get(index).copied().unwrap_or_default();
        if index < last {
            column.set_padding((0, COLUMN_GAP));
            column.set_constraint(ColumnConstraint::ContentWidth);
            needed = needed.saturating_add(width).saturating_add(COLUMN_GAP);
        } else {
            column.set_padding((0, 0));
        }
    }
    if let Some(width) = table.width() {
        needed = needed.saturating_add(last_column_min(&table, last));
        table.set_width(width.max(needed));
    }
    table.trim_fmt()
}

/// The width below which the last column does not go.
fn last_column_min(table: &Table, last: usize) -> u16 {
    let cells = table
        .header()
        .into_iter()
        .chain(table.row_iter())
        .filter_map(|row| row.cell_iter().nth(last))
        .map(Cell::content);
    let mut whole = Table::new();
    let mut words = Table::new();
    for cell in cells {
        words.add_rows(cell.split(' ').map(|word| [word]));
        whole.add_row([cell]);
    }
    let widest = |column: &Table| column.column_max_content_widths().first().copied();
    let whole = widest(&whole).unwrap_or_default();
    let word = widest(&words).unwrap_or_default();
    whole
        .min(LAST_COLUMN_MIN_COLUMNS)
        .max(word.min(WORD_MAX_COLUMNS))
}

/// A cell in the colour of its tone.
pub(crate) fn toned(text: impl ToString, tone: Tone) -> Cell {
    let cell = Cell::new(clean(&text.to_string()));
    match tone {
        Tone::Good => cell.fg(Color::Green),
        Tone::Bad => cell.fg(Color::Red),
        Tone::Open => cell.fg(Color::Yellow),
        Tone::Plain => cell,
    }
}

/// The scalar at this JSON pointer as text, `-` when there is none.
pub(crate) fn text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    }
}

/// The string at this key, empty when there is none.
pub(crate) fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The number at this key.
pub(crate) fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

/// The items of a list answer.
pub(crate) fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// An RFC 3339 time.
pub(crate) fn time(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text)
        .ok()
        .map(|at| at.to_utc())
}

/// How long ago, or how long until: `5s`, `12m`, `1h59m`, `9d`.
pub(crate) fn distance(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    let seconds = (to - from).num_seconds().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The first line of a command, cut to what fits in a table, with a mark when there is more.
pub(crate) fn first_line(command: &str) -> String {
    let command = command.trim_end();
    let line = command.lines().next().unwrap_or_default();
    let shown: String = line.chars().take(WHAT_CHARS_MAX).collect();
    if shown.len() < line.len() {
        format!("{shown}…")
    } else if line.len() < command.len() {
        format!("{shown} …")
    } else {
        shown
    }
}

/// `1 step`, `2 steps`.
pub(crate) fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// A size as people read it.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const KIB: u64 = 1024;
    const MIB: u64 = KIB * 1024;
    const GIB: u64 = MIB * 1024;
    let tenth = |unit: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", tenth(KIB)),
        MIB..GIB => format!("{} MiB", tenth(MIB)),
        _ => format!("{} GiB", tenth(GIB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_or_many_lined_command_is_cut_with_a_mark() {
        assert_eq!(first_line("make"), "make");
        assert_eq!(first_line("cat > f <<'E'\nx\nE\n"), "cat > f <<'E' …");
        assert_eq!(first_line(&"x".repeat(80)), format!("{}…", "x".repeat(72)));
    }

    #[test]
    fn a_cell_cannot_draw_over_its_table() {
        assert_eq!(
            toned("\x1b[1m\u{202e}", Tone::Plain).content(),
            "\\u{1b}[1m\\u{202e}"
        );
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(human_bytes(1_023), "1023 B");
        assert_eq!(human_bytes(1_536), "1.5 KiB");
        assert_eq!(human_bytes(5 * 1024 * 1024 + 1), "5.0 MiB");
    }
}
