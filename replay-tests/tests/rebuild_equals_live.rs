//! Everything that the daemon shows is a fold of the ledger: what it answered live, at every moment
//! of a varied life, is what a rebuild from nothing gives at the same place.

use std::sync::Arc;
use std::thread;

use fluxvm_projections::Operation;
use fluxvm_projections::Session;
use fluxvm_projections::World;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::digests;
use fluxvm_replay_tests::events_of;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::fold;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::verified;
use fluxvm_verify::RecordedEvent;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;

/// What the daemon showed, and how long the ledger was then.
struct Seen {
    position: u64,
    listed: Vec<Value>,
    records: Vec<Value>,
}

/// Asks for everything. Nothing else happens meanwhile, which the position before and after shows.
fn look(api: &Api, ids: &[String]) -> Seen {
    let position = || {
        api.get("/v1/ledger/info").expect(200)["head"]["position"]
            .as_u64()
            .expect("position")
    };
    eventually("the daemon is asked between two events", || {
        let before = position();
        let seen = Seen {
            position: before,
            listed: api.sessions(),
            records: ids.iter().map(|id| api.session(id)).collect(),
        };
        (position() == before).then_some(seen)
    })
}

/// One session's record as a fold has it, in the words of the API.
fn shown(session: &Session) -> Value {
    let json = |value: &dyn erased::Shown| value.shown();
    let operation = |it: &Operation| {
        let started_at = json(&it.started_at);
        json!({"op": it.kind.name(), "seq": it.seq, "started_at": started_at})
    };
    json!({
        "id": session.id.0.to_string(),
        "agent": session.agent,
        "tenant": session.tenant,
        "status": serde_json::to_value(session.status).expect("a status"),
        "status_reason": session.status_reason,
        "sandbox_id": session.sandbox_id.0.to_string(),
        "backend": session.backend,
        "created_at": json(&session.created_at),
        "expires_at": session.expires_at.map(|at| json(&at)),
        "revision": session.revision,
        "workspace.path": session.workspace.path,
        "workspace.note": session.workspace_note,
        "runtime.memory_mb": session.runtime.memory_mb,
        "policy.offline": session.policy.offline,
        "usage.execs": session.usage.execs,
        "usage.exec_ms": session.usage.exec_ms,
        "record": serde_json::to_value(session.record).expect("a recording"),
        "in_flight": session.in_flight.iter().map(operation).collect::<Vec<_>>(),
        "interrupted_op": session.interrupted_op.as_ref().map(|it| {
            let mut shown = operation(it);
            shown["resolution"] = json!(session.interrupted_resolution);
            shown
        }),
        "children": session.children.iter().map(|it| it.0.to_string()).collect::<Vec<_>>(),
    })
}

mod erased {
    //! Times in the form that answers have.

    use chrono::DateTime;
    use chrono::SecondsFormat;
    use chrono::Utc;
    use serde_json::Value;

    /// What an answer shows for a value.
    pub(crate) trait Shown {
        fn shown(&self) -> Value;
    }

    impl Shown for DateTime<Utc> {
        fn shown(&self) -> Value {
            self.to_rfc3339_opts(SecondsFormat::Micros, true).into()
        }
    }
}

/// The same fields of an answer. A time may be shown with fewer decimals than it has.
fn answered(record: &Value) -> Value {
    let keys = shown_keys();
    let mut picked = serde_json::Map::new();
    for key in keys {
        let value = record
            .pointer(&format!("/{}", key.replace('.', "/")))
            .cloned();
        let value = value.unwrap_or_else(|| panic!("{key} is missing from {record}"));
        picked.insert(key, value);
    }
    picked.into()
}

fn shown_keys() -> Vec<String> {
    let text = "id agent tenant status status_reason sandbox_id backend created_at expires_at \
        revision workspace.path workspace.note runtime.memory_mb policy.offline usage.execs \
        usage.exec_ms record in_flight interrupted_op children";
    text.split_whitespace().map(str::to_owned).collect()
}

