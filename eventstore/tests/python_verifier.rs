//! The verifier in `docs/examples` was written from the document and knows none of this code. It
//! finds what ours finds, by the same codes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use fluxvm_eventstore::*;
use fluxvm_verify::VerifyOptions;
use fluxvm_verify::verify_export;
use serde_json::json;
use support::*;
use uuid::Uuid;

const PYTHON: &str = "/usr/bin/python3";

/// What to hold an export against.
#[derive(Default)]
struct Asked {
    key: Option<String>,
    against: Vec<String>,
    /// Nobody need have signed.
    unsigned: bool,
}

fn unsigned() -> Asked {
    Asked {
        unsigned: true,
        ..Asked::default()
    }
}

/// The codes that each of the two finds, with the events that they name.
fn codes_of_both(text: &str, asked: &Asked) -> Option<[BTreeSet<String>; 2]> {
    if !Path::new(PYTHON).exists() {
        eprintln!("SKIPPED: there is no {PYTHON}, the verifier in Python was not run");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("export"), text).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(PYTHON);
    command.arg("-B").arg(root.join("docs/examples/verify.py"));
    command.arg(path("export"));
    if let Some(key) = &asked.key {
        command.args(["--key", key]);
    }
    if asked.unsigned {
        command.arg("--allow-unsigned");
    }
    for (at, note) in asked.against.iter().enumerate() {
        let held = path(&format!("held-{at}"));
        std::fs::write(&held, note).unwrap();
        command.arg("--against").arg(held);
    }
    let output = command.output().unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    let code = |line: &str| {
        let fault = line.split_once(": ")?.1;
        Some(fault.split(": ").next()?.to_owned())
    };
    let theirs: BTreeSet<String> = printed
        .lines()
        .filter(|line| line.starts_with("line "))
        .map(|line| code(line).unwrap())
        .collect();
    assert_eq!(output.status.success(), theirs.is_empty(), "{printed}");

    let options = VerifyOptions {
        key: asked.key.as_ref().map(|key| key.parse().unwrap()),
        against: asked.against.clone(),
        allow_unsigned: asked.unsigned,
        ..VerifyOptions::default()
    };
    let report = verify_export(text.as_bytes(), &options);
    let ours = report.faults.iter().map(|fault| match fault.seq {
        Some(seq) => format!("{}, event {seq}", fault.code),
        None => fault.code.to_string(),
    });
    Some([theirs, ours.collect()])
}

/// Both find the same, and it holds `code` where one is expected.
fn check(text: &str, asked: &Asked, code: &str) {
    if let Some([theirs, ours]) = codes_of_both(text, asked) {
        assert_eq!(theirs, ours);
        let found: BTreeSet<&str> = ours
            .iter()
            .filter_map(|fault| fault.split(',').next())
            .collect();
        match code {
            "" => assert!(found.is_empty(), "{found:?}"),
            code => assert!(found.contains(code), "{found:?}"),
        }
    }
}

/// A ledger with two sessions, payloads of several BLAKE3 chunks and a key that was handed on.
async fn story() -> (tempfile::TempDir, Ledger) {
    let (dir, ledger) = new_ledger();
    for n in 0..3 {
        let text = "é\u{10000}".repeat(400 * n);
        let kind = EventKind::parse("exec").unwrap();
        let event = NewEvent::new(kind, 1, &json!({ "text": text, "n": n })).unwrap();
        let to_a = to(
            "session/a",
            ExpectedVersion::Any,
            vec![event, self::event(1)],
        );
        ledger.append(append(vec![to_a])).await.unwrap();
        fill(&ledger, "session/b", 1).await;
    }
    ledger.checkpoint().await.unwrap();
    let rotation = KeyRotation {
        command_id: CommandId::new(Uuid::from_u128(1)),
        correlation_id: CorrelationId::new(Uuid::from_u128(1)),
        actor: Actor::parse("admin:ops").unwrap(),
    };
    ledger.rotate_key(rotation).await.unwrap();
    fill(&ledger, "session/a", 3).await;
    (dir, ledger)
}

fn lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').map(str::to_owned).collect()
}

fn held(ledger: &Ledger, size: u64) -> String {
    let held = ledger.checkpoint_at(Position::new(size)).unwrap();
    held.unwrap().to_string()
}

#[tokio::test]
async fn a_real_export_of_either_kind_and_scope_has_no_faults() {
    let (_dir, ledger) = story().await;
    check(include_str!("golden/format-1.jsonl"), &unsigned(), "");
    check(
        include_str!("golden/format-1.jsonl"),
        &Asked::default(),
        "unsigned",
    );
    for scope in [
        ExportScope::WholeLedger,
        ExportScope::Stream(stream("session/a")),
    ] {
        check(&export(&ledger, scope.clone()), &unsigned(), "");
        let text = evidence(&ledger, scope, Content::WithBlobs).await;
        let asked = Asked {
            key: Some(ledger.keys()[0].1.to_string()),
            against: vec![held(&ledger, 13)],
            unsigned: false,
        };
        check(&text, &asked, "");
    }
    let asked = Asked {
        against: vec![held(&ledger, 9), held(&ledger, 10), held(&ledger, 13)],
        ..Asked::default()
    };
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    check(&text, &asked, "");
}

