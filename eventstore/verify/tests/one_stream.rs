//! An export of one stream is checked as far as it can be without the rest of the ledger.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod support;

use fluxvm_verify::*;
use support::*;

fn stream(name: &str) -> Forge {
    let mut forge = Forge::new();
    let stream = StreamName::parse(name).unwrap();
    forge.events.retain(|event| event.header.stream == stream);
    forge.scope = Scope::OneStream(stream);
    forge
}

#[test]
fn a_stream_verifies_without_the_events_between() {
    for name in ["host", "session/a"] {
        let report = stream(name).verify();
        assert_eq!(codes(&report), []);
        assert_eq!(report.streams, 1);
    }
}

#[test]
fn a_missing_event_of_the_stream_is_found() {
    let mut forge = stream("session/a");
    forge.events.remove(2);
    assert_eq!(codes(&forge.verify()), [(FaultCode::VersionGap, Some(5))]);
}

#[test]
fn a_missing_beginning_of_the_stream_is_found() {
    let mut forge = stream("session/a");
    forge.events.remove(0);
    assert_eq!(codes(&forge.verify()), [(FaultCode::VersionGap, Some(2))]);
}

#[test]
fn an_event_of_another_stream_is_found() {
    let mut forge = stream("session/a");
    forge.events.insert(2, Forge::new().events[2].clone());
    assert_eq!(
        codes(&forge.verify()),
        [(FaultCode::StreamForeign, Some(3))]
    );
}

#[test]
fn a_broken_link_between_neighbours_is_found() {
    let mut forge = stream("session/a");
    forge.events[0].header.schema = 9;
    forge.rehash(0);
    assert_eq!(codes(&forge.verify()), [(FaultCode::LinkBroken, Some(2))]);
}

#[test]
fn an_edited_event_without_neighbours_is_found() {
    let mut forge = stream("host");
    forge.events[1].header.schema = 9;
    assert_eq!(codes(&forge.verify()), [(FaultCode::EventHash, Some(6))]);
}
