//! A large file goes up in parts, over as many daemons as it takes, and appears as a whole or not at all.

use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::status_kib;
use fluxvm_replay_tests::verified;
use nix::sys::signal::Signal;
use serde_json::Value;
use serde_json::json;
use sha2::Digest;
use sha2::Sha256;

const PART_BYTES: usize = 4 * 1024 * 1024;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        content.extend(state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn uploads(id: &str) -> String {
    format!("{SESSIONS}/{id}/uploads")
}

fn open(api: &Api, id: &str, path: &str, content: &[u8]) -> String {
    let body =
        json!({"path": path, "size": content.len(), "sha256": sha256(content), "mode": "640"});
    let record = api.post(&uploads(id), &body).expect(201);
    assert_eq!(
        (&record["received"], &record["state"]),
        (&json!(0), &json!("open"))
    );
    record["id"].as_str().expect("an id").to_owned()
}

fn part(api: &Api, id: &str, upload: &str, offset: usize, bytes: &[u8]) -> Answer {
    let path = format!("{}/{upload}?offset={offset}", uploads(id));
    api.send("PUT", &path, &[], bytes)
}

fn send_all(api: &Api, id: &str, upload: &str, content: &[u8], from: usize) {
    for (index, bytes) in content.chunks(PART_BYTES).enumerate() {
        let offset = index * PART_BYTES;
        if offset >= from {
            let record = part(api, id, upload, offset, bytes).expect(200);
            assert_eq!(record["received"], offset + bytes.len());
        }
    }
}

fn complete(api: &Api, id: &str, upload: &str) -> Answer {
    api.post(&format!("{}/{upload}/complete", uploads(id)), &json!({}))
}

fn look(api: &Api, id: &str, upload: &str) -> Value {
    api.get(&format!("{}/{upload}", uploads(id))).expect(200)
}

fn check_in_place(api: &Api, id: &str, path: &str, content: &[u8]) {
    let told = api.exec(
        id,
        &format!("sha256sum {path} | cut -d' ' -f1; stat -c %a {path}"),
    );
    assert_eq!(told.text(), format!("{}\n640\n", sha256(content)));
    let beside = api.exec(id, "find /workspace -name '.fluxvm*'");
    assert_eq!(beside.text(), "", "nothing unfinished is left beside it");
}

/// Folders below the state's spool.
fn spooled(state: &State) -> usize {
    let Ok(sessions) = std::fs::read_dir(state.root().join("uploads")) else {
        return 0;
    };
    sessions
        .map(|session| std::fs::read_dir(session.expect("entry").path()).map_or(0, Iterator::count))
        .sum()
}

#[test]
fn parts_in_order_become_the_file_and_completing_again_answers_the_same() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let content = content(9_000_001);
    let path = "/workspace/deep/data.bin";
    let upload = open(api, &id, path, &content);
    assert_eq!(complete(api, &id, &upload).error(409), "upload_incomplete");
    send_all(api, &id, &upload, &content, 0);
    assert_eq!(
        api.exec(&id, "ls /workspace").text(),
        "",
        "nothing is there before the end"
    );
    let done = complete(api, &id, &upload).expect(200);
    assert_eq!(
        (&done["state"], &done["received"]),
        (&json!("complete"), &json!(9_000_001))
    );
    check_in_place(api, &id, path, &content);
    let event = api.only_event(&id, "file.upload");
    assert_eq!(event["data"]["verified"], true);
    assert_eq!(
        event["data"]["digest"],
        blake3::hash(&content).to_hex().as_str()
    );
    assert_eq!(event["data"]["blobs"].as_array().map(Vec::len), Some(2));
    // The agent goes on with the file; repeating the request does not undo that.
    assert_eq!(api.exec(&id, &format!("echo mine >{path}")).exit_code, 0);
    let again = complete(api, &id, &upload).expect(200);
    assert_eq!(again["seq"], done["seq"]);
    assert_eq!(api.exec(&id, &format!("cat {path}")).text(), "mine\n");
    assert_eq!(
        part(api, &id, &upload, 9_000_001, b"x").error(409),
        "upload_done"
    );
    let abort = api.delete(&format!("{}/{upload}", uploads(&id)));
    assert_eq!(abort.error(409), "upload_done");
    api.remove(&id);
}

