//! What the ledger is busy with while it is recorded.

use std::sync::Arc;

use fluxvm_eventstore::*;
use serde_json::json;

use super::Random;
use crate::support::append;
use crate::support::bytes;
use crate::support::one;
use crate::support::to;

const WRITERS: u64 = 3;

/// Appends of every kind from several writers at once. `answered` is told every fact that a writer
/// was answered with, before the writer goes on: `event <seq> <hash> <command>` and
/// `blob <digest>`. Ends early when the ledger refuses.
pub async fn run(ledger: &Ledger, appends: u64, seed: u64, answered: impl Fn(String) + Clone) {
    let writer = |number: u64| {
        let answered = answered.clone();
        async move {
            let mut random = Random::new(seed + number);
            for _ in 0..appends / WRITERS {
                match one_append(ledger, number, &mut random).await {
                    Some(facts) => answered(facts),
                    None => return,
                }
            }
        }
    };
    tokio::join!(writer(0), writer(1), writer(2));
}

async fn one_append(ledger: &Ledger, writer: u64, random: &mut Random) -> Option<String> {
    if random.below(12) == 0 {
        let blob = bytes(70_000 + random.below(30_000), random.next() as u8);
        let digest = ledger.put_blob(blob).await.ok()?;
        return Some(format!("blob {digest}\n"));
    }
    let events = (0..1 + random.below(4)).map(|_| {
        let length = match random.below(20) {
            0 => 60_000,
            1 => 80_000,
            2..5 => 9_000,
            _ => 100 + random.below(900),
        };
        let letter = char::from(b'a' + random.below(26) as u8).to_string();
        NewEvent::new(
            EventKind::parse("test.done").unwrap(),
            1,
            &json!(letter.repeat(length)),
        )
    });
    let events: Result<Vec<NewEvent>, _> = events.collect();
    let name = format!("session/{writer}");
    let mut streams = vec![to(&name, ExpectedVersion::Any, events.unwrap())];
    if random.below(3) == 0 {
        let payload = json!({ "n": random.below(1000) });
        let event = NewEvent::new(EventKind::parse("test.noted").unwrap(), 1, &payload).unwrap();
        streams.push(to("host", ExpectedVersion::Any, vec![event]));
    }
    let mut append = append(streams);
    if random.below(4) == 0 {
        append.streams[0].attachments = vec![bytes(random.below(20_000), random.next() as u8)];
    }
    let attached: Vec<BlobDigest> = append.streams[0]
        .attachments
        .iter()
        .map(|b| BlobDigest::of(b))
        .collect();
    let events = ledger.append(append).await.ok()?;
    let mut facts = facts_of(&events);
    facts.extend(attached.iter().map(|digest| format!("blob {digest}\n")));
    Some(facts)
}

fn facts_of(events: &Appended) -> String {
    let fact = |event: &Arc<RecordedEvent>| {
        let command = event.header.command_id;
        format!("event {} {} {command}\n", event.seq(), event.hash)
    };
    events.iter().map(fact).collect()
}

/// Erases one event, and adds the fact `erased <seq>`.
pub async fn erase(ledger: &Ledger, seq: u64, answered: impl Fn(String)) {
    let redaction = Redaction {
        seqs: vec![GlobalSeq::new(seq).unwrap()],
        looked_until: ledger.head().position,
        blobs: vec![],
        append: one("host", seq),
    };
    let events = ledger.redact(redaction).await.unwrap();
    answered(format!("{}erased {seq}\n", facts_of(&events)));
}
