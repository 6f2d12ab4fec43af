//! Whoever tampers with an export is found out, and each way of tampering has its own code.

mod support;

use fluxvm_verify::*;
use support::*;

/// Applies an attack to a sound ledger and compares what the verifier says.
fn check(attack: impl FnOnce(&mut Forge), expected: &[(FaultCode, Option<u64>)]) {
    let mut forge = Forge::new();
    assert_eq!(
        codes(&forge.verify()),
        [],
        "the ledger was not sound to begin with"
    );
    attack(&mut forge);
    assert_eq!(codes(&forge.verify()), expected);
}

#[test]
fn a_sound_export_has_no_faults_and_is_counted() {
    let report = Forge::new().verify();
    assert!(report.is_clean());
    assert_eq!((report.events, report.streams, report.redacted), (10, 2, 0));
    assert_eq!(report.head.unwrap().0.get(), 10);
    assert_eq!(report.scope, Some(Scope::WholeLedger));
}

#[test]
fn an_edited_payload_is_found() {
    let edit = |forge: &mut Forge| forge.set_payload(3, "{\"n\":5,\"text\":\"é\\\"\\n\"}");
    check(edit, &[(FaultCode::PayloadCommitment, Some(4))]);
}

#[test]
fn a_payload_of_another_length_is_found() {
    check(
        |forge| forge.set_payload(3, "{}"),
        &[
            (FaultCode::PayloadLength, Some(4)),
            (FaultCode::PayloadCommitment, Some(4)),
        ],
    );
}

#[test]
fn an_edited_payload_with_a_fitting_header_is_found() {
    check(
        |forge| {
            forge.set_payload(3, "{}");
            forge.recommit(3);
        },
        &[(FaultCode::EventHash, Some(4))],
    );
}

#[test]
fn an_edited_header_is_found() {
    check(
        |forge| forge.events[6].header.actor = Actor::parse("admin:other").unwrap(),
        &[(FaultCode::EventHash, Some(7))],
    );
}

#[test]
fn an_edited_event_that_was_hashed_anew_is_found() {
    check(
        |forge| {
            forge.events[6].header.actor = Actor::parse("admin:other").unwrap();
            forge.rehash(6);
        },
        &[(FaultCode::LinkBroken, Some(8))],
    );
}

#[test]
fn two_swapped_events_are_found() {
    check(
        |forge| forge.events.swap(4, 5),
        &[
            (FaultCode::SeqGap, Some(6)),
            (FaultCode::SeqOrder, Some(5)),
            (FaultCode::VersionGap, Some(7)),
        ],
    );
}

#[test]
fn a_dropped_event_is_found() {
    check(
        |forge| {
            forge.events.remove(4);
        },
        &[
            (FaultCode::SeqGap, Some(6)),
            (FaultCode::VersionGap, Some(7)),
        ],
    );
}

#[test]
fn a_repeated_event_is_found_wherever_it_stands() {
    let repeat = |forge: &mut Forge| forge.events.insert(5, forge.events[4].clone());
    check(repeat, &[(FaultCode::EventRepeated, Some(5))]);
    let repeat = |forge: &mut Forge| forge.events.insert(8, forge.events[1].clone());
    check(repeat, &[(FaultCode::EventRepeated, Some(2))]);
}

#[test]
fn renumbered_events_are_found() {
    check(
        |forge| {
            forge.events.remove(4);
            for at in 4..forge.events.len() {
                forge.events[at].header.seq = GlobalSeq::new(at as u64 + 1).unwrap();
                forge.rehash(at);
            }
        },
        &[
            (FaultCode::LinkBroken, Some(5)),
            (FaultCode::LinkBroken, Some(6)),
            (FaultCode::VersionGap, Some(6)),
            (FaultCode::LinkBroken, Some(7)),
            (FaultCode::LinkBroken, Some(8)),
            (FaultCode::LinkBroken, Some(9)),
        ],
    );
}

#[test]
fn events_spliced_in_from_another_ledger_are_found() {
    check(
        |forge| forge.events[5..].clone_from_slice(&Forge::of_ledger(2, 10).events[5..]),
        &[(FaultCode::LinkBroken, Some(6))],
    );
}