/// Two views of a session, with their times compared as times.
fn assert_same(live: &Value, rebuilt: &Session, position: u64) {
    let as_times = |value: Value| -> Value {
        let text = value.to_string();
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        times_to_micros(&mut value);
        value
    };
    let (live, rebuilt) = (as_times(answered(live)), as_times(shown(rebuilt)));
    assert_eq!(live, rebuilt, "at {position}");
}

fn times_to_micros(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
                *value = time.timestamp_micros().into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(times_to_micros),
        Value::Object(fields) => fields.values_mut().for_each(times_to_micros),
        _ => {}
    }
}

fn find<'a>(world: &'a World, record: &Value) -> &'a Session {
    let id = record["id"].as_str().expect("an id");
    let mut sessions = world.sessions.iter();
    sessions
        .find(|session| session.id.0.to_string() == id)
        .expect("the fold knows it")
}

/// A life with everything in it that this version can do. Looks around after each step.
fn live(state: &State) -> Vec<Seen> {
    let daemon = Daemon::start(state);
    let (mut ids, mut seen) = (Vec::new(), Vec::new());
    good_times(&daemon, &mut ids, &mut seen);
    bad_times(&daemon, &mut ids, &mut seen);
    crashes(state, daemon, &ids, &mut seen);
    seen
}

fn good_times(daemon: &Daemon, ids: &mut Vec<String>, seen: &mut Vec<Seen>) {
    let api = daemon.api();
    ids.push(api.create());
    seen.push(look(api, ids));
    let _ = api.exec(&ids[0], "echo one; exit 3");
    seen.push(look(api, ids));
    let keyed = [("idempotency-key", "k")];
    let body = json!({"agent": "b", "ttl_seconds": 3600, "record": "digest",
        "policy": {"preset": "offline"}});
    let create = || api.send("POST", SESSIONS, &keyed, body.to_string().as_bytes());
    ids.push(create().expect(201)["id"].as_str().expect("id").to_owned());
    let _ = create().expect(201);
    seen.push(look(api, ids));
    let _ = api.exec_within(&ids[1], 0.2, "sleep 300");
    let _ = api.exec(&ids[1], "sleep 300 & :");
    seen.push(look(api, ids));
    let workspace = json!({"git": "https://h/r", "path": "/w"});
    ids.push(api.create_with(&json!({"agent": "d", "workspace": workspace})));
    let replay = json!({"target": ids[2], "stop_on_failure": false});
    let _ = api
        .post(&format!("{SESSIONS}/{}/replay", ids[0]), &replay)
        .expect(200);
    seen.push(look(api, ids));
}

fn bad_times(daemon: &Daemon, ids: &mut Vec<String>, seen: &mut Vec<Seen>) {
    let api = daemon.api();
    let image = json!({"agent": "c", "runtime": {"image": "none"}});
    let _ = api.post(SESSIONS, &image).error(400);
    seen.push(look(api, ids));
    ids.push(api.create_with(&json!({"agent": "e", "ttl_seconds": 1})));
    eventually("it expires", || {
        (api.session(&ids[3])["status"] == "expired").then_some(())
    });
    seen.push(look(api, ids));
    ids.push(api.create());
    let mut stream = api.stream(&ids[4], "", None);
    kill(Pid::from_raw(daemon.guest_pid(&ids[4])), Signal::SIGKILL).expect("its first process");
    stream.until("sandbox.gone");
    seen.push(look(api, ids));
    api.remove(&ids[0]);
    seen.push(look(api, ids));
}

