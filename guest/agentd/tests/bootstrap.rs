//! Who may call when, and what a connection survives.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::io::Read;
use std::io::Write;

use agentd_client::protocol::AgentToken;
use agentd_client::protocol::Hook;
use agentd_client::protocol::RunHookPayload;
use agentd_client::protocol::VERSION_HEADER;
use support::*;

const RUN: &str = "/aws/lambda-microvms/runtime/v1/run";

fn payload(inner: &str) -> String {
    serde_json::json!({ "runHookPayload": inner }).to_string()
}

#[tokio::test]
async fn the_first_launch_wins_a_repeat_is_fine_and_another_token_changes_nothing() {
    let guest = Guest::bare(&[]);
    let client = guest.client(TOKEN);
    assert!(!client.health().await.unwrap().bootstrapped);
    let launch = |token: &str, value: &str| {
        let mut payload = RunHookPayload::new(AgentToken::new(token));
        payload.env.insert("LAUNCH".into(), value.into());
        payload
    };
    client.run_hook(&launch(TOKEN, "first")).await.unwrap();
    client.run_hook(&launch(TOKEN, "second")).await.unwrap();
    let other = client
        .run_hook(&launch("other", "third"))
        .await
        .unwrap_err();
    assert_eq!(refusal(&other), (409, None));

    let told = run(&client, &command(["env"])).await;
    let env = String::from_utf8(told.stdout).unwrap();
    assert!(env.lines().any(|line| line == "LAUNCH=first"), "{env}");
    assert!(!env.contains(TOKEN) && !env.contains("AGENTD_"), "{env}");

    let health = client.health().await.unwrap();
    assert!(health.bootstrapped && !health.identity_repaired);
    assert!(health.identity_steps.is_empty());
    // All three are in the log, whatever came of them.
    let hooks: Vec<&str> = health
        .hooks
        .iter()
        .map(|record| record.hook.as_str())
        .collect();
    assert_eq!(hooks, ["run", "run", "run"]);
    assert!(!guest.log().contains(TOKEN));
}

#[tokio::test]
async fn every_other_hook_is_always_fine_and_logged() {
    let guest = Guest::bare(&[]);
    let client = guest.client(TOKEN);
    let others = Hook::ALL.into_iter().filter(|hook| *hook != Hook::Run);
    for hook in others.clone() {
        client.hook(hook).await.unwrap();
        let answer = guest.http("POST", &hook.path(), "", "not json");
        assert_eq!((answer.status(), answer.body()), (200, ""));
    }
    let hooks = client.health().await.unwrap().hooks;
    let expected = others.flat_map(|hook| [hook.as_str(), hook.as_str()]);
    assert!(hooks.iter().map(|record| record.hook.as_str()).eq(expected));
}

