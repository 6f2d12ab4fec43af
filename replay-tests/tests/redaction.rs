//! What a command said is erased for good, what it proved stays, and a hold forbids it.

use std::path::Path;

use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::events_of;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// What nobody may find afterwards.
const SECRET: &str = "correct-horse-battery-staple-0451";

/// The files below `dir` in which the secret can be read.
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

fn redact(daemon: &Daemon, seq: &Value) -> Answer {
    let body = json!({"seq": seq, "reason": "GDPR 17, ticket 881"});
    daemon.api().post("/v1/ledger/redact", &body)
}

#[test]
fn a_redacted_command_is_in_no_file_and_no_answer_and_all_proofs_hold() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let session = api.create();
    let _ = api.exec(&session, "echo before");
    // Its output is small and large, and the answer is kept for its key as well.
    let line = format!("echo {SECRET}; for i in $(seq 9000); do echo {SECRET} >&2; done");
    let body = json!({"command": line}).to_string();
    let path = format!("{SESSIONS}/{session}/exec");
    let key = [("idempotency-key", "k1")];
    let answer = api.send("POST", &path, &key, body.as_bytes()).expect(200);
    let _ = api.exec(&session, "echo after");
    let seq = &answer["seq"];
    let proof = api.get(&format!("/v1/ledger/proof/{seq}")).body;
    let checkpoint = api.get("/v1/ledger/checkpoint").body;
    assert!(!files_with_secret(daemon.state_dir()).is_empty());

    let done = redact(&daemon, seq).expect(200);
    assert_eq!(done["redacted"].as_array().map(Vec::len), Some(3), "{done}");
    assert_eq!(redact(&daemon, seq).expect(200), done, "asked again");
    let events = api.events(&session);
    let erased: Vec<&Value> = events
        .iter()
        .filter(|event| event["redacted"] == true)
        .collect();
    assert_eq!(erased.len(), 2);
    assert!(erased.iter().all(|event| event["data"].is_null()));
    assert!(!format!("{events:?}").contains(SECRET));
    let retried = api.send("POST", &path, &key, body.as_bytes());
    assert_eq!(retried.error(410), "answer_erased");
    let before = api.session(&session);
    let info = api.get("/v1/ledger/info").expect(200);
    assert_eq!(info["erasure_pending"], true);

    let ended = daemon.terminate();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let info = api.get("/v1/ledger/info").expect(200);
    assert_eq!(info["erasure_pending"], false);
    // The session's own files are the guest's; what the daemon keeps is everything else.
    for place in ["ledger", "blobs"] {
        let found = files_with_secret(&daemon.state_dir().join(place));
        assert_eq!(found, Vec::<String>::new());
    }
    assert_eq!(api.session(&session)["usage"], before["usage"]);

    let export = api.export_ledger();
    let report = verified(&export);
    assert_eq!(report.redacted, 3);
    assert!(!String::from_utf8_lossy(&export).contains(SECRET));
    let file = state.beside("ledger.jsonl");
    std::fs::write(&file, &export).expect("written");
    let note = state.beside("checkpoint");
    std::fs::write(&note, &checkpoint).expect("written");
    let words = ["--table", "ledger", "verify", file.to_str().expect("text")];
    let against = ["--against", note.to_str().expect("text")];
    let ran = daemon.ctl().run(&[&words[..], &against].concat());
    assert_eq!(ran.code, 0, "{}{}", ran.text(), ran.errors());
    assert_eq!(ran.text().matches("REDACTED event").count(), 3);

    // The proof that was taken before is of the event as it is now.
    let proof: fluxvm_verify::InclusionProof = String::from_utf8(proof)
        .expect("text")
        .parse()
        .expect("a proof");
    let events = events_of(&export);
    let event = events
        .iter()
        .find(|event| event.header.seq == proof.seq)
        .expect("it is there");
    proof.verify(&event.hash).expect("it holds");
}

