//! A session's events reach whoever listens: history first, then as they happen, each once, in
//! order, over any break of the connection.

use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::EventStream;
use fluxvm_replay_tests::Frame;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;

fn seqs(frames: &[Frame]) -> Vec<u64> {
    frames
        .iter()
        .filter(|frame| frame.event == "ledger")
        .map(Frame::seq)
        .collect()
}

fn recorded(api: &Api, id: &str) -> Vec<u64> {
    api.events(id)
        .iter()
        .map(|event| event["seq"].as_u64().expect("seq"))
        .collect()
}

/// The two events of a command: its start and its outcome. Others may write between them.
fn both_of(api: &Api, id: &str, outcome: u64) -> [u64; 2] {
    let events = api.events(id);
    let event = events
        .iter()
        .find(|event| event["seq"] == outcome)
        .expect("the outcome is recorded");
    [event["data"]["op"].as_u64().expect("its start"), outcome]
}

#[test]
fn history_and_what_follows_join_without_gap_or_repeat() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (api, id) = (api.clone(), id.clone());
            thread::spawn(move || {
                for _ in 0..15 {
                    let _ = api.exec(&id, "true");
                }
            })
        })
        .collect();
    // Clients come while events are being written, so that each joins at another place.
    let streams: Vec<_> = (0..6).map(|_| api.stream(&id, "", None)).collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().expect("its commands ran"));
    api.remove(&id);
    let expected = recorded(api, &id);
    for stream in streams {
        let frames = stream.rest();
        assert_eq!(seqs(&frames), expected);
        for frame in frames.iter().filter(|frame| frame.event == "ledger") {
            assert_eq!(frame.id, Some(frame.seq()), "the id is the ledger number");
        }
    }
}

#[test]
fn a_frame_is_the_event_as_the_listing_shows_it() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let _ = api.exec(&id, "printf 'a\\n'; printf '\\377' >&2");
    let stream = api.stream(&id, "", None);
    api.remove(&id);
    let frames: Vec<Value> = stream
        .rest()
        .into_iter()
        .filter(|frame| frame.event == "ledger")
        .map(|frame| frame.data)
        .collect();
    assert_eq!(frames, api.events(&id));
    for (index, event) in frames.iter().enumerate() {
        assert_eq!(event["version"], index + 1, "versions have no gap");
        assert_eq!(event["stream"], format!("session/{id}"));
        assert!(event["at"].as_str().expect("a time").ends_with('Z'));
        assert_eq!(event["actor"], "admin:local");
    }
}

#[test]
fn last_event_id_resumes_exactly_behind_it() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for _ in 0..3 {
        let _ = api.exec(&id, "true");
    }
    let all = recorded(api, &id);
    for (index, last) in all.iter().enumerate() {
        let mut stream = api.stream(&id, "", Some(*last));
        let rest: Vec<u64> = all[index + 1..]
            .iter()
            .map(|_| stream.next_frame().seq())
            .collect();
        assert_eq!(rest, all[index + 1..], "behind {last}");
    }
    // A client that saw the last one gets the next one and nothing before it.
    let last = *all.last().expect("events");
    let mut stream = api.stream(&id, "", Some(last));
    let answer = api.exec(&id, "true");
    let next = stream.until("exec");
    assert_eq!(seqs(&next), both_of(api, &id, answer.seq));
    api.remove(&id);
}

#[test]
fn last_event_id_wins_over_since_and_may_name_another_streams_event() {
    let daemon = shared();
    let api = daemon.api();
    let (id, other) = (api.create(), api.create());
    let first = api.exec(&id, "true");
    let between = api.exec(&other, "true");
    let second = api.exec(&id, "true");
    let mut stream = api.stream(&id, "?since=1970-01-01T00:00:00Z", Some(between.seq));
    let frames = stream.until("exec");
    assert_eq!(seqs(&frames), both_of(api, &id, second.seq));
    assert!(first.seq < between.seq);
    api.remove(&id);
    api.remove(&other);
}

#[test]
fn since_is_exclusive_in_the_stream_and_in_the_listing() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let first = api.exec(&id, "true");
    let second = api.exec(&id, "true");
    let events = api.events(&id);
    let at = |seq: u64| {
        let event = events
            .iter()
            .find(|event| event["seq"] == seq)
            .expect("its event");
        event["at"].as_str().expect("a time").to_owned()
    };
    let since = at(first.seq);
    let listed = api
        .get(&format!("{SESSIONS}/{id}/events?since={since}"))
        .expect(200);
    let listed: Vec<u64> = listed["ledger"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| event["seq"].as_u64().expect("seq"))
        .collect();
    let mut stream = api.stream(&id, &format!("?since={since}"), None);
    let streamed = seqs(&stream.until("exec"));
    // The shown time is cut to microseconds: the event itself may be a fraction later, nothing
    // more.
    let newer: Vec<u64> = listed
        .iter()
        .copied()
        .filter(|seq| *seq > first.seq)
        .collect();
    assert_eq!(newer, both_of(api, &id, second.seq));
    assert!(listed.first() >= Some(&first.seq), "{listed:?}");
    assert_eq!(streamed.last(), listed[..streamed.len()].last());
    api.remove(&id);
}

