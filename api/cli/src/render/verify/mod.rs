//! The verdict on an export: every fault, then what was read and what that means.

mod json;
mod verdict;

use std::collections::BTreeSet;

use fluxvm_verify::ContentCount;
use fluxvm_verify::Fault;
use fluxvm_verify::FaultCode;
use fluxvm_verify::Report;
use fluxvm_verify::Scope;
use fluxvm_verify::StreamName;
use fluxvm_verify::VerifierKey;

pub(crate) use json::to_json;
use verdict::verdict;

use super::Tone;
use super::count;
use super::finish;
use super::table;
use super::toned;
use crate::output::Style;

/// The report for people. `key` is the one that was asked for.
pub(crate) fn render(report: &Report, key: Option<&VerifierKey>, style: Style) -> String {
    let mut parts = Vec::new();
    if !report.faults.is_empty() {
        parts.push(faults(&report.faults, style));
    }
    if !report.redactions.is_empty() {
        parts.push(redactions(report));
    }
    parts.push(facts(report, key, style));
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
    let is_stream = matches!(report.scope, Some(Scope::OneStream(_)));
    let lines = report.redactions.iter().map(|it| {
        let order = match it.order {
            Some(order) => format!("ordered by event {order}"),
            None if is_stream => "its order is not in this export".to_owned(),
            None => "no order found".to_owned(),
        };
        format!("REDACTED event {} ({}), {order}", it.seq, it.kind)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn facts(report: &Report, key: Option<&VerifierKey>, style: Style) -> String {
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
    let ContentCount { named, present } = report.content;
    if named > 0 {
        row("content", format!("{present} of {named}"));
    }
    if !report.budgets.is_empty() {
        row("budgets", budgets(report));
    }
    if let Some(checkpoint) = &report.checkpoint {
        row("signed", format!("up to event {}", checkpoint.size));
        for (at, (from, key)) in report.keys.iter().enumerate() {
            match at {
                0 => row("key", key.to_string()),
                _ => row("", format!("from event {from} on {key}")),
            }
        }
        if key.is_none() {
            let whence = "taken from the file itself; compare it, or pass --key";
            row("", whence.to_owned());
        }
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

fn scope(scope: &Scope) -> String {
    match scope {
        Scope::WholeLedger => "the whole ledger".to_owned(),
        Scope::OneStream(stream) => stream.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use expect_test::expect;
    use fluxvm_verify::BudgetUse;
    use fluxvm_verify::Checkpoint;
    use fluxvm_verify::EventKind;
    use fluxvm_verify::GlobalSeq;
    use fluxvm_verify::Position;
    use fluxvm_verify::Redaction;
    use fluxvm_verify::TreeHash;

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
            redactions: vec![Redaction {
                seq: GlobalSeq::new(1041).expect("a seq"),
                kind: EventKind::parse("exec").expect("a kind"),
                order: GlobalSeq::new(1044),
            }],
            content: ContentCount {
                named: 2,
                present: 1,
            },
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

            REDACTED event 1041 (exec), ordered by event 1044

            covers    session/5f0c
            events    8
            redacted  1
            content   1 of 2
            budgets   1 limit of 1 session, never exceeded

            BROKEN: 2 faults."#]]
        .assert_eq(&render(&report(), None, Style::default()));
    }

    fn clean() -> Report {
        Report {
            faults: Vec::new(),
            faults_total: 0,
            ..report()
        }
    }

    fn key() -> VerifierKey {
        "flux.example/ledger+669cf786+AepKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs"
            .parse()
            .expect("a key")
    }

    fn signed() -> Report {
        Report {
            checkpoint: Some(Checkpoint {
                origin: "flux.example/ledger".to_owned(),
                size: Position::new(1050),
                root: TreeHash::of_nothing(),
            }),
            keys: vec![(Position::START, key())],
            ..clean()
        }
    }

    #[test]
    fn a_clean_report_says_what_it_means_and_whose_key_was_believed() {
        expect![[r#"
            REDACTED event 1041 (exec), ordered by event 1044

            covers    session/5f0c
            events    8
            redacted  1
            content   1 of 2
            budgets   1 limit of 1 session, never exceeded
            signed    up to event 1050
            key       flux.example/ledger+669cf786+AepKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs
                      taken from the file itself; compare it, or pass --key

            OK: every event is what was hashed, and the stream's versions follow one another without a gap."#]].assert_eq(&render(&signed(), None, Style::default()));
        let asked = render(&signed(), Some(&key()), Style::default());
        assert!(asked.contains(&key().to_string()) && !asked.contains("the file itself"));
    }

    #[test]
    fn what_nobody_signed_for_is_never_called_ok() {
        let said = render(&clean(), None, Style::default());
        assert!(
            said.contains("UNSIGNED: nothing binds this to the ledger."),
            "{said}"
        );
        assert!(!said.contains("OK"), "{said}");
        let held = Report {
            held: Some(Position::new(7)),
            ..clean()
        };
        let said = render(&held, None, Style::default());
        assert!(said.contains("to the ledger behind event 7."), "{said}");
        let answer = to_json(Path::new("e.jsonl"), &clean(), None);
        assert_eq!(answer["verdict"], "unsigned");
    }

    #[test]
    fn what_takes_a_proof_is_not_called_broken() {
        let mut unproven = signed();
        unproven.faults_total = 1;
        unproven.faults = vec![fault(FaultCode::AgainstUnproven, 9, 0, "")];
        let said = render(&unproven, None, Style::default());
        assert!(
            said.contains("NOT PROVEN") && said.contains("--consistency"),
            "{said}"
        );
        unproven
            .faults
            .push(fault(FaultCode::EventHash, 9, 1, "exec"));
        let said = render(&unproven, None, Style::default());
        assert!(said.contains("BROKEN"), "{said}");
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
              "content": {
                "named": 2,
                "present": 1
              },
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
              "key_asked": null,
              "keys": [],
              "ledger_id": null,
              "ok": false,
              "proofs": 0,
              "redacted": 1,
              "redactions": [
                {
                  "kind": "exec",
                  "order": 1044,
                  "seq": 1041
                }
              ],
              "scope": "session/5f0c",
              "signed": false,
              "streams": 1,
              "verdict": "broken"
            }"#]]
        .assert_eq(&format!(
            "{:#}",
            to_json(Path::new("e.jsonl"), &report(), None)
        ));
    }
}