#[test]
fn a_part_out_of_order_is_told_where_to_go_on() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let content = content(100);
    let upload = open(api, &id, "/workspace/a", &content);
    assert_eq!(
        part(api, &id, &upload, 1, &content[1..]).error(409),
        "upload_offset"
    );
    let _ = part(api, &id, &upload, 0, &content[..60]).expect(200);
    let wrong = part(api, &id, &upload, 0, &vec![0; PART_BYTES]);
    assert!(
        wrong.json()["error"]
            .as_str()
            .is_some_and(|text| text.contains("60"))
    );
    assert_eq!(part(api, &id, &upload, 60, b"").error(400), "invalid_field");
    let long = part(api, &id, &upload, 60, &[0; 41]);
    assert_eq!(long.error(400), "invalid_field");
    let without = api.send("PUT", &format!("{}/{upload}", uploads(&id)), &[], b"x");
    assert_eq!(without.error(400), "missing_field");
    assert_eq!(look(api, &id, &upload)["received"], 60);
    let _ = part(api, &id, &upload, 60, &content[60..]).expect(200);
    let _ = complete(api, &id, &upload).expect(200);
    check_in_place(api, &id, "/workspace/a", &content);
    api.remove(&id);
}

#[test]
fn bytes_of_another_digest_change_nothing_and_an_upload_can_be_dropped() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    assert_eq!(api.exec(&id, "echo before >a").exit_code, 0);
    let upload = open(api, &id, "/workspace/a", b"expected");
    let _ = part(api, &id, &upload, 0, b"otherone").expect(200);
    assert_eq!(complete(api, &id, &upload).error(409), "checksum_mismatch");
    assert_eq!(api.exec(&id, "cat a; ls -A").text(), "before\na\n");
    assert_eq!(look(api, &id, &upload)["state"], "open");
    let path = format!("{}/{upload}", uploads(&id));
    assert_eq!(api.delete(&path).status, 204);
    assert_eq!(api.delete(&path).error(404), "upload_not_found");
    assert_eq!(api.get(&path).error(404), "upload_not_found");
    assert_eq!(
        api.only_event(&id, "upload.abort")["data"]["reason"],
        "aborted"
    );
    for (body, status) in [
        (json!({"path": "/workspace/a", "size": 0}), 400),
        (
            json!({"path": "/workspace/a", "size": 2_147_483_649_u64}),
            400,
        ),
        (json!({"path": "relative", "size": 1}), 400),
        (
            json!({"path": "/workspace/a", "size": 1, "sha256": "x"}),
            400,
        ),
        (json!({"path": "/workspace/a", "size": 1, "mode": "9"}), 400),
        (json!({"path": "/workspace/a"}), 400),
    ] {
        assert_eq!(api.post(&uploads(&id), &body).status, status, "{body}");
    }
    for _ in 0..8 {
        let _ = open(api, &id, "/workspace/b", b"x");
    }
    let ninth = api.post(&uploads(&id), &json!({"path": "/workspace/b", "size": 1}));
    assert_eq!(ninth.error(429), "too_many");
    assert_eq!(
        api.get(&uploads(&id)).expect(200)["items"]
            .as_array()
            .map(Vec::len),
        Some(8)
    );
    api.remove(&id);
}

#[test]
fn an_upload_goes_on_after_the_daemon_was_killed_in_the_middle_and_leaves_nothing() {
    let state = State::new();
    let mut daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let content = content(3 * PART_BYTES + 17);
    let upload = open(daemon.api(), &id, "/workspace/big", &content);
    let _ = part(daemon.api(), &id, &upload, 0, &content[..PART_BYTES]).expect(200);
    for round in 1..=2_usize {
        daemon.signal(Signal::SIGKILL);
        assert_eq!(daemon.ended().signal, Some(9));
        daemon = Daemon::start(&state);
        let offset = round * PART_BYTES;
        assert_eq!(look(daemon.api(), &id, &upload)["received"], offset);
        let bytes = &content[offset..offset + PART_BYTES];
        let _ = part(daemon.api(), &id, &upload, offset, bytes).expect(200);
    }
    send_all(daemon.api(), &id, &upload, &content, 3 * PART_BYTES);
    let _ = complete(daemon.api(), &id, &upload).expect(200);
    check_in_place(daemon.api(), &id, "/workspace/big", &content);
    assert_eq!(
        spooled(&state),
        0,
        "the parts of a complete upload are gone"
    );
    let left = open(daemon.api(), &id, "/workspace/left", &content);
    let _ = part(daemon.api(), &id, &left, 0, b"some").expect(200);
    assert_eq!(spooled(&state), 1);
    daemon.api().remove(&id);
    assert_eq!(
        spooled(&state),
        0,
        "the end of the session takes them along"
    );
    verified(&daemon.api().export_ledger());
}