/// The daemon is killed while a command runs, and at a step of making a session.
fn crashes(state: &State, daemon: Daemon, ids: &[String], seen: &mut Vec<Seen>) {
    let mut stream = daemon.api().stream(&ids[2], "", None);
    let running = thread::spawn({
        let (api, path) = (daemon.api().clone(), format!("{SESSIONS}/{}/exec", ids[2]));
        let body = br#"{"command":"mkfifo p; read x <p; echo $x"}"#;
        move || api.try_send("POST", &path, &[], body).is_err()
    });
    stream.until("replay");
    stream.until("exec.started");
    seen.push(look(daemon.api(), ids));
    daemon.kill9();
    assert!(running.join().expect("the caller"));
    let daemon = Daemon::start(state);
    daemon.api().remove(&ids[2]);
    seen.push(look(daemon.api(), ids));
    daemon.kill9();
    let daemon = Start::crashing_at(state, "create.sandbox").ready();
    let cut_off = daemon
        .api()
        .try_send("POST", SESSIONS, &[], br#"{"agent":"f"}"#);
    assert!(cut_off.is_err());
    let _ = daemon.ended();
    let daemon = Daemon::start(state);
    seen.push(look(daemon.api(), ids));
}

#[test]
fn what_was_shown_live_is_what_a_rebuild_shows_at_the_same_place() {
    let state = State::new();
    let seen = live(&state);
    let events = open_offline(&state.root());
    for moment in &seen {
        let upto = events.iter().map(Arc::as_ref);
        let world = fold(upto.take_while(|event| event.header.seq.get() <= moment.position));
        for record in moment.records.iter().chain(&moment.listed) {
            assert_same(record, find(&world, record), moment.position);
        }
        let listed: Vec<&str> = moment
            .listed
            .iter()
            .map(|record| record["id"].as_str().expect("id"))
            .collect();
        let kept = world
            .sessions
            .iter()
            .filter(|session| session.status != fluxvm_projections::SessionStatus::Deleted);
        let kept: Vec<String> = kept.map(|session| session.id.0.to_string()).collect();
        assert_eq!(listed, kept, "oldest first, without the deleted ones");
    }
    assert!(
        seen.len() >= 10 && events.len() >= 50,
        "a varied life: {} events",
        events.len()
    );
    same_state_at_every_event(&events);
}

/// A fold from nothing up to each event, and one that goes on from event to event, have equal
/// digests.
fn same_state_at_every_event(events: &[Arc<RecordedEvent>]) {
    let incremental = digests(events.iter().map(Arc::as_ref));
    for (index, line) in incremental.lines().enumerate() {
        let anew = fold(events[..=index].iter().map(Arc::as_ref));
        let digest = anew.digest().expect("a digest");
        assert_eq!(line, format!("{} {digest}", events[index].header.seq));
    }
}

#[test]
fn the_export_and_the_store_hold_the_same_events() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let _ = daemon
        .api()
        .exec(&id, "head -c 200000 /dev/zero | tr '\\0' x");
    daemon.api().remove(&id);
    let exported = events_of(&daemon.api().export_ledger());
    drop(daemon);
    let stored = open_offline(&state.root());
    // The orderly end is one more event.
    assert_eq!(stored.len(), exported.len() + 1);
    for (stored, exported) in stored.iter().zip(&exported) {
        assert_eq!(**stored, *exported);
    }
    assert_eq!(
        stored.last().expect("events").header.kind.as_str(),
        "host.stopped"
    );
}

#[test]
fn an_export_that_is_taken_while_events_are_written_is_whole() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let (api, id) = (api.clone(), id.clone());
            thread::spawn(move || (0..25).for_each(|_| drop(api.exec(&id, "true"))))
        })
        .collect();
    let mut heads = Vec::new();
    while heads.is_empty() || writers.iter().any(|writer| !writer.is_finished()) {
        let events = events_of(&verified_export(api, "/v1/ledger/export"));
        let of_session = verified_export(api, &format!("{SESSIONS}/{id}/export"));
        assert!(
            events_of(&of_session)
                .iter()
                .all(|it| it.header.stream.as_str().ends_with(&id))
        );
        heads.push(events.len());
    }
    writers
        .into_iter()
        .for_each(|writer| writer.join().expect("its commands ran"));
    assert!(
        heads.is_sorted(),
        "each holds all of the one before: {heads:?}"
    );
}

fn verified_export(api: &Api, path: &str) -> Vec<u8> {
    let answer = api.get(path);
    assert_eq!(answer.status, 200);
    verified(&answer.body);
    answer.body
}
