//! Whoever tampers with evidence is found out: one test for each attack, each with its own code.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_verify::FaultCode::*;
use fluxvm_verify::*;
use support::evidence::*;
use support::*;

/// The key that the ledger begins with, the next one, and an attacker's.
const OLD: u8 = 1;
const NEW: u8 = 2;
const MALLORY: u8 = 9;

fn sound() -> Forge {
    Forge::with_key(OLD, 11)
}

/// Seven events, the key handed on, five more.
fn rotated() -> Forge {
    let mut forge = Forge::with_key(OLD, 7);
    forge.rotate(OLD, NEW);
    forge.grow(5);
    forge
}

fn check(lines: &[String], expected: &[(FaultCode, Option<u64>)]) {
    let report = verify_with(lines, &VerifyOptions::default());
    assert_eq!(codes(&report), expected, "{:#?}", report.faults);
    assert!(expected.is_empty() || report.checkpoint.is_none() || !report.is_clean());
}

fn check_against(lines: &[String], held: &[String], expected: &[(FaultCode, Option<u64>)]) {
    let report = verify_with(lines, &against(held));
    assert_eq!(codes(&report), expected, "{:#?}", report.faults);
}

fn replace_last(lines: &mut [String], from: &str, to: &str) {
    let last = lines.last_mut().unwrap();
    assert!(last.contains(from), "{last}");
    *last = last.replacen(from, to, 1);
}

/// What a note looks like inside a line.
fn quoted(note: &str) -> String {
    serde_json::to_string(note).unwrap()
}

fn with_note(mut lines: Vec<String>, forge: &Forge, note: &str) -> Vec<String> {
    let seeds = [OLD, NEW, MALLORY];
    let all = forge.events.len();
    let old = seeds
        .map(|seed| quoted(&forge.note_at(all, seed)))
        .into_iter()
        .find(|old| lines.last().unwrap().contains(old.as_str()));
    replace_last(&mut lines, &old.unwrap(), &quoted(note));
    lines
}

#[test]
fn sound_evidence_is_accepted_and_says_what_it_proves() {
    for size in 0..20 {
        let forge = Forge::with_key(OLD, size);
        let report = verify_with(&forge.evidence(OLD), &VerifyOptions::default());
        assert!(report.is_clean(), "{:#?}", report.faults);
        assert_eq!(report.checkpoint, Some(forge.head_at(size as usize)));
        assert_eq!(report.keys, [(Position::START, vkey(OLD))]);
    }
    let options = VerifyOptions {
        key: Some(vkey(OLD)),
        ..against(&[sound().note_at(4, OLD), sound().note_at(0, OLD)])
    };
    assert!(verify_with(&sound().evidence(OLD), &options).is_clean());
}

#[test]
fn sound_evidence_of_one_stream_is_accepted_with_a_proof_for_each_event() {
    for forge in [sound(), rotated()] {
        let key = if forge.events.len() == 11 { OLD } else { NEW };
        let report = verify_with(
            &forge.of_stream("session/a").evidence(key),
            &Default::default(),
        );
        assert!(report.is_clean(), "{:#?}", report.faults);
        assert_eq!(report.proofs, report.events);
        assert!(report.checkpoint.is_some());
    }
}

#[test]
fn a_key_that_was_handed_on_is_followed() {
    let report = verify_with(
        &rotated().evidence(NEW),
        &against(&[rotated().note_at(7, OLD)]),
    );
    assert!(report.is_clean(), "{:#?}", report.faults);
    assert_eq!(
        report.keys,
        [(Position::START, vkey(OLD)), (Position::new(8), vkey(NEW))]
    );
}

#[test]
fn a_cut_tail_is_found_by_a_checkpoint_held_elsewhere() {
    let held = sound().note_at(11, OLD);
    let mut cut = sound();
    cut.events.truncate(8);
    check(&cut.evidence(OLD), &[]);
    check_against(&cut.evidence(OLD), &[held], &[(TailMissing, None)]);
    // The same in an export without a signature of its own.
    let held = sound().note_at(11, OLD);
    let found = [(Unsigned, None), (TailMissing, None)];
    check_against(&cut.lines(), &[held], &found);
}

#[test]
fn a_ledger_linked_anew_from_some_event_is_found_by_a_checkpoint_held_elsewhere() {
    let held = sound().note_at(9, OLD);
    let mut forged = sound();
    forged.set_payload(4, "{}");
    forged.recommit(4);
    forged.rechain(4);
    check(&forged.evidence(OLD), &[]);
    check_against(&forged.evidence(OLD), &[held], &[(HistoryRewritten, None)]);
}

