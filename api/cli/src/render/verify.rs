//! The verdict on an export: every fault, then what was read and what that means.

use std::collections::BTreeSet;
use std::path::Path;

use fluxvm_verify::Fault;
use fluxvm_verify::FaultCode;
use fluxvm_verify::Report;
use fluxvm_verify::Scope;
use fluxvm_verify::StreamName;
use serde_json::Value;
use serde_json::json;

use super::Tone;
use super::count;
use super::finish;
use super::table;
use super::toned;
use crate::output::Style;

/// The report as one JSON document.
pub(crate) fn to_json(file: &Path, report: &Report) -> Value {
    let faults: Vec<Value> = report
        .faults
        .iter()
        .map(|fault| {
            json!({
                "code": fault.code.as_str(),
                "seq": fault.seq.map(|seq| seq.get()),
                "kind": fault.kind.as_ref().map(ToString::to_string),
                "line": fault.line,
                "detail": fault.detail,
            })
        })
        .collect();
    json!({
        "file": file,
        "ok": report.is_clean(),
        "ledger_id": report.genesis.as_ref().map(|genesis| genesis.ledger_id.to_string()),
        "scope": report.scope.as_ref().map(scope),
        "events": report.events,
        "streams": report.streams,
        "redacted": report.redacted,
        "redactions": report
            .redactions
            .iter()
            .map(|(seq, kind)| json!({"seq": seq.get(), "kind": kind.to_string()}))
            .collect::<Vec<_>>(),
        "proofs": report.proofs,
        "blobs": report.blobs,
        "budgets": report
            .budgets
            .iter()
            .map(|it| {
                let stream = it.stream.to_string();
                json!({"stream": stream, "name": it.name, "limit": it.limit, "most": it.most})
            })
            .collect::<Vec<_>>(),
        "checkpoint": report.checkpoint.as_ref().map(|checkpoint| {
            json!({"size": checkpoint.size.get(), "root": checkpoint.root.to_string()})
        }),
        "keys": report.keys.iter().map(|(_, key)| key.to_string()).collect::<Vec<_>>(),
        "head": report.head.map(|(seq, hash)| json!({"seq": seq.get(), "hash": hash.to_string()})),
        "faults_total": report.faults_total,
        "faults": faults,
    })
}

/// The report for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let mut parts = Vec::new();
    if !report.faults.is_empty() {
        parts.push(faults(&report.faults, style));
    }
    if !report.redactions.is_empty() {
        parts.push(redactions(report));
    }
    parts.push(facts(report, style));
    parts.push(verdict(report));
    parts.join("\n\n")
}