#[tokio::test]
async fn both_find_the_attacks_on_the_chain() {
    let (_dir, ledger) = story().await;
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    let good = lines(&text);
    let asked = Asked::default();
    let edit = |at: usize, from: &str, to: &str| {
        let mut edited = good.clone();
        assert!(edited[at].contains(from), "{}", edited[at]);
        edited[at] = edited[at].replacen(from, to, 1);
        edited.concat()
    };
    check(
        &edit(2, "{\"n\":1}", "{\"n\":2}"),
        &asked,
        "payload_commitment",
    );
    check(
        &edit(2, "{\"n\":1}", "{\"n\":22}"),
        &asked,
        "payload_length",
    );
    check(&edit(2, "test:writer", "test:reader"), &asked, "event_hash");
    check(
        &edit(0, "flux.example/ledger\"", "flux.example/edited\""),
        &asked,
        "genesis_hash",
    );
    check(&edit(5, "\"seq\":5", "\"seq\":6"), &asked, "event_hash");
    check(&text[..text.len() - 40], &asked, "truncated");

    let mut swapped = good.clone();
    swapped.swap(3, 4);
    check(&swapped.concat(), &asked, "seq_order");
    let mut dropped = good.clone();
    dropped.remove(4);
    check(&dropped.concat(), &asked, "seq_gap");
    let mut repeated = good.clone();
    repeated.insert(4, good[3].clone());
    check(&repeated.concat(), &asked, "event_repeated");
    check(
        &[text.as_str(), good[1].as_str()].concat(),
        &asked,
        "after_end",
    );
    // What else is wrong without a first line is for each to say as it likes.
    if let Some(both) = codes_of_both(&good[1..].concat(), &asked) {
        assert!(both.iter().all(|found| found.contains("header_missing")));
    }
    check("", &asked, "header_missing");

    let (_other_dir, other) = story().await;
    let other = evidence(&other, ExportScope::WholeLedger, Content::EventsOnly).await;
    let spliced = [&good[..5], &lines(&other)[5..]].concat();
    check(&spliced.concat(), &asked, "link_broken");
    let header = [&lines(&other)[..1], &good[1..]].concat();
    check(&header.concat(), &asked, "genesis_link");

    let salt = good[2].find("\"payload\":").unwrap()..good[2].find(",\"prev\"").unwrap();
    let mut redacted = good.clone();
    redacted[2].replace_range(salt, "\"payload\":null,\"salt\":null,\"redacted\":true");
    check(&redacted.concat(), &asked, "redaction_unordered");
    redacted[2] = redacted[2].replacen("\"schema\":1", "\"schema\":2", 1);
    check(&redacted.concat(), &asked, "redacted_hash");
}

#[tokio::test]
async fn both_hold_an_erasure_against_the_event_that_ordered_it() {
    let (_dir, ledger) = story().await;
    let redaction = Redaction {
        seqs: vec![GlobalSeq::new(2).unwrap()],
        blobs: Vec::new(),
        looked_until: Position::START,
        append: order(&[2]),
    };
    ledger.redact(redaction).await.unwrap();
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    assert!(text.contains("\"redacted\":true"));
    check(&text, &Asked::default(), "");
    let without_order = text.replace("\"ledger.redacted\"", "\"ledger.redacter\"");
    check(&without_order, &Asked::default(), "redaction_unordered");
}

#[tokio::test]
async fn both_refuse_a_line_that_two_readers_could_read_in_two_ways() {
    let (_dir, ledger) = story().await;
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    let good = lines(&text);
    let edit = |from: &str, to: &str| {
        let mut edited = good.clone();
        assert!(edited[2].contains(from), "{}", edited[2]);
        edited[2] = edited[2].replacen(from, to, 1);
        edited.concat()
    };
    let asked = Asked::default();
    // Another payload, called erased so that nobody holds it against its commitment.
    let prev = ",\"prev\"";
    let called_erased = edit(prev, &format!(",\"redacted\":true{prev}"));
    let called_erased = called_erased.replacen("{\"n\":1}", "{\"n\":9}", 1);
    check(&called_erased, &asked, "malformed_line");
    let called_erased = edit(prev, &format!(",\"redacted\":false{prev}"));
    check(&called_erased, &asked, "malformed_line");
    let payload = "\"payload\":{";
    let twice = edit(payload, &format!("\"payload\":{{\"n\":9}},{payload}"));
    check(&twice, &asked, "malformed_line");
    let actor = "\"actor\":\"test:writer\"";
    let twice = edit(actor, &format!("\"actor\":\"admin\",{actor}"));
    check(&twice, &asked, "malformed_line");
    check(
        &edit(actor, &format!("{actor},\"more\":1")),
        &asked,
        "malformed_line",
    );
    check(
        &edit("\"schema\":1", "\"schema\":true"),
        &asked,
        "malformed_line",
    );
    check(
        &edit("\"schema\":1", "\"schema\":1.0"),
        &asked,
        "malformed_line",
    );
    check(&edit("\"schema\":1", "\"schema\": 1"), &asked, "line_form");
    check(
        &edit("test:writer", "test:\\u0077riter"),
        &asked,
        "line_form",
    );
    let mut moved = good.clone();
    moved[2] = moved[2].replacen("\"schema\":1,", "", 1);
    moved[2] = moved[2].replacen(actor, &format!("{actor},\"schema\":1"), 1);
    check(&moved.concat(), &asked, "line_form");
    let deep = edit(payload, &format!("\"payload\":{}", "[".repeat(100_000)));
    check(&deep, &asked, "malformed_line");
}