#[test]
fn a_deleted_sessions_stream_says_its_last_and_then_why_it_ends() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let stream = api.stream(&id, "", None);
    api.remove(&id);
    let frames = stream.rest();
    let names: Vec<&str> = frames.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(names.last(), Some(&"error"), "{frames:#?}");
    assert!(
        names[..names.len() - 1]
            .iter()
            .all(|name| *name == "ledger"),
        "{names:?}"
    );
    let kinds: Vec<&str> = frames.iter().map(Frame::kind).collect();
    assert!(kinds.contains(&"session.delete"), "{kinds:?}");
    assert_eq!(seqs(&frames), recorded(api, &id));

    // Whoever comes later is told the same.
    let late = api.stream(&id, "", None).rest();
    assert_eq!(seqs(&late), recorded(api, &id));
    assert_eq!(late.last().map(|frame| frame.event.as_str()), Some("error"));
    let behind = api
        .stream(&id, "", recorded(api, &id).last().copied())
        .rest();
    assert_eq!(behind.len(), 1, "nothing but why: {behind:#?}");
    assert_eq!(behind[0].event, "error");
}

#[test]
fn the_rules_of_the_question_are_checked() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for query in [
        "?since=yesterday",
        "?after=-1",
        "?after=x",
        "?sinc=2026-12-01T10:00:00Z",
    ] {
        let _ = api
            .get(&format!("{SESSIONS}/{id}/events{query}"))
            .error(400);
    }
    for path in ["events", "events/stream"] {
        let beyond = api.get(&format!(
            "{SESSIONS}/{id}/{path}?after=18446744073709551615"
        ));
        assert_eq!(beyond.error(400), "invalid_field", "{path}");
    }
    let stream = format!("{SESSIONS}/{id}/events/stream");
    let _ = api
        .send("GET", &stream, &[("last-event-id", "abc")], &[])
        .error(400);
    let nobody = "00000000-0000-4000-8000-000000000000";
    for path in ["events", "events/stream", "export"] {
        let answer = api.get(&format!("{SESSIONS}/{nobody}/{path}"));
        assert_eq!(answer.error(404), "session_not_found", "{path}");
    }
    api.remove(&id);
}

/// Reads a stream that must end by itself, and answers with the code that it ends with.
fn ends_with(stream: EventStream, last_kind: &str) -> String {
    let frames = stream.rest();
    let (end, events) = frames.split_last().expect("it says why");
    assert_eq!(end.event, "error", "{frames:#?}");
    assert!(
        events.iter().any(|frame| frame.kind() == last_kind),
        "{frames:#?}"
    );
    end.data["code"].as_str().expect("a code").to_owned()
}

#[test]
fn a_stream_ends_when_its_session_has_expired_or_is_gone() {
    let daemon = shared();
    let api = daemon.api();
    let expired = api.create_with(&json!({"agent": "a", "ttl_seconds": 1}));
    let stream = api.stream(&expired, "", None);
    eventually("it expires", || {
        (api.session(&expired)["status"] == "expired").then_some(())
    });
    let of_expired = ends_with(stream, "session.expire");

    let gone = api.create();
    let stream = api.stream(&gone, "", None);
    kill(Pid::from_raw(daemon.guest_pid(&gone)), Signal::SIGKILL).expect("its first process");
    let of_gone = ends_with(stream, "sandbox.gone");
    assert_ne!(of_expired, of_gone, "the code says which");
    api.remove(&expired);
    api.remove(&gone);
}

#[test]
fn sixty_four_streams_are_served_and_one_more_is_told_so() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let mut streams: Vec<EventStream> = (0..64).map(|_| api.stream(&id, "", None)).collect();
    let path = format!("{SESSIONS}/{id}/events/stream");
    let _ = api.get(&path).error(429);
    let answer = api.exec(&id, "true");
    for stream in &mut streams {
        assert_eq!(
            stream.until("exec").last().map(Frame::seq),
            Some(answer.seq)
        );
    }
    daemon.remove_everything();
    for stream in streams {
        assert_eq!(
            stream
                .rest()
                .last()
                .map(|frame| frame.event.clone())
                .as_deref(),
            Some("error")
        );
    }
    let late = api.stream(&id, "", None).rest();
    assert!(!late.is_empty(), "there is room again");
}