fn faults(faults: &[Fault], style: Style) -> String {
    let mut table = table(style, &["LINE", "SEQ", "KIND", "FAULT", "DETAIL"]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for fault in faults {
        table.add_row(vec![
            toned(fault.line, Tone::Plain),
            toned(or_dash(fault.seq.map(|seq| seq.to_string())), Tone::Plain),
            toned(
                or_dash(fault.kind.as_ref().map(ToString::to_string)),
                Tone::Plain,
            ),
            toned(fault.code, Tone::Bad),
            toned(&fault.detail, Tone::Plain),
        ]);
    }
    finish(table)
}

/// What was erased in good order is no fault, and is said all the same.
fn redactions(report: &Report) -> String {
    let lines = report.redactions.iter();
    let lines = lines.map(|(seq, kind)| format!("REDACTED event {seq} ({kind})"));
    lines.collect::<Vec<_>>().join("\n")
}

fn facts(report: &Report, style: Style) -> String {
    let mut table = table(style, &[]);
    let mut row = |name: &str, value: String| {
        table.add_row(vec![toned(name, Tone::Plain), toned(value, Tone::Plain)]);
    };
    if let Some(genesis) = &report.genesis {
        row("ledger", genesis.ledger_id.to_string());
    }
    if let Some(scope_of_export) = &report.scope {
        row("covers", scope(scope_of_export));
    }
    row("events", report.events.to_string());
    if report.streams > 1 {
        row("streams", report.streams.to_string());
    }
    for (name, number) in [
        ("redacted", report.redacted),
        ("proofs", report.proofs),
        ("blobs", report.blobs),
    ] {
        if number > 0 {
            row(name, number.to_string());
        }
    }
    if !report.budgets.is_empty() {
        row("budgets", budgets(report));
    }
    if let Some(checkpoint) = &report.checkpoint {
        row("signed", format!("up to event {}", checkpoint.size));
    }
    if let Some((seq, hash)) = report.head {
        row("head", format!("{seq}:{hash}"));
    }
    finish(table)
}

/// Whether what was given out stayed within what there was, which events alone tell.
fn budgets(report: &Report) -> String {
    let sessions: BTreeSet<&StreamName> = report.budgets.iter().map(|it| &it.stream).collect();
    let passed = report
        .faults
        .iter()
        .filter(|fault| fault.code == FaultCode::BudgetExceeded)
        .count();
    let of_them = match passed {
        0 => "never exceeded".to_owned(),
        _ => format!("exceeded {}", count(passed, "time")),
    };
    let limits = count(report.budgets.len(), "limit");
    let sessions = count(sessions.len(), "session");
    format!("{limits} of {sessions}, {of_them}")
}

fn verdict(report: &Report) -> String {
    if !report.is_clean() {
        let total = usize::try_from(report.faults_total).unwrap_or(usize::MAX);
        let listed = report.faults.len();
        let more = if listed < total {
            format!(" ({listed} of them listed)")
        } else {
            String::new()
        };
        return format!("BROKEN: {}{more}.", count(total, "fault"));
    }
    let between = match report.scope {
        Some(Scope::OneStream(_)) => "the stream's versions follow one another without a gap",
        _ => "the chain has no gap from the first event to the head",
    };
    format!("OK: every event is what was hashed, and {between}.")
}

fn scope(scope: &Scope) -> String {
    match scope {
        Scope::WholeLedger => "the whole ledger".to_owned(),
        Scope::OneStream(stream) => stream.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use fluxvm_verify::BudgetUse;
    use fluxvm_verify::EventKind;
    use fluxvm_verify::GlobalSeq;

    fn fault(code: FaultCode, line: u64, seq: u64, kind: &str) -> Fault {
        let kind = EventKind::parse(kind).ok();
        Fault {
            code,
            line,
            seq: GlobalSeq::new(seq),
            kind,
            detail: "as told".to_owned(),
        }
    }

    fn report() -> Report {
        let faults = vec![
            fault(FaultCode::PayloadCommitment, 7, 1042, "exec"),
            fault(FaultCode::Truncated, 9, 0, ""),
        ];
        let stream = StreamName::parse("session/5f0c").expect("a name");
        Report {
            faults_total: 2,
            faults,
            events: 8,
            streams: 1,
            redacted: 1,
            redactions: vec![(
                GlobalSeq::new(1041).expect("a seq"),
                EventKind::parse("exec").expect("a kind"),
            )],
            budgets: vec![BudgetUse {
                stream: stream.clone(),
                name: "max_execs",
                limit: 5,
                most: 2,
            }],
            scope: Some(Scope::OneStream(stream)),
            ..Report::default()
        }
    }

    #[test]
    fn every_fault_is_listed_with_its_event() {
        expect![[r#"
            LINE  SEQ   KIND  FAULT               DETAIL
            7     1042  exec  payload_commitment  as told
            9     -     -     truncated           as told

            REDACTED event 1041 (exec)

            covers    session/5f0c
            events    8
            redacted  1
            budgets   1 limit of 1 session, never exceeded

            BROKEN: 2 faults."#]]
        .assert_eq(&render(&report(), Style::default()));
    }

    #[test]
    fn a_clean_report_says_what_it_means() {
        let clean = Report {
            faults: Vec::new(),
            faults_total: 0,
            ..report()
        };
        expect![[r#"
            REDACTED event 1041 (exec)

            covers    session/5f0c
            events    8
            redacted  1
            budgets   1 limit of 1 session, never exceeded

            OK: every event is what was hashed, and the stream's versions follow one another without a gap."#]].assert_eq(&render(&clean, Style::default()));
    }

    #[test]
    fn the_json_report_names_the_same() {
        expect![[r#"
            {
              "blobs": 0,
              "budgets": [
                {
                  "limit": 5,
                  "most": 2,
                  "name": "max_execs",
                  "stream": "session/5f0c"
                }
              ],
              "checkpoint": null,
              "events": 8,
              "faults": [
                {
                  "code": "payload_commitment",
                  "detail": "as told",
                  "kind": "exec",
                  "line": 7,
                  "seq": 1042
                },
                {
                  "code": "truncated",
                  "detail": "as told",
                  "kind": null,
                  "line": 9,
                  "seq": null
                }
              ],
              "faults_total": 2,
              "file": "e.jsonl",
              "head": null,
              "keys": [],
              "ledger_id": null,
              "ok": false,
              "proofs": 0,
              "redacted": 1,
              "redactions": [
                {
                  "kind": "exec",
                  "seq": 1041
                }
              ],
              "scope": "session/5f0c",
              "streams": 1
            }"#]]
        .assert_eq(&format!("{:#}", to_json(Path::new("e.jsonl"), &report())));
    }
}