#[test]
fn the_verifier_in_python_says_of_a_compressed_file_that_it_is_one() {
    if !Path::new(PYTHON).exists() {
        return eprintln!("SKIPPED: there is no {PYTHON}, the verifier in Python was not run");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("export.zst");
    std::fs::write(&file, b"\x28\xb5\x2f\xfd\x00\n\x01\n").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(PYTHON);
    command.arg("-B").arg(root.join("docs/examples/verify.py"));
    let output = command.arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("is compressed") && said.lines().count() == 1,
        "{said}"
    );
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn both_find_the_attacks_on_the_tree_and_its_signatures() {
    let (_dir, ledger) = story().await;
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    let good = lines(&text);
    let quoted = |note: &str| serde_json::to_string(note).unwrap();
    let now = ledger.checkpoint().await.unwrap().to_string();
    let with_note = |note: &str| text.replacen(&quoted(&now), &quoted(note), 1);
    let asked = Asked::default();
    let key = Asked {
        key: Some(ledger.keys()[0].1.to_string()),
        ..Asked::default()
    };
    let body = &now[..now.find("\n\n").unwrap() + 2];
    check(&with_note(body), &asked, "checkpoint_unsigned");
    check(
        &with_note(&now.replacen("\n13\n", "\n12\n", 1)),
        &asked,
        "checkpoint_signature",
    );
    check(
        &with_note(&now.replacen("\n\n", "\nmore\n\n", 1)),
        &asked,
        "checkpoint_form",
    );
    check(
        &with_note(&now.replacen("flux", "flox", 1)),
        &asked,
        "checkpoint_origin",
    );
    check(&with_note(&held(&ledger, 9)), &asked, "checkpoint_size");
    let stripped = text.replacen(&format!(",\"checkpoint\":{}", quoted(&now)), "", 1);
    check(&stripped, &asked, "checkpoint_missing");
    check(
        &export(&ledger, ExportScope::WholeLedger),
        &key,
        "checkpoint_missing",
    );

    let of_ledger = |against: Vec<String>| Asked {
        against,
        ..Asked::default()
    };
    let cut = [&good[..9], &good[good.len() - 1..]].concat().concat();
    check(&cut, &asked, "checkpoint_beyond");
    let (_other_dir, other) = story().await;
    let other_text = evidence(&other, ExportScope::WholeLedger, Content::EventsOnly).await;
    check(
        &other_text,
        &of_ledger(vec![now.clone()]),
        "checkpoint_unsigned",
    );
    check(&other_text, &key, "key_unexpected");
    fill(&ledger, "session/a", 1).await;
    let later = ledger.checkpoint().await.unwrap().to_string();
    check(&text, &of_ledger(vec![later]), "tail_missing");
    let rotated = good
        .iter()
        .position(|line| line.contains("ledger.key_rotated"))
        .unwrap();
    let without = text.replacen("\"signature\":\"", "\"signature\":\"AA", 1);
    assert!(good[rotated].contains("\"signature\":\""));
    check(&without, &asked, "rotation_signature");
    let without = text.replacen("\"new_vkey\":\"", "\"new_vkey\":\"x", 1);
    check(&without, &asked, "rotation_form");
}

#[tokio::test]
async fn both_find_the_attacks_on_the_proofs_of_one_stream() {
    let (_dir, ledger) = story().await;
    let text = evidence(
        &ledger,
        ExportScope::Stream(stream("session/a")),
        Content::EventsOnly,
    )
    .await;
    let good = lines(&text);
    let asked = Asked::default();
    assert!(good[6].starts_with("{\"type\":\"proof\""), "{}", good[6]);
    let mut flipped = good.clone();
    let digit = flipped[6].find("[\"").unwrap() + 2;
    let other = if &flipped[6][digit..=digit] == "0" {
        "1"
    } else {
        "0"
    };
    flipped[6].replace_range(digit..=digit, other);
    check(&flipped.concat(), &asked, "proof_invalid");
    let mut missing = good.clone();
    missing.remove(good.len() - 2);
    check(&missing.concat(), &asked, "proof_missing");
    let mut repeated = good.clone();
    repeated.insert(7, good[6].clone());
    check(&repeated.concat(), &asked, "proof_foreign");
    let asked = Asked {
        against: vec![held(&ledger, 9)],
        ..Asked::default()
    };
    check(&text, &asked, "against_unproven");
}