#[test]
fn the_header_of_another_ledger_before_these_events_is_found() {
    check(
        |forge| forge.genesis = genesis(2),
        &[(FaultCode::GenesisLink, Some(1))],
    );
}

#[test]
fn a_header_whose_fields_were_edited_is_found() {
    let text = Forge::new().text();
    let edited = text.replacen("flux.example/ledger\"", "flux.example/edited\"", 1);
    let expected = [
        (FaultCode::GenesisHash, None),
        (FaultCode::GenesisLink, Some(1)),
    ];
    assert_eq!(codes(&verify(&edited)), expected);
}

#[test]
fn two_exports_in_one_file_are_found() {
    let mut lines = Forge::new().lines();
    lines.insert(3, export::header_line(&genesis(2), &Scope::WholeLedger));
    assert_eq!(
        codes(&verify(&lines.concat())),
        [(FaultCode::HeaderForeign, None)]
    );
    lines[3] = lines[0].clone();
    assert_eq!(
        codes(&verify(&lines.concat())),
        [(FaultCode::HeaderRepeated, None)]
    );
    let twice = codes(&verify(&Forge::new().text().repeat(2)));
    assert_eq!(twice[0], (FaultCode::AfterEnd, None));
}

#[test]
fn a_file_without_its_header_is_found() {
    let lines = Forge::new().lines();
    let report = verify(&lines[1..].concat());
    assert_eq!(codes(&report), [(FaultCode::HeaderMissing, None)]);
    let empty = codes(&verify(""));
    assert_eq!(
        empty,
        [
            (FaultCode::HeaderMissing, None),
            (FaultCode::Truncated, None)
        ]
    );
}

#[test]
fn an_export_of_an_unknown_format_is_found() {
    let text = Forge::new()
        .text()
        .replacen("\"format\":1", "\"format\":3", 1);
    assert_eq!(codes(&verify(&text)), [(FaultCode::FormatUnknown, None)]);
}

#[test]
fn a_file_that_was_cut_off_is_found() {
    let lines = Forge::new().lines();
    let without_end = lines[..lines.len() - 1].concat();
    assert_eq!(codes(&verify(&without_end)), [(FaultCode::Truncated, None)]);
    let text = lines.concat();
    for length in 0..text.len() {
        if text.is_char_boundary(length) {
            let found = codes(&verify(&text[..length]));
            assert!(
                found.contains(&(FaultCode::Truncated, None)),
                "{length} bytes: {found:?}"
            );
        }
    }
}

#[test]
fn a_last_line_that_does_not_fit_is_found() {
    let whole = Forge::new();
    let mut cut = whole.clone();
    cut.events.pop();
    let mut lines = cut.lines();
    *lines.last_mut().unwrap() = whole.lines().pop().unwrap();
    let expected = [(FaultCode::EndCount, None), (FaultCode::EndHead, None)];
    assert_eq!(codes(&verify(&lines.concat())), expected);
}

#[test]
fn a_payload_that_is_not_canonical_is_found_even_where_it_is_what_was_hashed() {
    check(
        |forge| {
            forge.set_payload(3, "{\"b\":1,\"a\":2}");
            forge.recommit(3);
            forge.rechain(3);
        },
        &[(FaultCode::PayloadForm, Some(4))],
    );
}

#[test]
fn time_that_goes_back_is_found() {
    check(
        |forge| {
            forge.events[6].header.recorded_at = RecordedAt::from_unix_ns(1);
            forge.rechain(6);
        },
        &[(FaultCode::TimeBackwards, Some(7))],
    );
}

#[test]
fn a_version_that_is_left_out_or_repeated_is_found_even_where_it_was_linked_anew() {
    let version = |forge: &mut Forge, at: usize, version| {
        forge.events[at].header.version = StreamVersion::new(version).unwrap();
        forge.rechain(at);
    };
    check(
        |forge| version(forge, 9, 8),
        &[(FaultCode::VersionGap, Some(10))],
    );
    check(
        |forge| version(forge, 9, 6),
        &[(FaultCode::VersionRepeated, Some(10))],
    );
}

