//! What the sandboxes of this machine enforce.

use serde_json::Value;

use super::Tone;
use super::finish;
use super::table;
use super::toned;
use crate::output::Style;

/// The table of `fluxctl capabilities`: every key the daemon sent, nested ones with their path.
pub(crate) fn render(answer: &Value, style: Style) -> String {
    let mut rows = Vec::new();
    flatten("", answer, &mut rows);
    let mut table = table(style, &["CAPABILITY", "HERE"]);
    for (name, value) in rows {
        let (text, tone) = match value {
            Value::Bool(true) => ("yes".to_owned(), Tone::Good),
            Value::Bool(false) => ("no".to_owned(), Tone::Open),
            Value::String(text) => (text, Tone::Plain),
            Value::Null => ("-".to_owned(), Tone::Plain),
            Value::Array(list) if list.is_empty() => ("-".to_owned(), Tone::Plain),
            Value::Array(list) => (sentence(&list), Tone::Open),
            other => (other.to_string(), Tone::Plain),
        };
        table.add_row(vec![toned(name, Tone::Plain), toned(text, tone)]);
    }
    finish(table)
}

fn sentence(list: &[Value]) -> String {
    let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    words.join("; ")
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                // What stands under `capabilities` is what the whole table is about.
                let path = match (prefix, key.as_str()) {
                    ("", "capabilities") => String::new(),
                    ("", key) => key.to_owned(),
                    (prefix, key) => format!("{prefix}.{key}"),
                };
                flatten(&path, value, rows);
            }
        }
        leaf => rows.push((prefix.replace('_', " "), leaf.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn every_key_is_shown() {
        let answer = json!({"backend": "procbox", "capabilities": {"fork": false, "memory_limit": true, "memory_checkpoint_reason": null, "degraded": ["no a", "no b"]}});
        expect![[r#"
            CAPABILITY                HERE
            backend                   procbox
            degraded                  no a; no b
            fork                      no
            memory checkpoint reason  -
            memory limit              yes"#]]
        .assert_eq(&render(&answer, Style::default()));
    }
}