#[tokio::test]
async fn a_malformed_launch_is_400_names_no_value_and_leaves_the_guest_open() {
    let guest = Guest::bare(&[]);
    let secret = "do-not-quote-me";
    for body in [
        String::new(),
        secret.to_owned(),
        "{}".to_owned(),
        format!("{{\"runHookPayload\": [\"{secret}\"]}}"),
        payload(secret),
        payload(&format!("{{\"agent_token\": [\"{secret}\"]}}")),
        payload(r#"{"agent_token": ""}"#),
        payload(&format!(
            r#"{{"agent_token": "{secret}", "env": ["{secret}"]}}"#
        )),
        payload(&format!(
            r#"{{"agent_token": "{secret}", "env": {{"A": 1}}}}"#
        )),
    ] {
        let answer = guest.http("POST", RUN, "", &body);
        assert_eq!(answer.status(), 400, "{body}");
        assert!(!answer.0.contains(secret), "{}", answer.0);
    }
    let inner = format!(r#"{{"agent_token": "{TOKEN}", "later": {{}}, "env": null}}"#);
    assert_eq!(guest.http("POST", RUN, "", &payload(&inner)).status(), 200);
}

#[tokio::test]
async fn an_oversized_launch_is_413_and_an_unfinished_one_408_and_both_close() {
    let guest = Guest::bare(&[]);
    let answer = guest.http("POST", RUN, "", &"x".repeat(33 * 1024));
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.header("connection"), Some("close"));
    // Ends after the five seconds that a launch has, because the daemon hangs up.
    let unfinished = guest.raw(&format!(
        "POST {RUN} HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{{"
    ));
    assert!(unfinished.starts_with("HTTP/1.1 408 "), "{unfinished}");
    assert!(!guest.client(TOKEN).health().await.unwrap().bootstrapped);
}

#[tokio::test]
async fn bearer_routes_judge_the_token_before_method_and_body() {
    let guest = Guest::bare(&[]);
    let good = bearer();
    let routes = [
        ("POST", "/v1/exec/start"),
        ("POST", "/v1/x/exec/run"),
        ("GET", "/v1/exec/e"),
        ("GET", "/v1/exec/e/stream?offset=0"),
        ("POST", "/v1/exec/e/ack"),
        ("POST", "/v1/exec/e/kill"),
        ("DELETE", "/v1/exec/e"),
    ];
    let check = |headers: &str, status: u16| {
        for (method, path) in routes {
            let answer = guest.http(method, path, headers, "{");
            assert_eq!(answer.status(), status, "{method} {path} {headers:?}");
            assert_eq!(answer.body(), "");
            assert_eq!(answer.header("content-type"), None);
            assert_eq!(answer.header("www-authenticate"), None);
            assert!(answer.header(VERSION_HEADER).is_some());
        }
    };
    check("", 503);
    check(&good, 503);
    let launch = payload(&format!(r#"{{"agent_token": "{TOKEN}"}}"#));
    assert_eq!(guest.http("POST", RUN, "", &launch).status(), 200);
    check("", 401);
    for wrong in [
        format!("authorization: Basic {TOKEN}\r\n"),
        format!("authorization: Bearer  {TOKEN}\r\n"),
        format!("authorization: Bearer {TOKEN}x\r\n"),
        "authorization: Bearer \u{e9}\u{fc}\r\n".to_owned(),
        format!("authorization: {TOKEN}\r\n"),
    ] {
        check(&wrong, 401);
    }
    let lower = format!("authorization: bearer {TOKEN}\r\n");
    assert_eq!(guest.http("GET", "/v1/exec/e", &lower, "").status(), 404);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_apart() {
    let (guest, _client) = Guest::start().await;
    for path in [
        "/",
        "/run",
        "/v1/exec/",
        "/v1/exec/a/b",
        "/v1/fs/file/",
        "/v1/fs",
        "/v1/health/",
    ] {
        let answer = guest.http("GET", path, "", "");
        assert_eq!((answer.status(), answer.body()), (404, ""), "{path}");
        assert!(answer.header(VERSION_HEADER).is_some());
    }
    for (method, path, allow) in [
        ("POST", "/v1/health", "GET,HEAD"),
        ("GET", RUN, "POST"),
        ("GET", "/v1/exec/start", "POST"),
        ("PUT", "/v1/exec/e", "GET,HEAD"),
        ("GET", "/v1/exec/e/kill", "POST"),
    ] {
        let answer = guest.http(method, path, &bearer(), "");
        assert_eq!(
            (answer.status(), answer.header("allow")),
            (405, Some(allow)),
            "{path}"
        );
    }
    assert_eq!(
        guest.http("GET", "/v1/exec/a%2Fb", &bearer(), "").status(),
        404
    );
    assert_eq!(
        guest.http("GET", "/v1/exec/%ff", &bearer(), "").status(),
        400
    );
    assert_eq!(
        guest
            .http("GET", "/v1/exec/e/stream?offset=-1", &bearer(), "")
            .status(),
        400
    );
}

#[tokio::test]
async fn garbage_on_the_socket_is_400_and_the_daemon_serves_on() {
    let (guest, client) = Guest::start().await;
    for garbage in [
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}",
        "hello\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
    ] {
        let answer = guest.raw(garbage);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    }
    assert_eq!(run(&client, &command(["true"])).await.code(), Some(0));
}

#[tokio::test]
async fn a_client_that_vanishes_mid_body_disturbs_nobody() {
    let (guest, client) = Guest::start().await;
    for path in ["/v1/exec/start", "/v1/x/exec/run", RUN] {
        let mut stream = guest.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: g\r\n{}content-length: 500\r\n\r\n{{\"exec",
            bearer()
        );
        stream.write_all(head.as_bytes()).unwrap();
        drop(stream);
    }
    assert_eq!(run(&client, &command(["true"])).await.code(), Some(0));
    let health = client.health().await.unwrap();
    assert_eq!((health.execs, health.busy), (1, false));
}

#[tokio::test]
async fn a_connection_stays_in_step_after_refusals_with_bodies() {
    let (guest, _client) = Guest::start().await;
    let mut stream = guest.connect();
    let request = |headers: &str, body: &str| {
        let length = body.len();
        format!(
            "POST /v1/exec/e/ack HTTP/1.1\r\nhost: g\r\n{headers}\
             content-length: {length}\r\n\r\n{body}"
        )
    };
    let mut all = String::new();
    all += &request("", &"x".repeat(1000));
    all += &request(&bearer(), "POST /v1/exec/e/kill HTTP/1.1\r\n\r\n");
    all += "GET /v1/nothing HTTP/1.1\r\nhost: g\r\ncontent-length: 3\r\n\r\nabc";
    all += "GET /v1/health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n";
    stream.write_all(all.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let statuses: Vec<&str> = answers
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|answer| &answer[..3])
        .collect();
    assert_eq!(statuses, ["401", "404", "404", "200"]);
}

#[tokio::test]
async fn a_stalled_unauthorized_upload_is_answered_and_hung_up_on() {
    let (guest, _client) = Guest::start().await;
    let head = "POST /v1/exec/start HTTP/1.1\r\nhost: g\r\n";
    let huge = guest.raw(&format!("{head}content-length: 999999999\r\n\r\n"));
    let stalled = guest.raw(&format!("{head}content-length: 1000\r\n\r\nabc"));
    for answer in [huge, stalled] {
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_over_the_cap_is_413_before_it_is_read() {
    let (guest, _client) = Guest::start_with(&[("AGENTD_MAX_BODY_BYTES", "1000")]).await;
    let head = format!(
        "POST /v1/exec/start HTTP/1.1\r\nhost: g\r\n{}content-length: 1001\r\n\r\n",
        bearer()
    );
    let answer = RawAnswer(guest.raw(&head));
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.body(), "length limit exceeded");
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_five_seconds() {
    let guest = Guest::bare(&[]);
    let mut fresh = guest.connect();
    let mut idle = guest.connect();
    idle.write_all(b"GET /v1/health HTTP/1.1\r\nhost: g\r\n\r\n")
        .unwrap();
    let mut rest = Vec::new();
    fresh.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_and_is_served_when_one_ends() {
    let guest = Guest::bare(&[]);
    // Each has sent half a request, so it is being served.
    let mut held: Vec<_> = (0..128).map(|_| guest.connect()).collect();
    for stream in &mut held {
        stream.write_all(b"GET /v1/health HTTP/1.1\r\n").unwrap();
    }
    let mut waiting = guest.connect();
    waiting
        .write_all(b"GET /v1/health HTTP/1.1\r\nhost: g\r\n\r\n")
        .unwrap();
    waiting
        .set_read_timeout(Some(std::time::Duration::from_millis(300)))
        .unwrap();
    let mut first = [0; 12];
    assert!(
        waiting.read_exact(&mut first).is_err(),
        "served over the limit"
    );
    held.pop();
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    waiting.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
}

#[tokio::test]
async fn sigterm_lets_what_is_under_way_finish() {
    let (guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let text = format!(
        "echo begun; while [ ! -e {} ]; do sleep 0.01; done; echo done",
        go.display()
    );
    let mut stream = client.run(&script(&text)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let pid = nix::unistd::Pid::from_raw(guest.pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    until("no new connection is let in", || {
        std::os::unix::net::UnixStream::connect(guest.socket()).is_err()
    })
    .await;
    std::fs::write(go, "").unwrap();
    assert_eq!(follow(stream).await.stdout, b"done\n");
    until("the daemon has ended", || guest.log().contains("\"ended\"")).await;
}
