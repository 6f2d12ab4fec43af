//! Keys, holds, redactions and checks, for people.

use serde_json::Value;

use super::Tone;
use super::finish;
use super::table;
use super::text;
use super::toned;
use crate::commands::Check;
use crate::output::Style;

/// The page of `ledger key`.
pub(crate) fn keys(answer: &Value, style: Style) -> String {
    let mut table = table(style, &["FROM", "KEY"]);
    for key in answer
        .pointer("/keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let from = key.pointer("/from").map(Value::to_string);
        table.add_row(vec![
            toned(from.unwrap_or_default(), Tone::Plain),
            toned(text(key, "/vkey"), Tone::Plain),
        ]);
    }
    finish(table)
}

/// What a redaction came to.
pub(crate) fn redaction(answer: &Value, _: Style) -> String {
    let seqs: Vec<String> = answer
        .pointer("/redacted")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(Value::to_string)
        .collect();
    let number = |path: &str| answer.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    format!(
        "REDACTED {} ({} of content), recorded as event {}.\nThe store's files are rid of it at the \
         daemon's next start.",
        seqs.join(", "),
        super::count(
            usize::try_from(number("/blobs")).unwrap_or(usize::MAX),
            "piece"
        ),
        number("/seq"),
    )
}

/// A session whose key was destroyed.
pub(crate) fn shredded(answer: &Value, _: Style) -> String {
    let text = |path: &str| {
        answer
            .pointer(path)
            .map(Value::to_string)
            .unwrap_or_default()
    };
    format!(
        "SHREDDED session {}, recorded as event {}.\nIts key is destroyed: no copy of the ledger can \
         be read for it. Exports that were handed out can.",
        text("/session").trim_matches('"'),
        text("/seq"),
    )
}

/// What a retention erased.
pub(crate) fn retained(answer: &Value, _: Style) -> String {
    let number = |path: &str| answer.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let count = |path: &str, what: &str| {
        super::count(usize::try_from(number(path)).unwrap_or(usize::MAX), what)
    };
    let more = match number("/left") {
        0 => String::new(),
        left => format!("\n{left} more can be erased: ask again."),
    };
    format!(
        "ERASED {} of {} before {}, recorded as event {}.\nThe store's files are rid of it at the \
         daemon's next start.{more}",
        count("/events", "event"),
        count("/sessions", "session"),
        number("/before"),
        number("/seq"),
    )
}

/// A hold that was placed.
pub(crate) fn hold(answer: &Value, _: Style) -> String {
    let seq = answer.pointer("/seq").map(Value::to_string);
    let seq = seq.unwrap_or_default();
    format!(
        "Hold {seq} is in force on {}. Release it with: fluxctl ledger release {seq}",
        scope(answer)
    )
}

/// The page of `ledger holds`.
pub(crate) fn holds(answer: &Value, style: Style) -> String {
    let mut table = table(style, &["HOLD", "COVERS", "SINCE", "REASON"]);
    let items = answer.pointer("/items").and_then(Value::as_array);
    let items = items.into_iter().flatten();
    let mut some = false;
    for hold in items {
        some = true;
        let seq = hold.pointer("/seq").map(Value::to_string);
        table.add_row(vec![
            toned(seq.unwrap_or_default(), Tone::Plain),
            toned(scope(hold), Tone::Plain),
            toned(text(hold, "/at"), Tone::Plain),
            toned(text(hold, "/reason"), Tone::Plain),
        ]);
    }
    match some {
        true => finish(table),
        false => "No hold is in force.".to_owned(),
    }
}

fn scope(hold: &Value) -> String {
    match hold.pointer("/session").and_then(Value::as_str) {
        Some(session) => format!("session {session}"),
        None => "the whole ledger".to_owned(),
    }
}

/// The page of `ledger doctor`.
pub(crate) fn checks(checks: &[Check], style: Style) -> String {
    let mut table = table(style, &[]);
    for check in checks {
        let (word, tone) = match check.is_well {
            Some(true) => ("ok", Tone::Good),
            Some(false) => ("BAD", Tone::Bad),
            None => ("-", Tone::Plain),
        };
        table.add_row(vec![
            toned(check.name, Tone::Plain),
            toned(word, tone),
            toned(&check.found, Tone::Plain),
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
    fn holds_say_what_they_cover_and_why() {
        let answer = json!({"items": [
            {"seq": 7, "session": null, "reason": "case 7", "at": "2026-12-01T10:00:00Z"},
            {"seq": 9, "session": "5f0c", "reason": "audit", "at": "2026-12-01T11:00:00Z"},
        ]});
        expect![[r#"
            HOLD  COVERS            SINCE                 REASON
            7     the whole ledger  2026-12-01T10:00:00Z  case 7
            9     session 5f0c      2026-12-01T11:00:00Z  audit"#]]
        .assert_eq(&holds(&answer, Style::default()));
        expect!["No hold is in force."].assert_eq(&holds(&json!({"items": []}), Style::default()));
    }

    #[test]
    fn a_redaction_says_what_went_and_where_that_is_recorded() {
        let answer = json!({"seq": 57, "redacted": [41, 42], "blobs": 1, "reason": "x"});
        expect![[r#"
            REDACTED 41, 42 (1 piece of content), recorded as event 57.
            The store's files are rid of it at the daemon's next start."#]]
        .assert_eq(&redaction(&answer, Style::default()));
    }
}
