//! An erasure that no event ordered is found, and an ordered one is named with its order.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_verify::FaultCode::*;
use fluxvm_verify::*;
use support::*;

const SESSION: &str = "session/a";

/// Ten events, those at these places erased.
fn erased(seqs: &[usize]) -> Forge {
    let mut forge = Forge::new();
    for seq in seqs {
        forge.events[seq - 1].payload = Payload::Redacted;
    }
    forge
}

fn order(forge: &mut Forge, stream: &str, kind: &str, payload: &str) {
    forge.append_kind(stream, kind, payload);
}

fn redacted(forge: &mut Forge, seqs: &str) {
    let payload = format!(r#"{{"blobs":0,"reason":"r","seqs":[{seqs}]}}"#);
    order(forge, LEDGER_STREAM, "ledger.redacted", &payload);
}

/// Each erased event with the event that ordered it.
fn orders(forge: &Forge) -> Vec<(u64, Option<u64>)> {
    let report = forge.verify();
    let redactions = report.redactions.iter();
    redactions
        .map(|it| (it.seq.get(), it.order.map(GlobalSeq::get)))
        .collect()
}

#[test]
fn an_erasure_is_named_with_the_event_that_ordered_it() {
    let mut forge = erased(&[2, 4, 5]);
    redacted(&mut forge, "2,5,7");
    redacted(&mut forge, "4,5");
    assert_eq!(codes(&forge.verify()), []);
    let expected = [(2, Some(11)), (4, Some(12)), (5, Some(11))];
    assert_eq!(orders(&forge), expected);
}

#[test]
fn an_erasure_that_nobody_ordered_is_found_where_it_is() {
    let mut forge = erased(&[2, 4, 5]);
    redacted(&mut forge, "2");
    let found = forge.verify();
    let expected = [(RedactionUnordered, Some(4)), (RedactionUnordered, Some(5))];
    assert_eq!(codes(&found), expected);
    assert_eq!(found.faults[0].line, 5);
    assert_eq!(found.faults[0].kind.as_ref().unwrap().as_str(), "test.done");
}

#[test]
fn an_order_reaches_no_event_behind_it_and_counts_only_in_the_ledgers_own_stream() {
    let mut forge = erased(&[2]);
    redacted(&mut forge, "2,12");
    forge.append(SESSION, "{}");
    forge.events[11].payload = Payload::Redacted;
    assert_eq!(codes(&forge.verify()), [(RedactionUnordered, Some(12))]);
    for (stream, kind) in [
        (SESSION, "ledger.redacted"),
        (LEDGER_STREAM, "ledger.redact.refused"),
        (SESSION, "session.redacted"),
    ] {
        let mut forge = erased(&[2]);
        order(&mut forge, stream, kind, r#"{"seqs":[2]}"#);
        assert_eq!(
            codes(&forge.verify()),
            [(RedactionUnordered, Some(2))],
            "{kind}"
        );
    }
    // Nor does an order that is itself erased.
    let mut forge = erased(&[2]);
    redacted(&mut forge, "2");
    forge.events[10].payload = Payload::Redacted;
    let expected = [
        (RedactionUnordered, Some(2)),
        (RedactionUnordered, Some(11)),
    ];
    assert_eq!(codes(&forge.verify()), expected);
}

#[test]
fn a_destroyed_key_orders_all_of_its_session_with_the_answers_and_nothing_else() {
    let mut forge = erased(&[1, 2, 4, 5]);
    forge.append_kind("idempotency/k", "idempotency.answered", "{}");
    forge.events[10].payload = Payload::Redacted;
    order(
        &mut forge,
        LEDGER_STREAM,
        "ledger.shredded",
        r#"{"reason":"r","session":"a"}"#,
    );
    assert_eq!(codes(&forge.verify()), []);
    assert!(orders(&forge).iter().all(|(_, order)| *order == Some(12)));

    let mut forge = erased(&[1, 3]);
    order(
        &mut forge,
        LEDGER_STREAM,
        "ledger.shredded",
        r#"{"reason":"r","session":"a"}"#,
    );
    assert_eq!(codes(&forge.verify()), [(RedactionUnordered, Some(3))]);
}

#[test]
fn an_answer_to_another_sessions_request_is_not_ordered_by_a_destroyed_key() {
    for (request, expected) in [(200, None), (7, Some(11)), (9, None)] {
        let mut forge = erased(&[1, 3]);
        // Event 3 is of another stream, and of another request.
        forge.events[2].header.correlation_id = CorrelationId::from_bytes([7; 16]);
        forge.append_kind("idempotency/k", "idempotency.answered", "{}");
        forge.events[10].header.correlation_id = CorrelationId::from_bytes([request; 16]);
        forge.events[10].payload = Payload::Redacted;
        forge.rechain(2);
        let shredded = r#"{"reason":"r","session":"a"}"#;
        order(&mut forge, LEDGER_STREAM, "ledger.shredded", shredded);
        let mut unordered = vec![3];
        unordered.extend(expected);
        let unordered: Vec<_> = unordered
            .into_iter()
            .map(|seq| (RedactionUnordered, Some(seq)))
            .collect();
        assert_eq!(codes(&forge.verify()), unordered, "request {request}");
    }
}

#[test]
fn a_kept_answer_is_ordered_in_its_own_stream() {
    for (stream, expected) in [("idempotency/k", None), ("idempotency/l", Some(11))] {
        let mut forge = Forge::new();
        forge.append_kind("idempotency/k", "idempotency.answered", "{}");
        forge.events[10].payload = Payload::Redacted;
        order(&mut forge, stream, "idempotency.erased", r#"{"seq":11}"#);
        let expected: Vec<_> = expected
            .map(|seq| (RedactionUnordered, Some(seq)))
            .into_iter()
            .collect();
        assert_eq!(codes(&forge.verify()), expected);
    }
}

#[test]
fn a_streams_export_names_the_orders_that_it_holds() {
    let of_stream = |mut forge: Forge| {
        let stream = StreamName::parse(SESSION).unwrap();
        forge.events.retain(|event| event.header.stream == stream);
        forge.scope = Scope::OneStream(stream);
        forge
    };
    let mut forge = erased(&[1, 4]);
    order(
        &mut forge,
        SESSION,
        "session.redacted",
        r#"{"exec_ms":1,"seqs":[4]}"#,
    );
    let forge = of_stream(forge);
    assert_eq!(orders(&forge), [(1, None), (4, Some(11))]);
    assert_eq!(
        codes(&forge.verify()),
        [],
        "the order can lie in another stream"
    );
    let mut forge = erased(&[1, 4]);
    order(&mut forge, SESSION, "session.erased", "{}");
    assert_eq!(orders(&of_stream(forge)), [(1, Some(11)), (4, Some(11))]);
}