#[test]
fn a_ledger_linked_anew_without_the_key_does_not_fit_its_checkpoint() {
    let sound = sound();
    let mut forged = sound.clone();
    forged.set_payload(4, "{}");
    forged.recommit(4);
    forged.rechain(4);
    let mut lines = forged.evidence(OLD);
    lines[0] = sound.evidence(OLD)[0].clone();
    let lines = with_note(lines, &forged, &sound.note_at(11, OLD));
    check(&lines, &[(TreeRoot, None)]);
    // With the first line rewritten too, the checkpoint is what differs.
    let lines = with_note(forged.evidence(OLD), &forged, &sound.note_at(11, OLD));
    check(&lines, &[(CheckpointRoot, None)]);
}

#[test]
fn stripped_signatures_are_found() {
    let forge = sound();
    let unsigned = format!("{}\n", forge.head_at(11));
    let lines = with_note(forge.evidence(OLD), &forge, &unsigned);
    check(&lines, &[(CheckpointUnsigned, None)]);
}

#[test]
fn a_checkpoint_taken_off_is_found() {
    let forge = sound();
    let mut lines = forge.evidence(OLD);
    let checkpoint = format!(",\"checkpoint\":{}", quoted(&forge.note_at(11, OLD)));
    replace_last(&mut lines, &checkpoint, "");
    check(&lines, &[(CheckpointMissing, None)]);
}

#[test]
fn evidence_made_into_an_export_without_signatures_is_found_by_whoever_asks_for_the_key() {
    let options = VerifyOptions {
        key: Some(vkey(OLD)),
        ..VerifyOptions::default()
    };
    let report = verify_export(sound().text().as_bytes(), &options);
    assert_eq!(codes(&report), [(CheckpointMissing, None)]);
}

#[test]
fn evidence_made_into_an_export_without_signatures_is_refused_unless_that_is_asked_for() {
    let forge_last = |mut forge: Forge| {
        let last = forge.events.len() - 1;
        forge.set_payload(last, "{}");
        forge.recommit(last);
        forge.rehash(last);
        forge.lines()
    };
    let mut of_stream = rotated().of_stream("session/a");
    let stream = StreamName::parse("session/a").unwrap();
    of_stream
        .events
        .retain(|event| event.header.stream == stream);
    for lines in [forge_last(of_stream), forge_last(sound())] {
        check(&lines, &[(Unsigned, None)]);
        let allowed = VerifyOptions {
            allow_unsigned: true,
            ..VerifyOptions::default()
        };
        let report = verify_with(&lines, &allowed);
        assert!(report.is_clean() && !report.is_signed());
        let asked = VerifyOptions {
            key: Some(vkey(OLD)),
            ..allowed
        };
        assert_eq!(
            codes(&verify_with(&lines, &asked)),
            [(CheckpointMissing, None)]
        );
    }
    let signed = verify_with(&rotated().evidence(NEW), &VerifyOptions::default());
    assert!(signed.is_signed());
}

#[test]
fn a_checkpoint_held_elsewhere_binds_the_unsigned_events_up_to_it_and_no_further() {
    let forge = sound();
    let held = VerifyOptions {
        allow_unsigned: true,
        ..against(&[forge.note_at(7, OLD), forge.note_at(4, OLD)])
    };
    let report = verify_with(&forge.lines(), &held);
    assert!(report.is_clean(), "{:#?}", report.faults);
    assert_eq!(report.held, Some(Position::new(7)));
}

#[test]
fn a_checkpoint_signed_by_a_stranger_is_found() {
    let lines = sound().evidence(MALLORY);
    check(&lines, &[(CheckpointUnsigned, None)]);
}

#[test]
fn a_ledger_with_a_strangers_key_from_the_start_is_found_by_whoever_asks_for_the_key() {
    let lines = Forge::with_key(MALLORY, 11).evidence(MALLORY);
    check(&lines, &[]);
    let options = VerifyOptions {
        key: Some(vkey(OLD)),
        ..VerifyOptions::default()
    };
    assert_eq!(
        codes(&verify_with(&lines, &options)),
        [(KeyUnexpected, None)]
    );
}

