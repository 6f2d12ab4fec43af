//! Case C12 as far as it is about keys: a request that is sent again, because its answer was lost
//! or nobody waited for it, is done once.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;

fn create_with_key(api: &Api, key: &str, body: &str) -> Answer {
    api.send(
        "POST",
        SESSIONS,
        &[("idempotency-key", key)],
        body.as_bytes(),
    )
}

/// Sends the request and goes away before its answer.
fn create_and_drop_the_reply(api: &Api, key: &str, body: &str) {
    let host = api.url().strip_prefix("http://").expect("an address");
    let mut connection = TcpStream::connect(host).expect("a connection");
    let token = api.token().expect("a token");
    write!(
        connection,
        "POST {SESSIONS} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\
         idempotency-key: {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
}

/// Asks until the first request with this key has been answered.
fn create_until_answered(api: &Api, key: &str, body: &str) -> Answer {
    eventually("the key is answered", || {
        let answer = create_with_key(api, key, body);
        if answer.status == 409 {
            assert_eq!(answer.error(409), "idempotency_key_running");
            return None;
        }
        Some(answer)
    })
}

#[test]
fn c12_a_dropped_reply_and_five_retries_at_once_make_one_sandbox() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (api, body) = (daemon.api(), r#"{"agent":"retrying"}"#);
    create_and_drop_the_reply(api, "K", body);
    let retries: Vec<_> = (0..5)
        .map(|_| {
            let api = api.clone();
            thread::spawn(move || create_until_answered(&api, "K", body))
        })
        .collect();
    let answers: Vec<Answer> = retries
        .into_iter()
        .map(|retry| retry.join().expect("answered"))
        .collect();
    for answer in &answers {
        let _ = answer.expect(201);
        assert_eq!(
            answer.body, answers[0].body,
            "every retry gets the same bytes"
        );
    }
    let replayed = |answer: &&Answer| answer.headers.get("idempotent-replayed").is_some();
    assert!(
        answers.iter().filter(replayed).count() >= 4,
        "at most one of them was the first"
    );
    assert_eq!(api.sessions().len(), 1);
    let made = std::fs::read_dir(state.root().join("sandboxes"))
        .expect("folder")
        .flatten();
    let made = made.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(made.count(), 1, "exactly one sandbox");

    let other = create_with_key(api, "K", r#"{"agent":"another"}"#);
    assert_eq!(other.error(422), "idempotency_key_reused");
    let spaced = create_with_key(api, "K", r#"{"agent": "retrying"}"#);
    assert_eq!(
        spaced.error(422),
        "idempotency_key_reused",
        "other bytes are another body"
    );
    assert_eq!(api.sessions().len(), 1);
}

#[test]
fn c12_a_key_is_the_callers_for_one_route_and_survives_a_restart() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (key, body) = ("deploy-7", r#"{"agent":"retrying"}"#);
    let first = create_with_key(daemon.api(), key, body);
    let id = first.expect(201)["id"].as_str().expect("id").to_owned();
    assert!(first.headers.get("idempotent-replayed").is_none());

    let exec = |daemon: &Daemon| {
        let path = format!("{SESSIONS}/{id}/exec");
        let body = br#"{"command":"echo x >>count; wc -l <count"}"#;
        daemon
            .api()
            .send("POST", &path, &[("idempotency-key", key)], body)
    };
    let ran = exec(&daemon);
    assert_eq!(
        ran.expect(200)["stdout"],
        "1\n",
        "the same key on another route is a fresh one"
    );
    daemon.kill9();

    let daemon = Daemon::start(&state);
    let again = create_with_key(daemon.api(), key, body);
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(exec(&daemon).body, ran.body, "it did not run a second time");
    assert_eq!(daemon.api().exec(&id, "wc -l <count").text(), "1\n");
    assert_eq!(daemon.api().sessions().len(), 1);
}

#[test]
fn c12_a_request_that_failed_leaves_its_key_free() {
    let daemon = shared();
    let api = daemon.api();
    let refused = create_with_key(api, "free-again", r#"{"agent":"a","ttl_seconds":0}"#);
    assert_eq!(refused.error(400), "invalid_field");
    let image = r#"{"agent":"a","runtime":{"image":"no-such-image"}}"#;
    let _ = create_with_key(api, "free-again", image).error(400);
    let made = create_with_key(api, "free-again", r#"{"agent":"a"}"#).expect(201);
    api.remove(made["id"].as_str().expect("id"));
}

#[test]
fn c12_a_key_that_is_no_key_is_refused() {
    let daemon = shared();
    for key in ["", "a b", &"k".repeat(256)] {
        let answer = create_with_key(daemon.api(), key, r#"{"agent":"a"}"#);
        let _ = answer.error(400);
    }
}
