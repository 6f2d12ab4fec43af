//! All that a session said is erased: at once in every copy, where it was sealed, and before a
//! checkpoint, where it was not. Chain and proofs stay, and so does what the state is made of.

use std::path::Path;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::events_of;
use fluxvm_replay_tests::fold;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::verified;
use fluxvm_verify::RecordedEvent;
use serde_json::Value;
use serde_json::json;

/// What nobody may find afterwards.
const SECRET: &str = "correct-horse-battery-staple-0451";
/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

fn files_with_secret(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let metadata = path.symlink_metadata().expect("metadata");
        if metadata.is_dir() {
            found.extend(files_with_secret(&path));
        } else if metadata.is_file() {
            let bytes = std::fs::read(&path).expect("a file");
            let secret = SECRET.as_bytes();
            if bytes.windows(secret.len()).any(|window| window == secret) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// A daemon whose sessions are sealed and whose ledger is archived.
fn sealing(state: &State) -> Start {
    let (config, archive) = (state.beside("config.toml"), state.beside("archive"));
    let text = format!("[ledger]\nseal = true\narchive = {:?}\n", archive.display());
    std::fs::write(&config, text).expect("written");
    Start::new(state).words(&["--config", config.to_str().expect("text")])
}

/// A session that said the secret in every place that there is, and ended.
fn ended_session(api: &Api) -> String {
    let session = api.create_with(&json!({"agent": SECRET}));
    let line = format!("echo {SECRET}; for i in $(seq 9000); do echo {SECRET} >&2; done");
    let body = json!({"command": line}).to_string();
    let path = format!("{SESSIONS}/{session}/exec");
    let key = [("idempotency-key", "k1")];
    let _ = api.send("POST", &path, &key, body.as_bytes()).expect(200);
    api.remove(&session);
    session
}

fn shred(api: &Api, session: &str) -> fluxvm_replay_tests::Answer {
    let body = json!({"session": session, "reason": "GDPR 17, ticket 881"});
    api.post("/v1/ledger/shred", &body)
}

/// What a fold that saw everything has, and one of what is left: the same.
fn check_folds(before: &[u8], state: &State) {
    let after: Vec<RecordedEvent> = open_offline(&state.root())
        .iter()
        .map(|event| (**event).clone())
        .collect();
    let mut lived = events_of(before);
    lived.extend(after[lived.len()..].iter().cloned());
    assert_eq!(fold(&lived), fold(&after));
}

fn ledger_events(api: &Api) -> Vec<Value> {
    let lines = api.get("/v1/ledger/events?stream=ledger").body;
    let lines = String::from_utf8(lines).expect("text");
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn a_sealed_session_is_in_no_file_and_shredded_it_is_erased_in_every_copy() {
    let state = State::new();
    let daemon = sealing(&state).ready();
    let api = daemon.api();
    let session = ended_session(api);
    let other = api.create();
    assert_eq!(api.exec(&other, "echo on").text(), "on\n");
    let events = api.events(&session);
    assert!(format!("{events:?}").contains(SECRET), "it reads as ever");
    let places = [
        state.root().join("ledger"),
        state.root().join("blobs"),
        state.beside("archive"),
    ];
    for place in &places {
        assert_eq!(files_with_secret(place), Vec::<String>::new());
    }
    let before = api.export_ledger();
    assert!(verified(&before).redacted == 0);
    let evidence = api
        .get(&format!("{SESSIONS}/{session}/export?content=true"))
        .body;
    assert!(
        verified(&evidence).redacted == 0,
        "whoever has it needs no key"
    );

    let done = shred(api, &session).expect(200);
    assert_eq!(shred(api, &session).expect(200), done, "asked again");
    let record = api.session(&session);
    assert_eq!(
        (&record["agent"], &record["status"]),
        (&json!("(erased)"), &json!("deleted"))
    );
    assert_eq!(record["usage"]["execs"], 1);
    let events = api.events(&session);
    assert!(!format!("{events:?}").contains(SECRET));
    let kept = |event: &&Value| event["redacted"] != true;
    let kept: Vec<&Value> = events
        .iter()
        .filter(kept)
        .map(|event| &event["kind"])
        .collect();
    assert_eq!(kept, ["session.erased"]);
    let body = json!({"command": "true"}).to_string();
    let path = format!("{SESSIONS}/{session}/exec");
    let key = [("idempotency-key", "k1")];
    let retried = api.send("POST", &path, &key, body.as_bytes());
    assert!(retried.status >= 400, "never run again");

    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = sealing(&state).ready();
    let api = daemon.api();
    assert_eq!(api.session(&session), record);
    assert_eq!(
        api.exec(&other, "echo on").text(),
        "on\n",
        "nobody else is touched"
    );
    let export = api.export_ledger();
    let report = verified(&export);
    assert!(report.redacted > 0);
    assert!(!String::from_utf8_lossy(&export).contains(SECRET));
    drop(daemon);
    check_folds(&before, &state);
}

#[test]
fn what_has_not_ended_is_held_or_is_not_sealed_is_not_shredded() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let open = daemon.api().create();
    assert_eq!(shred(daemon.api(), &open).error(409), "session_not_ended");
    daemon.api().remove(&open);
    assert_eq!(shred(daemon.api(), &open).error(422), "session_not_sealed");
    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = sealing(&state).ready();
    let api = daemon.api();
    assert_eq!(
        shred(api, &open).error(422),
        "session_not_sealed",
        "it began open"
    );
    let session = ended_session(api);
    let hold = json!({"session": session, "reason": "case 7"});
    let hold = api.post("/v1/ledger/holds", &hold).expect(201)["seq"].clone();
    assert_eq!(shred(api, &session).error(409), "under_hold");
    let refused = ledger_events(api);
    let refused = refused.last().expect("the refusal");
    assert_eq!(refused["kind"], "ledger.shred.refused", "{refused}");
    assert!(format!("{:?}", api.events(&session)).contains(SECRET));
    assert_eq!(api.delete(&format!("/v1/ledger/holds/{hold}")).status, 204);
    let _ = shred(api, &session).expect(200);
    let seq = api.events(&session)[0]["seq"].clone();
    let redact = json!({"seq": seq, "reason": "again"});
    assert_eq!(
        api.post("/v1/ledger/redact", &redact).error(422),
        "not_redactable"
    );
    let _ = api.delete(&format!("{SESSIONS}/{session}"));
}

#[test]
fn a_crash_at_each_step_of_a_shredding_leaves_all_of_it_or_nothing() {
    for (point, is_shredded) in [("shred.answers", false), ("shred.done", true)] {
        let state = State::new();
        let daemon = sealing(&state).ready();
        let session = ended_session(daemon.api());
        let before = daemon.api().export_ledger();
        assert_eq!(daemon.terminate().code, Some(0));
        let config = state.beside("config.toml");
        let words = ["--config", config.to_str().expect("text")];
        let daemon = Start::crashing_at(&state, point).words(&words).ready();
        let body = json!({"session": session, "reason": "r"}).to_string();
        let asked = daemon
            .api()
            .try_send("POST", "/v1/ledger/shred", &[], body.as_bytes());
        assert!(asked.is_err(), "{point}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = sealing(&state).ready();
        let api = daemon.api();
        let erased = api.session(&session)["agent"] == "(erased)";
        assert_eq!(erased, is_shredded, "{point}");
        let _ = shred(api, &session).expect(200);
        let _ = verified(&api.export_ledger());
        drop(daemon);
        check_folds(&before, &state);
    }
}

#[test]
fn what_ended_sessions_said_before_a_checkpoint_is_erased_and_every_proof_holds() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let sessions = [ended_session(api), ended_session(api)];
    let living = api.create();
    let _ = api.exec(&living, "echo here");
    let seq = api.events(&sessions[0])[1]["seq"].clone();
    let proof = api.get(&format!("/v1/ledger/proof/{seq}")).body;
    let checkpoint = api.get("/v1/ledger/checkpoint").body;
    let note = state.beside("checkpoint");
    std::fs::write(&note, &checkpoint).expect("written");
    let later = ended_session(api);
    let before = api.export_ledger();

    let hold = json!({"session": sessions[1], "reason": "case 7"});
    let hold = api.post("/v1/ledger/holds", &hold).expect(201)["seq"].clone();
    let text = note.to_str().expect("text");
    let words = [
        "ledger",
        "truncate",
        "--before",
        text,
        "--reason",
        "kept for 90 days",
    ];
    let refused = daemon.ctl().run(&words);
    assert_ne!(refused.code, 0, "{}", refused.text());
    assert!(refused.errors().contains("under_hold") || refused.errors().contains("hold"));
    let events = ledger_events(api);
    assert_eq!(
        events.last().expect("refusal")["kind"],
        "ledger.retention.refused"
    );
    assert_eq!(api.delete(&format!("/v1/ledger/holds/{hold}")).status, 204);

    let done = daemon
        .ctl()
        .run(&[&["--json"], &words[..]].concat())
        .json(0);
    assert_eq!(done["sessions"], 2, "{done}");
    assert_eq!(done["left"], 0);
    for session in &sessions {
        assert_eq!(api.session(session)["agent"], "(erased)");
        assert!(!format!("{:?}", api.events(session)).contains(SECRET));
    }
    assert_eq!(
        api.session(&later)["agent"],
        SECRET,
        "it ended behind the checkpoint"
    );
    assert_eq!(api.exec(&living, "echo on").text(), "on\n");
    let answer = api.post(
        "/v1/ledger/retention",
        &json!({"before": 1_000_000, "reason": "r"}),
    );
    assert_eq!(answer.error(404), "checkpoint_not_found");

    let export = api.export_ledger();
    let file = state.beside("ledger.jsonl");
    std::fs::write(&file, &export).expect("written");
    let words = [
        "ledger",
        "verify",
        file.to_str().expect("text"),
        "--against",
        text,
    ];
    let ran = daemon.ctl().run(&words);
    assert_eq!(ran.code, 0, "{}{}", ran.text(), ran.errors());
    let proof: fluxvm_verify::InclusionProof = String::from_utf8(proof)
        .expect("text")
        .parse()
        .expect("a proof");
    let events = events_of(&export);
    let event = events.iter().find(|event| event.header.seq == proof.seq);
    proof
        .verify(&event.expect("it is there").hash)
        .expect("it holds");
    drop(daemon);
    check_folds(&before, &state);
}

#[test]
fn a_retention_that_a_crash_cut_off_is_finished_by_the_next_start() {
    for point in ["retention.intent", "retention.batch", "retention.session"] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let sessions = [ended_session(daemon.api()), ended_session(daemon.api())];
        let size = daemon.api().get("/v1/ledger/checkpoint").body;
        let size = String::from_utf8(size).expect("text");
        let size: u64 = size
            .lines()
            .nth(1)
            .expect("a size")
            .parse()
            .expect("a number");
        let before = daemon.api().export_ledger();
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let body = json!({"before": size, "reason": "r"}).to_string();
        let asked = daemon
            .api()
            .try_send("POST", "/v1/ledger/retention", &[], body.as_bytes());
        assert!(asked.is_err(), "{point}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        for session in &sessions {
            assert_eq!(
                daemon.api().session(session)["agent"],
                "(erased)",
                "{point}"
            );
            assert!(!format!("{:?}", daemon.api().events(session)).contains(SECRET));
        }
        let export = daemon.api().export_ledger();
        let _ = verified(&export);
        assert!(
            !String::from_utf8_lossy(&export).contains(SECRET),
            "{point}"
        );
        drop(daemon);
        check_folds(&before, &state);
    }
}

#[test]
fn a_ledger_that_was_lost_is_rebuilt_from_its_archive_and_goes_on() {
    let state = State::new();
    let daemon = sealing(&state).ready();
    let session = daemon.api().create();
    let _ = daemon.api().exec(&session, "echo before");
    daemon.api().remove(&session);
    let ctl = daemon.ctl();
    let archive = state.beside("archive");
    let archive = archive.to_str().expect("text");
    let root = state.root();
    let words = [
        "ledger",
        "rebuild",
        "--from",
        archive,
        "--state-dir",
        root.to_str().expect("text"),
    ];
    let held = ctl.run(&words);
    assert_eq!(held.code, 3, "a daemon runs: {}", held.errors());
    assert_eq!(daemon.terminate().code, Some(0));
    let before = open_offline(&state.root());
    let refused = ctl.run(&words);
    assert_eq!(refused.code, 1, "there is a ledger: {}", refused.errors());
    std::fs::remove_dir_all(root.join("ledger")).expect("lost");
    std::fs::remove_dir_all(root.join("blobs")).expect("lost");
    let rebuilt = ctl.run(&[&["--json"], &words[..]].concat()).json(0);
    assert_eq!(rebuilt["events"], before.len() as u64, "{rebuilt}");
    assert_eq!(
        (&rebuilt["complete"], &rebuilt["signing_key"]),
        (&json!(true), &json!(true))
    );
    let daemon = sealing(&state).ready();
    assert_eq!(daemon.api().session(&session)["status"], "deleted");
    let after = daemon.api().create();
    assert_eq!(daemon.api().exec(&after, "echo after").text(), "after\n");
    let _ = verified(&daemon.api().export_ledger());
}

#[test]
fn a_compressed_export_is_smaller_and_verifies_like_the_other_one() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let session = daemon.api().create();
    for _ in 0..8 {
        let _ = daemon.api().exec(&session, "seq 500");
    }
    let (plain, small) = (state.beside("plain.fluxlog"), state.beside("small.fluxlog"));
    let export = |file: &Path, more: &[&str]| {
        let file = file.to_str().expect("text");
        let words = ["agent", "export", &session, "--with-content", "--out", file];
        let ran = daemon.ctl().run(&[&words[..], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.errors());
        let verified = daemon.ctl().run(&["--json", "ledger", "verify", file]);
        assert_eq!(verified.code, 0, "{}{}", verified.text(), verified.errors());
        std::fs::metadata(file).expect("written").len()
    };
    let (plain_bytes, small_bytes) = (export(&plain, &[]), export(&small, &["--compress"]));
    assert!(
        2 * small_bytes < plain_bytes,
        "{small_bytes} of {plain_bytes}"
    );
    let mut cut = std::fs::read(&small).expect("read");
    cut.truncate(cut.len() - 10);
    std::fs::write(&small, cut).expect("written");
    let ran = daemon
        .ctl()
        .run(&["ledger", "verify", small.to_str().expect("text")]);
    assert_ne!(ran.code, 0, "{}", ran.text());
}