#[test]
fn a_hold_forbids_it_and_the_refusal_is_an_event() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let (held, free) = (api.create(), api.create());
    let _ = api.exec(&held, "echo one");
    let _ = api.exec(&free, "echo two");
    let exec = |session: &str| api.only_event(session, "exec")["seq"].clone();
    let body = json!({"session": held, "reason": "case 7"});
    let hold = api.post("/v1/ledger/holds", &body).expect(201);
    let listed = api.get("/v1/ledger/holds").expect(200);
    assert_eq!(listed["items"], json!([hold]));

    assert_eq!(redact(&daemon, &exec(&held)).error(409), "under_hold");
    // Its files and snapshots would go with it.
    let held_path = format!("{SESSIONS}/{held}");
    assert_eq!(api.delete(&held_path).error(409), "under_hold");
    let _ = redact(&daemon, &exec(&free)).expect(200);
    let recorded = String::from_utf8(api.get("/v1/ledger/events?stream=ledger").body);
    let recorded: Vec<Value> = recorded
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let kinds: Vec<&str> = recorded
        .iter()
        .filter_map(|event| event["kind"].as_str())
        .collect();
    let expected = [
        "ledger.hold",
        "ledger.redact.refused",
        "ledger.delete.refused",
        "ledger.redacted",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(recorded[1]["data"]["reason"], "GDPR 17, ticket 881");

    // It outlives the daemon, and ends when it is released.
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let exec = api.only_event(&held, "exec")["seq"].clone();
    assert_eq!(redact(&daemon, &exec).error(409), "under_hold");
    let path = format!("/v1/ledger/holds/{}", hold["seq"]);
    assert_eq!(api.delete(&path).status, 204);
    assert_eq!(api.delete(&path).error(404), "hold_not_found");
    let _ = redact(&daemon, &exec).expect(200);
    assert_eq!(api.delete(&held_path).status, 204);
}

#[test]
fn what_state_is_made_of_is_not_erased_and_requests_are_read_strictly() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let session = api.create();
    let created = api.only_event(&session, "session.create")["seq"].clone();
    assert_eq!(redact(&daemon, &created).error(422), "not_redactable");
    assert_eq!(redact(&daemon, &json!(1)).error(422), "not_redactable");
    assert_eq!(
        redact(&daemon, &json!(100_000)).error(404),
        "event_not_found"
    );
    assert_eq!(redact(&daemon, &json!(0)).error(404), "event_not_found");
    assert_eq!(redact(&daemon, &json!("1")).error(400), "invalid_field");
    let post = |body: Value| api.post("/v1/ledger/redact", &body);
    assert_eq!(post(json!({"seq": 1})).error(400), "missing_field");
    let wordless = post(json!({"seq": 1, "reason": " "}));
    assert_eq!(wordless.error(400), "invalid_field");
    let unknown = post(json!({"seq": 1, "reason": "x", "force": true}));
    assert_eq!(unknown.error(400), "unknown_field");
    let hold = json!({"session": "00000000-0000-4000-8000-000000000001", "reason": "x"});
    let hold = api.post("/v1/ledger/holds", &hold);
    assert_eq!(hold.error(404), "session_not_found");
    let erased = api.get("/v1/ledger/consistency?from=1&to=999999");
    assert_eq!(erased.error(404), "checkpoint_not_found");
}

#[test]
fn fluxctl_does_all_of_it() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let session = daemon.api().create();
    let _ = daemon.api().exec(&session, &format!("echo {SECRET}"));
    let ctl = daemon.ctl();
    let well = |words: &[&str]| {
        let ran = ctl.run(&[&["--table"], words].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.text(), ran.errors());
        ran.text()
    };
    let seq = daemon.api().only_event(&session, "exec")["seq"].to_string();
    let held = well(&[
        "ledger",
        "hold",
        "--session",
        &session,
        "--reason",
        "case 7",
    ]);
    assert!(held.contains("in force"), "{held}");
    assert!(well(&["ledger", "holds"]).contains("case 7"));
    assert_ne!(
        ctl.run(&["ledger", "redact", &seq, "--reason", "x"]).code,
        0
    );
    let hold = daemon.api().get("/v1/ledger/holds").expect(200)["items"][0]["seq"].to_string();
    well(&["ledger", "release", &hold]);
    assert!(well(&["ledger", "redact", &seq, "--reason", "x"]).contains("REDACTED"));
    assert!(well(&["ledger", "events", "--stream", "ledger"]).contains("ledger.redacted"));
    assert!(well(&["ledger", "prove", &seq]).starts_with("c2sp.org/tlog-proof"));
    let old = state.beside("old");
    well(&["ledger", "checkpoint", "--out", old.to_str().expect("text")]);
    let before = well(&["ledger", "key"]);
    well(&["ledger", "rotate-key"]);
    assert_ne!(well(&["ledger", "key"]), before);
    well(&["ledger", "prove-consistency", "1"]);
    // How fast this machine's disk is while other tests run is no matter of this test.
    let doctor = ctl.run(&["--table", "ledger", "doctor"]);
    assert!(matches!(doctor.code, 0 | 1), "{}", doctor.errors());
    assert!(
        doctor.text().contains("signed up to event"),
        "{}",
        doctor.text()
    );
    let export = state.beside("all.jsonl");
    let export = export.to_str().expect("text");
    well(&["ledger", "export", "--with-content", "--out", export]);
    let old = old.to_str().expect("text");
    let verdict = well(&["ledger", "verify", export, "--against", old]);
    assert!(verdict.contains("REDACTED event"), "{verdict}");
}