#[test]
fn a_completion_that_a_crash_cut_off_is_finished_by_the_next_daemon() {
    for point in [
        "upload.open.spooled",
        "upload.part.taken",
        "file.upload.intent",
        "file.upload.done",
        "file.upload.kept",
        "file.upload.outcome",
    ] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let id = daemon.api().create();
        let content = content(PART_BYTES + 5);
        let before_open = point == "upload.open.spooled";
        let before_part = before_open || point == "upload.part.taken";
        let mut upload = String::new();
        if !before_open {
            upload = open(daemon.api(), &id, "/workspace/big", &content);
        }
        if !before_part {
            send_all(daemon.api(), &id, &upload, &content, 0);
        }
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let api = daemon.api();
        let cut_off = if before_open {
            let body = json!({"path": "/workspace/big", "size": content.len()}).to_string();
            api.try_send("POST", &uploads(&id), &[], body.as_bytes())
        } else if before_part {
            let path = format!("{}/{upload}?offset=0", uploads(&id));
            api.try_send("PUT", &path, &[], &content[..PART_BYTES])
        } else {
            let path = format!("{}/{upload}/complete", uploads(&id));
            api.try_send("POST", &path, &[], b"{}")
        };
        assert!(cut_off.is_err(), "{point}: {cut_off:?}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        if before_open {
            assert_eq!(spooled(&state), 0, "{point}");
            upload = open(api, &id, "/workspace/big", &content);
        }
        if before_part {
            let from = look(api, &id, &upload)["received"]
                .as_u64()
                .expect("a number");
            send_all(
                api,
                &id,
                &upload,
                &content,
                usize::try_from(from).expect("small"),
            );
        }
        let done = complete(api, &id, &upload).expect(200);
        assert_eq!(done["state"], "complete", "{point}");
        check_in_place(api, &id, "/workspace/big", &content);
        let event = api.only_event(&id, "file.upload");
        assert_eq!(
            event["data"]["digest"],
            blake3::hash(&content).to_hex().as_str()
        );
        assert_eq!(spooled(&state), 0, "{point}");
        assert_eq!(api.session(&id)["in_flight"], json!([]), "{point}");
    }
}

#[test]
fn a_huge_file_goes_up_and_down_in_little_memory() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let body = json!({"agent": "tester", "record": "digest"});
    let id = api.create_with(&body);
    let content = content(256 * 1024 * 1024);
    let upload = open(api, &id, "/workspace/huge", &content);
    let before = status_kib(daemon.pid(), "VmHWM");
    send_all(api, &id, &upload, &content, 0);
    let _ = complete(api, &id, &upload).expect(200);
    check_in_place(api, &id, "/workspace/huge", &content);
    let mut hasher = Sha256::new();
    let mut offset = 0_u64;
    while offset < content.len() as u64 {
        let path = format!("{SESSIONS}/{id}/files/range?path=/workspace/huge&offset={offset}");
        let range = api.get(&path).expect(200);
        let text = range["data_base64"].as_str().expect("base64");
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .expect("base64");
        offset += bytes.len() as u64;
        hasher.update(&bytes);
    }
    let back: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(back, sha256(&content));
    let grown_kib = status_kib(daemon.pid(), "VmHWM") - before;
    println!("the daemon's peak grew by {grown_kib} KiB for a file of 256 MiB");
    assert!(grown_kib < 96 * 1024, "{grown_kib} KiB");
}