#[test]
fn a_signature_over_something_else_is_found() {
    let forge = sound();
    let other = forge.note_at(10, OLD);
    let signature = &other[other.find('\u{2014}').unwrap()..];
    let note = format!("{}\n{signature}", forge.head_at(11));
    let lines = with_note(forge.evidence(OLD), &forge, &note);
    check(&lines, &[(CheckpointSignature, None)]);
}

#[test]
fn an_old_state_signed_with_a_newer_key_is_found() {
    let forge = rotated();
    let held = forge.note_at(5, NEW);
    check_against(&forge.evidence(NEW), &[held], &[(CheckpointKey, None)]);
}

#[test]
fn a_new_state_signed_with_an_older_key_is_found() {
    check(&rotated().evidence(OLD), &[(CheckpointKey, None)]);
}

#[test]
fn history_rewritten_by_a_thief_of_the_newer_key_is_found_in_the_export_alone() {
    let mut forged = rotated();
    forged.set_payload(2, "{}");
    forged.recommit(2);
    forged.rechain(2);
    check(&forged.evidence(NEW), &[(HistoryRewritten, Some(8))]);
    // Without the old key a seal over the forged events cannot be made.
    let mut rotation = forged.rotation(OLD, NEW);
    rotation.checkpoint = forged.note_at(7, NEW);
    forged.set_payload(7, &serde_json::to_string(&rotation).unwrap());
    forged.recommit(7);
    forged.rechain(7);
    let expected = [(RotationSeal, Some(8)), (CheckpointUnsigned, None)];
    check(&forged.evidence(NEW), &expected);
}

#[test]
fn a_key_handed_on_without_the_old_keys_signature_is_found() {
    let mut forge = Forge::with_key(OLD, 7);
    let mut rotation = forge.rotation(OLD, MALLORY);
    rotation.signature = forge.rotation(MALLORY, OLD).signature;
    forge.append_rotation(&rotation);
    let expected = [(RotationSignature, Some(8)), (CheckpointUnsigned, None)];
    check(&forge.evidence(MALLORY), &expected);
}

#[test]
fn a_key_handed_on_that_was_not_the_ledgers_is_found() {
    let mut forge = Forge::with_key(OLD, 7);
    forge.rotate(MALLORY, NEW);
    let expected = [(RotationKey, Some(8)), (CheckpointUnsigned, None)];
    check(&forge.evidence(NEW), &expected);
}

#[test]
fn a_rotation_that_cannot_be_read_is_found() {
    let mut forge = Forge::with_key(OLD, 7);
    forge.append_kind(LEDGER_STREAM, KEY_ROTATED_KIND, "{}");
    check(&forge.evidence(OLD), &[(RotationForm, Some(8))]);
    let mut forge = rotated();
    forge.events[7].payload = Payload::Redacted;
    let expected = [
        (RotationForm, Some(8)),
        (CheckpointUnsigned, None),
        (RedactionUnordered, Some(8)),
    ];
    check(&forge.evidence(NEW), &expected);
}

#[test]
fn a_rotation_left_out_of_a_streams_export_is_found() {
    let lines = rotated().of_stream("session/a").evidence(NEW);
    let is_rotation = |line: &String| line.contains(KEY_ROTATED_KIND);
    let at = lines.iter().position(is_rotation).unwrap();
    let lines = [&lines[..at], &lines[at + 2..]].concat();
    let found = codes(&verify_with(&lines, &VerifyOptions::default()));
    assert!(found.contains(&(CheckpointUnsigned, None)), "{found:?}");
}

#[test]
fn two_roots_for_one_size_are_found_wherever_they_stand() {
    let mut other = sound();
    other.set_payload(4, "{}");
    other.recommit(4);
    other.rechain(4);
    let (one, two) = (sound().note_at(6, OLD), other.note_at(6, OLD));
    check_against(
        &sound().evidence(OLD),
        &[one, two],
        &[(CheckpointFork, None)],
    );
    let held = other.note_at(11, OLD);
    check_against(
        &sound().evidence(OLD),
        std::slice::from_ref(&held),
        &[(CheckpointFork, None)],
    );
    let stream = sound().of_stream("session/a");
    check_against(&stream.evidence(OLD), &[held], &[(CheckpointFork, None)]);
}

