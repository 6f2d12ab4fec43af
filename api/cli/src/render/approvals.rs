//! Commands that wait for people.

use serde_json::Value;

use super::Tone;
use super::finish;
use super::items;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;

/// The list of `agent approvals`.
pub(crate) fn list(answer: &Value, style: Style) -> String {
    let approvals = items(answer, "items");
    if approvals.is_empty() {
        return "No command waits, or ever waited, for an approval.".to_owned();
    }
    let mut table = table(
        style,
        &["APPROVAL", "STATUS", "EXPIRES", "MATCHED", "COMMAND"],
    );
    for approval in approvals {
        let status = text(approval, "/status");
        let tone = match status.as_str() {
            "approved" | "consumed" => Tone::Good,
            "denied" | "expired" => Tone::Bad,
            _ => Tone::Plain,
        };
        table.add_row(vec![
            toned(text(approval, "/id"), Tone::Plain),
            toned(status, tone),
            toned(text(approval, "/expires_at"), Tone::Plain),
            toned(text(approval, "/matched"), Tone::Plain),
            toned(text(approval, "/command"), Tone::Plain),
        ]);
    }
    finish(table)
}

/// One request, with all that the one who decides has to see.
pub(crate) fn request(approval: &Value, style: Style) -> String {
    let mut table = table(style, &[]);
    let list = |key: &str| {
        let words: Vec<&str> = items(approval, key)
            .iter()
            .filter_map(Value::as_str)
            .collect();
        words.join("; ")
    };
    let rows = [
        ("approval", text(approval, "/id")),
        ("command", text(approval, "/command")),
        ("runs", list("runs")),
        ("unjudged", list("unjudged")),
        ("in", text(approval, "/cwd")),
        ("variables", list("env")),
        ("matched", text(approval, "/matched")),
        ("approvers", text(approval, "/approvers")),
        ("policy", text(approval, "/policy_sha256")),
        ("expires", text(approval, "/expires_at")),
    ];
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row(vec![toned(name, Tone::Plain), toned(value, Tone::Plain)]);
    }
    finish(table)
}