#[test]
fn a_redacted_event_is_accepted_and_counted() {
    let mut forge = Forge::new();
    forge.append_kind(LEDGER_STREAM, "ledger.redacted", "{\"seqs\":[3,10]}");
    forge.events[2].payload = Payload::Redacted;
    forge.events[9].payload = Payload::Redacted;
    let report = forge.verify();
    assert!(report.is_clean());
    assert_eq!(report.redacted, 2);
}

#[test]
fn a_redaction_that_hides_another_payload_is_found() {
    check(
        |forge| {
            forge.set_payload(2, "{}");
            forge.recommit(2);
            forge.events[2].payload = Payload::Redacted;
        },
        &[
            (FaultCode::RedactedHash, Some(3)),
            (FaultCode::RedactionUnordered, Some(3)),
        ],
    );
}

#[test]
fn a_cut_tail_is_found_by_an_event_that_was_noted_down_and_only_by_that() {
    let whole = Forge::new();
    let mut cut = whole.clone();
    cut.events.truncate(7);
    assert!(
        cut.verify().is_clean(),
        "nothing in the export itself can tell"
    );
    let known = whole.verify().head.unwrap();
    let options = VerifyOptions {
        known: vec![known],
        ..unsigned()
    };
    let report = verify_export(cut.text().as_bytes(), &options);
    assert_eq!(codes(&report), [(FaultCode::KnownMissing, None)]);
}

#[test]
fn a_ledger_that_was_linked_anew_is_found_by_an_event_that_was_noted_down() {
    let known = Forge::new().verify().head.unwrap();
    let mut forged = Forge::new();
    forged.set_payload(4, "{}");
    forged.recommit(4);
    forged.rechain(4);
    assert!(
        forged.verify().is_clean(),
        "nothing in the export itself can tell"
    );
    let options = VerifyOptions {
        known: vec![known],
        ..unsigned()
    };
    let report = verify_export(forged.text().as_bytes(), &options);
    assert_eq!(codes(&report), [(FaultCode::KnownDiffers, Some(10))]);
}

#[test]
fn the_export_of_another_ledger_than_the_one_asked_about_is_found() {
    let ledger_id = Some(LedgerId::from_bytes([9; 16]));
    let options = VerifyOptions {
        ledger_id,
        ..unsigned()
    };
    let report = verify_export(Forge::new().text().as_bytes(), &options);
    assert_eq!(codes(&report), [(FaultCode::LedgerUnexpected, None)]);
}

#[test]
fn all_faults_are_listed_and_not_only_the_first() {
    check(
        |forge| {
            forge.set_payload(0, "{\"n\":9,\"text\":\"é\\\"\\n\"}");
            forge.events[4].header.schema = 7;
            forge.events.remove(7);
        },
        &[
            (FaultCode::PayloadCommitment, Some(1)),
            (FaultCode::EventHash, Some(5)),
            (FaultCode::SeqGap, Some(9)),
            (FaultCode::VersionGap, Some(10)),
        ],
    );
}

#[test]
fn lines_that_are_none_are_found_and_the_rest_is_still_checked() {
    let mut lines = Forge::new().lines();
    lines[2].insert(22, ' ');
    lines.insert(3, "\n".to_owned());
    lines.insert(4, "{\"type\":\"event\",\"seq\":1}\n".to_owned());
    let found = codes(&verify(&lines.concat()));
    assert_eq!(found[0], (FaultCode::LineForm, None));
    assert_eq!(found[1], (FaultCode::UnknownLine, None));
    assert_eq!(found[2], (FaultCode::MalformedLine, None));
    assert_eq!(found[3], (FaultCode::SeqGap, Some(3)));
}

#[test]
fn a_line_above_the_limit_is_found_and_not_held_in_memory() {
    let options = VerifyOptions {
        line_bytes_max: 2000,
        ..unsigned()
    };
    let mut forge = Forge::new();
    forge.append("host", &format!("\"{}\"", "x".repeat(3000)));
    let report = verify_export(forge.text().as_bytes(), &options);
    assert_eq!(codes(&report)[0], (FaultCode::LineTooLong, None));
}

#[test]
fn every_code_has_its_own_text() {
    let texts: std::collections::BTreeSet<_> =
        FaultCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(texts.len(), FaultCode::ALL.len());
}