#[test]
fn a_checkpoint_of_more_events_than_there_are_is_found() {
    let whole = sound();
    let mut cut = whole.clone();
    cut.events.truncate(8);
    let mut lines = cut.evidence(OLD);
    lines[0] = whole.evidence(OLD)[0].clone();
    let lines = with_note(lines, &cut, &whole.note_at(11, OLD));
    check(&lines, &[(CheckpointBeyond, None)]);
}

#[test]
fn a_checkpoint_of_another_size_than_the_first_line_says_is_found() {
    let forge = sound();
    let lines = with_note(forge.evidence(OLD), &forge, &forge.note_at(10, OLD));
    check(&lines, &[(CheckpointSize, None)]);
}

#[test]
fn a_checkpoint_of_another_ledger_is_found() {
    let forge = sound();
    let foreign = Checkpoint {
        origin: "other.example/ledger".to_owned(),
        ..forge.head_at(11)
    };
    let lines = with_note(forge.evidence(OLD), &forge, &note(&foreign, OLD));
    check(&lines, &[(CheckpointOrigin, None)]);
    check_against(
        &forge.evidence(OLD),
        &[note(&foreign, OLD)],
        &[(CheckpointOrigin, None)],
    );
}

#[test]
fn what_is_no_checkpoint_is_found() {
    let forge = sound();
    let extended = forge.note_at(11, OLD).replacen("\n\n", "\nmore\n\n", 1);
    let lines = with_note(forge.evidence(OLD), &forge, &extended);
    check(&lines, &[(CheckpointForm, None)]);
    check_against(
        &forge.evidence(OLD),
        &["".to_owned()],
        &[(CheckpointForm, None)],
    );
}

#[test]
fn events_behind_the_checkpoint_are_found() {
    let forge = sound();
    let mut shorter = forge.clone();
    shorter.events.truncate(9);
    for scope in [
        Scope::WholeLedger,
        forge.clone().of_stream("session/a").scope,
    ] {
        let (mut forge, mut shorter) = (forge.clone(), shorter.clone());
        (forge.scope, shorter.scope) = (scope.clone(), scope);
        let mut lines = forge.evidence(OLD);
        let last = forge
            .events
            .iter()
            .rev()
            .find(|e| lines[lines.len() - 2].contains(&format!("\"seq\":{}", e.seq())));
        let last = last.unwrap().seq().get();
        lines[0] = shorter.evidence(OLD)[0].clone();
        let lines = with_note(lines, &forge, &forge.note_at(9, OLD));
        let found = codes(&verify_with(&lines, &VerifyOptions::default()));
        assert!(found.contains(&(EventUnsigned, Some(last))), "{found:?}");
    }
}

#[test]
fn an_event_of_a_stream_that_was_edited_and_hashed_anew_is_not_in_the_tree() {
    let mut forge = sound().of_stream("session/a");
    let tree = forge.evidence(OLD);
    forge.set_payload(4, "{}");
    forge.recommit(4);
    forge.rehash(4);
    let edited = forge.evidence(OLD);
    let is_edited = |(at, line): (usize, &String)| {
        let is_event = line.starts_with("{\"type\":\"event\"");
        if is_event {
            edited[at].clone()
        } else {
            line.clone()
        }
    };
    let lines: Vec<String> = tree.iter().enumerate().map(is_edited).collect();
    let seq = forge.events[4].seq().get();
    let expected = (ProofInvalid, Some(seq));
    let found = codes(&verify_with(&lines, &VerifyOptions::default()));
    // Streams that take turns are not linked in the file: only the proof tells.
    match lines.iter().any(|line| line.contains("\"seq\":5,")) {
        true => assert_eq!(found, [expected]),
        false => assert_eq!(found, []),
    }
}

#[test]
fn a_proof_that_is_edited_missing_or_of_another_event_is_found() {
    let forge = sound().of_stream("session/b");
    let good = forge.evidence(OLD);
    check(&good, &[]);
    let at = 4;
    assert!(
        good[at].starts_with("{\"type\":\"proof\",\"seq\":3,"),
        "{}",
        good[at]
    );

    let mut lines = good.clone();
    let digit = lines[at].find("[\"").unwrap() + 2;
    let other = if &lines[at][digit..=digit] == "0" {
        "1"
    } else {
        "0"
    };
    lines[at].replace_range(digit..=digit, other);
    check(&lines, &[(ProofInvalid, Some(3))]);

    let mut lines = good.clone();
    lines.remove(at);
    let found = codes(&verify_with(&lines, &VerifyOptions::default()));
    assert_eq!(found[0], (ProofMissing, Some(3)));

    let mut lines = good.clone();
    lines.insert(at + 1, good[at].clone());
    check(&lines, &[(ProofForeign, None)]);

    let mut lines = good.clone();
    lines[at] = good[at].replacen("\"seq\":3", "\"seq\":4", 1);
    assert_eq!(
        codes(&verify_with(&lines, &VerifyOptions::default()))[0],
        (ProofForeign, Some(3))
    );

    let mut lines = good.clone();
    let hash = "00".repeat(32);
    lines[at] = good[at].replacen(
        "[\"",
        &format!("[\"{hash}\",\"{hash}\",\"{hash}\",\"{hash}\",\""),
        1,
    );
    assert_eq!(
        codes(&verify_with(&lines, &VerifyOptions::default()))[0],
        (ProofForm, Some(3))
    );
}