#[test]
fn exports_and_proofs_are_checked_without_the_daemon_and_forgeries_are_not_called_ok() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let session = daemon.api().create();
    let seq = daemon.api().exec(&session, "echo one").seq.to_string();
    let ctl = daemon.ctl();
    let [old, own, whole, event, later] =
        ["old", "own", "whole", "event", "later"].map(|name| state.beside(name));
    let [old, own, whole, event, later] =
        [&old, &own, &whole, &event, &later].map(|path| path.to_str().expect("text"));
    let ran = |words: &[&str]| ctl.run(&[&["--table"], words].concat());
    let well = |words: &[&str]| {
        let ran = ran(words);
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.text(), ran.errors());
        ran
    };
    well(&["ledger", "checkpoint", "--out", old]);
    let _ = daemon.api().exec(&session, "echo two");
    let key = ctl.run(&["--json", "ledger", "key"]).json(0)["vkey"].clone();
    let key = key.as_str().expect("text");
    let hint = well(&["agent", "export", &session, "--with-content", "--out", own]);
    assert!(
        hint.errors().contains(&format!("--key {key}")),
        "{}",
        hint.errors()
    );
    well(&["ledger", "export", "--out", whole]);
    well(&["ledger", "prove", &seq, "--out", event]);
    let against = ["ledger", "verify", own, "--key", key, "--against", old];
    let unproven = ran(&against);
    assert_eq!(unproven.code, 1);
    let said = unproven.text();
    assert!(
        said.contains("NOT PROVEN") && !said.contains("BROKEN"),
        "{said}"
    );
    let fetch = said.split('`').nth(1).expect("the command");
    let fetch: Vec<&str> = fetch.split(' ').skip(1).chain(["--out", later]).collect();
    well(&fetch);
    daemon.api().remove(&session);
    assert_eq!(daemon.terminate().code, Some(0));

    let proven = well(&[&against[..], &["--consistency", later]].concat()).text();
    assert!(
        proven.contains("OK:") && proven.contains("content  "),
        "{proven}"
    );
    let offline = ["ledger", "verify-proof"];
    well(&[&offline[..], &[later, "--key", key, "--against", old]].concat());
    well(&[&offline[..], &[event, "--key", key, "--export", own]].concat());
    let other = "00".repeat(32);
    let wrong = ran(&[&offline[..], &[event, "--key", key, "--hash", &other]].concat());
    assert_eq!(wrong.code, 1, "{}", wrong.text());

    let forged = |file: &str, forge: &dyn Fn(&str) -> String, code: &str| {
        let text = std::fs::read_to_string(file).expect("read");
        std::fs::write(file, forge(&text)).expect("written");
        let ran = ran(&["ledger", "verify", file]);
        assert_eq!(ran.code, 1, "{}", ran.text());
        assert!(
            ran.text().contains(code) && !ran.text().contains("OK:"),
            "{}",
            ran.text()
        );
    };
    forged(own, &without_signatures, "unsigned");
    let unsigned = well(&["ledger", "verify", own, "--allow-unsigned"]).text();
    assert!(
        unsigned.contains("UNSIGNED") && !unsigned.contains("OK:"),
        "{unsigned}"
    );
    forged(
        whole,
        &|text| called_erased(text, "echo one"),
        "redaction_unordered",
    );
}

