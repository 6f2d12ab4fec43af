//! The ledger's identity and head.

use serde_json::Value;

use super::Tone;
use super::finish;
use super::human_bytes;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;

/// The page of `ledger info`: every key the daemon sent.
pub(crate) fn info(answer: &Value, style: Style) -> String {
    let mut table = table(style, &[]);
    for (key, value) in answer.as_object().into_iter().flatten() {
        let shown = match value {
            // As `ledger verify --known` takes it.
            Value::Object(_) if key == "head" => {
                format!("{}:{}", text(value, "/position"), text(value, "/hash"))
            }
            Value::String(text) => text.clone(),
            Value::Number(number) if key.starts_with("bytes") || key.ends_with("bytes") => number
                .as_u64()
                .map(human_bytes)
                .unwrap_or_else(|| number.to_string()),
            Value::Object(map) => {
                let words: Vec<String> = map
                    .iter()
                    .map(|(key, value)| match value {
                        Value::String(text) => format!("{key} {text}"),
                        other => format!("{key} {other}"),
                    })
                    .collect();
                words.join(", ")
            }
            Value::Null => continue,
            other => other.to_string(),
        };
        table.add_row(vec![
            toned(key.replace('_', " "), Tone::Plain),
            toned(shown, Tone::Plain),
        ]);
    }
    finish(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn sizes_and_the_head_are_readable() {
        let answer = json!({"ledger_id": "0c1d", "bytes_on_disk": 2048, "head": {"position": 7, "hash": "ab"}, "x": null, "sync": {"p50": 1}});
        expect![[r#"
            bytes on disk  2.0 KiB
            head           7:ab
            ledger id      0c1d
            sync           p50 1"#]]
        .assert_eq(&info(&answer, Style::default()));
    }

    #[test]
    fn a_hash_stays_in_one_piece_in_a_narrow_terminal() {
        let head = format!("7:{}", "ab".repeat(32));
        let answer = json!({"head": {"position": 7, "hash": "ab".repeat(32)}});
        let style = Style {
            columns: Some(40),
            ..Style::default()
        };
        assert_eq!(info(&answer, style), format!("head  {head}"));
    }
}