#[test]
fn a_redacted_event_with_another_commitment_is_found() {
    let mut forge = sound();
    forge.set_payload(3, "{}");
    forge.recommit(3);
    forge.events[3].payload = Payload::Redacted;
    forge.append_kind(LEDGER_STREAM, "ledger.redacted", "{\"seqs\":[4]}");
    check(&forge.evidence(OLD), &[(RedactedHash, Some(4))]);
}

#[test]
fn a_redacted_event_stays_proven() {
    let mut forge = rotated().of_stream("session/a");
    forge.events[3].payload = Payload::Redacted;
    let report = verify_with(&forge.evidence(NEW), &VerifyOptions::default());
    assert!(report.is_clean(), "{:#?}", report.faults);
    assert_eq!(report.redacted, 1);
}

#[test]
fn an_export_of_a_stream_is_held_against_other_checkpoints_by_a_proof_of_consistency() {
    let whole = sound();
    let mut early = whole.clone();
    early.events.truncate(6);
    let (old, new) = (whole.note_at(6, OLD), whole.note_at(11, OLD));
    let proof = ConsistencyProof {
        from: Position::new(6),
        path: whole.consistency(6, 11),
        checkpoint: new.parse().unwrap(),
    };
    let cases = [
        (whole.clone().of_stream("session/a").evidence(OLD), &old),
        (early.of_stream("session/a").evidence(OLD), &new),
    ];
    for (lines, held) in cases {
        check_against(
            &lines,
            std::slice::from_ref(held),
            &[(AgainstUnproven, None)],
        );
        let mut options = against(std::slice::from_ref(held));
        options.consistency = vec![proof.clone()];
        assert!(verify_with(&lines, &options).is_clean());
        options.consistency[0].path.reverse();
        assert_eq!(
            codes(&verify_with(&lines, &options)),
            [(HistoryRewritten, None)]
        );
    }
    let plain = whole.of_stream("session/a");
    let mut lines = plain.evidence(OLD);
    lines.retain(|line| !line.starts_with("{\"type\":\"proof\""));
    lines[0] = export::header_line(&plain.genesis, &plain.scope);
    let checkpoint = format!(",\"checkpoint\":{}", quoted(&plain.note_at(11, OLD)));
    replace_last(&mut lines, &checkpoint, "");
    let found = [(Unsigned, None), (AgainstUnproven, None)];
    check_against(&lines, &[old], &found);
}

#[test]
fn a_first_key_that_is_none_is_found() {
    let mut forge = Forge::new();
    forge.scope = Scope::WholeLedger;
    let found = codes(&verify_with(
        &forge.evidence(OLD),
        &VerifyOptions::default(),
    ));
    assert_eq!(found, [(KeyForm, None)]);
}

#[test]
fn every_single_bit_of_evidence_counts() {
    let mut forge = Forge::with_key(OLD, 2);
    forge.rotate(OLD, NEW);
    forge.grow(1);
    for forge in [forge.clone(), forge.of_stream("session/b")] {
        let mut text = forge.evidence(NEW).concat().into_bytes();
        let accepts = |text: &[u8]| verify_export(text, &VerifyOptions::default()).is_clean();
        assert!(accepts(&text));
        // Signatures are slow to check without optimisation; the step meets every bit of a byte.
        for bit in (0..text.len() * 8).step_by(401) {
            text[bit / 8] ^= 1 << (bit % 8);
            let context = String::from_utf8_lossy(&text[(bit / 8).saturating_sub(20)..][..21]);
            assert!(!accepts(&text), "bit {bit} is not covered: {context}");
            text[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
