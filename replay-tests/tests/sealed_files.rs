//! The content of files and uploads of a sealed session lies in no file of the ledger in the open, reads as
//! ever for whoever may read it, and is erased with the session's key.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// What nobody may find.
const SECRET: &str = "mellon-is-the-word-at-the-door-1937";
/// Larger than what lies in the store itself.
const FILE_BYTES: usize = 300_000;
/// Two pieces, and so two blobs.
const UPLOAD_BYTES: usize = 9_500_000;
/// What one request of an upload takes.
const PART_BYTES: usize = 4 * 1024 * 1024;

fn content(bytes: usize) -> Vec<u8> {
    SECRET.bytes().chain([b'\n']).cycle().take(bytes).collect()
}

fn sealing(state: &State) -> Daemon {
    let (config, archive) = (state.beside("config.toml"), state.beside("archive"));
    let text = format!("[ledger]\nseal = true\narchive = {:?}\n", archive.display());
    std::fs::write(&config, text).expect("written");
    let words = ["--config", config.to_str().expect("text")];
    Start::new(state).words(&words).ready()
}

fn files_with_secret(dir: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let metadata = path.symlink_metadata().expect("metadata");
        if metadata.is_dir() {
            files_with_secret(&path, found);
        } else if metadata.is_file() {
            let bytes = std::fs::read(&path).expect("a file");
            let secret = SECRET.as_bytes();
            if bytes.windows(secret.len()).any(|window| window == secret) {
                found.push(path.display().to_string());
            }
        }
    }
}

fn check_sealed(state: &State) {
    let mut found = Vec::new();
    for place in ["ledger", "blobs", "uploads"] {
        files_with_secret(&state.root().join(place), &mut found);
    }
    files_with_secret(&state.beside("archive"), &mut found);
    assert_eq!(found, Vec::<String>::new());
}

fn write(api: &Api, id: &str, path: &str, content: &[u8]) {
    let body = json!({"path": path, "content_base64": STANDARD.encode(content)});
    let url = format!("{SESSIONS}/{id}/files/content");
    let written = api.send("PUT", &url, &[], body.to_string().as_bytes());
    let _ = written.expect(200);
}

fn upload(api: &Api, id: &str, path: &str, content: &[u8]) {
    let base = format!("{SESSIONS}/{id}/uploads");
    let asked = json!({"path": path, "size": content.len()});
    let opened = api.post(&base, &asked).expect(201);
    let upload = format!("{base}/{}", opened["id"].as_str().expect("an id"));
    for (index, part) in content.chunks(PART_BYTES).enumerate() {
        let url = format!("{upload}?offset={}", index * PART_BYTES);
        let _ = api.send("PUT", &url, &[], part).expect(200);
    }
    let _ = api
        .post(&format!("{upload}/complete"), &json!({}))
        .expect(200);
}

/// A session with a small file, a larger one and an upload, all of them full of the secret.
fn recorded(api: &Api) -> String {
    let id = api.create();
    write(api, &id, "/workspace/small", &content(1_000));
    write(api, &id, "/workspace/larger", &content(FILE_BYTES));
    upload(api, &id, "/workspace/large", &content(UPLOAD_BYTES));
    id
}

fn replayed(api: &Api, source: &str) -> (String, Value) {
    let target = api.create();
    let path = format!("{SESSIONS}/{source}/replay");
    let answer = api.post(&path, &json!({"target": target})).expect(200);
    (target, answer)
}

fn check_replayed(api: &Api, source: &str, step_count: usize) -> String {
    let (target, answer) = replayed(api, source);
    let steps = answer["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), step_count, "{answer:#}");
    assert!(steps.iter().all(|step| step["same"] == true), "{answer:#}");
    let sizes = api.exec(&target, "stat -c %s small larger large");
    assert_eq!(
        sizes.text(),
        format!("1000\n{FILE_BYTES}\n{UPLOAD_BYTES}\n")
    );
    target
}

#[test]
fn what_files_and_uploads_hold_is_sealed_replayed_and_erased_with_the_key() {
    let state = State::new();
    let daemon = sealing(&state);
    let api = daemon.api();
    let source = recorded(api);
    check_sealed(&state);
    let target = check_replayed(api, &source, 3);
    check_sealed(&state);
    let evidence = format!("{SESSIONS}/{source}/export?content=true");
    let encoded = STANDARD.encode(content(300));
    let before = api.get(&evidence).body;
    assert_eq!(verified(&before).redacted, 0, "who has it needs no key");
    assert!(String::from_utf8_lossy(&before).contains(&encoded));
    api.remove(&source);
    let body = json!({"session": source, "reason": "ticket 882"});
    let _ = api.post("/v1/ledger/shred", &body).expect(200);

    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = sealing(&state);
    let api = daemon.api();
    let (_, answer) = replayed(api, &source);
    assert_eq!(answer["steps"], json!([]));
    let skipped = answer["skipped"].as_array().expect("skipped");
    let why: Vec<_> = skipped.iter().map(|step| &step["reason"]).collect();
    assert_eq!(why, vec!["its payload was erased"; 3], "{answer:#}");
    let evidence = String::from_utf8_lossy(&api.get(&evidence).body).into_owned();
    assert!(!evidence.contains(&encoded));
    // The same bytes are another session's too, under its own key.
    let _ = check_replayed(api, &target, 4);
    check_sealed(&state);
    let _ = verified(&api.export_ledger());
}

#[test]
fn a_fork_is_sealed_with_a_key_of_its_own() {
    let state = State::new();
    let daemon = sealing(&state);
    let api = daemon.api();
    let source = api.create();
    write(api, &source, "/workspace/small", &content(1_000));
    let forked = api.ask(&source, "fork", &json!({"count": 1})).expect(201);
    let child = forked["items"][0]["id"].as_str().expect("an id").to_owned();
    let said = format!("echo {SECRET}; head -n 1 small");
    let told = format!("{SECRET}\n{SECRET}\n");
    assert_eq!(api.exec(&child, &said).text(), told);
    check_sealed(&state);
    api.remove(&source);
    let body = json!({"session": source, "reason": "ticket 883"});
    let _ = api.post("/v1/ledger/shred", &body).expect(200);

    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = sealing(&state);
    let api = daemon.api();
    let kinds = |id: &str| {
        let events = api.events(id);
        let left = events.iter().filter(|event| event["redacted"] != true);
        left.map(|event| event["kind"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&source), ["session.erased"]);
    assert_eq!(kinds(&child).len(), api.events(&child).len());
    assert!(format!("{:?}", api.events(&child)).contains(SECRET));
    assert_eq!(api.exec(&child, &said).text(), told);
    let _ = verified(&api.export_ledger());
}
