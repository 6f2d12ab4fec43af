//! The list of session tokens.

use serde_json::Value;

use super::Tone;
use super::finish;
use super::items;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;

/// The list of `agent tokens`.
pub(crate) fn list(answer: &Value, style: Style) -> String {
    let tokens = items(answer, "items");
    if tokens.is_empty() {
        return "No token is live.".to_owned();
    }
    let mut table = table(style, &["TOKEN", "LABEL", "OPS", "EXPIRES"]);
    for token in tokens {
        let ops: Vec<&str> = items(token, "ops")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        table.add_row(vec![
            toned(text(token, "/id"), Tone::Plain),
            toned(text(token, "/label"), Tone::Plain),
            toned(ops.join(","), Tone::Plain),
            toned(text(token, "/expires_at"), Tone::Plain),
        ]);
    }
    finish(table)
}