/// An export of format 2 as one of format 1: what anybody can make of it.
fn without_signatures(text: &str) -> String {
    let cut = |line: &str, from: &str| match line.find(from) {
        Some(at) => format!("{}}}\n", &line[..at]),
        None => format!("{line}\n"),
    };
    let lines = text.lines().filter(|line| {
        let is_of = |kind: &str| line.starts_with(&format!("{{\"type\":\"{kind}\""));
        !is_of("proof") && !is_of("blob")
    });
    let lines = lines.map(|line| match line {
        first if first.starts_with("{\"type\":\"ledger\"") => {
            cut(first, ",\"tree_size\"").replace("\"format\":2", "\"format\":1")
        }
        last if last.starts_with("{\"type\":\"end\"") => cut(last, ",\"checkpoint\""),
        line => format!("{line}\n"),
    });
    lines.collect()
}

/// The first payload that says this taken out and called erased.
fn called_erased(text: &str, said: &str) -> String {
    let line = text.lines().find(|line| line.contains(said)).expect("said");
    let payload = line.find("\"payload\":").expect("a payload");
    let behind = line.find(",\"prev\":").expect("a link");
    let erased = "\"payload\":null,\"salt\":null,\"redacted\":true";
    let erased = format!("{}{erased}{}", &line[..payload], &line[behind..]);
    text.replacen(line, &erased, 1)
}

#[test]
fn checkpoints_are_pushed_to_the_folder_that_the_config_names_and_the_archive_is_written() {
    let state = State::new();
    let (archive, kept) = (state.beside("archive"), state.beside("kept"));
    let config = state.beside("config.toml");
    let text = format!("[ledger]\narchive = {archive:?}\ncheckpoint_dir = {kept:?}\n");
    std::fs::write(&config, text).expect("written");
    let start = Start::new(&state).words(&["--config", config.to_str().expect("text")]);
    let daemon = start.ready();
    let api = daemon.api();
    let session = api.create();
    let exec = api.exec(&session, &format!("echo {SECRET}"));
    let _ = redact(&daemon, &json!(exec.seq)).expect(200);
    api.remove(&session);
    assert_eq!(daemon.terminate().code, Some(0));
    assert_eq!(files_with_secret(&archive), Vec::<String>::new());
    let newest = std::fs::read_dir(&kept)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .max()
        .expect("a checkpoint");
    let newest = std::fs::read_to_string(newest).expect("text");
    let newest: fluxvm_verify::SignedCheckpoint = newest.parse().expect("a checkpoint");
    let end = open_offline(&state.root()).len() as u64;
    assert_eq!(
        newest.size().get(),
        end,
        "the end of the ledger is held elsewhere"
    );
}

#[test]
fn a_crash_around_a_redaction_leaves_all_of_it_or_nothing_and_it_can_be_asked_again() {
    for (point, is_erased) in [("redact.decided", false), ("redact.done", true)] {
        let state = State::new();
        let daemon = Start::crashing_at(&state, point).ready();
        let session = daemon.api().create();
        let line = format!("echo {SECRET}; for i in $(seq 9000); do echo {SECRET} >&2; done");
        let _ = daemon.api().exec(&session, &line);
        let seq = daemon.api().only_event(&session, "exec")["seq"].clone();
        let body = json!({"seq": seq, "reason": "r"}).to_string();
        let api = daemon.api();
        let asked = api.try_send("POST", "/v1/ledger/redact", &[], body.as_bytes());
        assert!(asked.is_err(), "{point}");
        assert_eq!(daemon.ended().signal, Some(6), "{point}");
        let daemon = Daemon::start(&state);
        let events = format!("{:?}", daemon.api().events(&session));
        assert_eq!(!events.contains(SECRET), is_erased, "{point}");
        let _ = redact(&daemon, &seq).expect(200);
        assert_eq!(
            verified(&daemon.api().export_ledger()).redacted,
            2,
            "{point}"
        );
        assert_eq!(daemon.terminate().code, Some(0));
        let _daemon = Daemon::start(&state);
        for place in ["ledger", "blobs"] {
            let found = files_with_secret(&state.root().join(place));
            assert_eq!(found, Vec::<String>::new(), "{point}");
        }
    }
}
