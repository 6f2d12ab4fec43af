//! The whole program against a daemon that says what a test wants it to say: what reaches stdout and
//! stderr, and with which code it exits.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod fake;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use fake::Answer;
use fake::FakeDaemon;
use fake::Request;

const ID: &str = "5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11";

/// fluxctl with nothing of the tester's own environment.
fn fluxctl(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fluxctl"));
    command.args(words).env_clear().stdin(Stdio::null());
    command
}

fn run(daemon: &FakeDaemon, words: &[&str]) -> Output {
    fluxctl(words)
        .env("FLUXVM_URL", daemon.url())
        .output()
        .expect("fluxctl runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn exec_passes_bytes_and_the_exit_code_through() {
    let daemon = FakeDaemon::new(|_| {
        Answer::json(
            200,
            r#"{"exit_code":7,"stdout":"\ufffd(","stdout_base64":"wyg=","stderr":"warn","duration_ms":1}"#,
        )
    });
    let output = run(&daemon, &["agent", "exec", ID, "--", "printf", "a b"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"\xc3\x28");
    assert_eq!(text(&output.stderr), "warn");
    let request = &daemon.requests()[0];
    assert_eq!(request.line, format!("POST /v1/agents/sessions/{ID}/exec"));
    assert_eq!(request.body, r#"{"command":"printf 'a b'"}"#);
}

#[test]
fn exec_that_failed_by_itself_exits_with_125_and_says_method_path_status_and_error() {
    let daemon = FakeDaemon::new(|_| {
        Answer::json(
            409,
            r#"{"error":"session is expired","code":"session_not_running"}"#,
        )
    });
    let output = run(&daemon, &["agent", "exec", ID, "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let wanted = format!("fluxctl: POST /v1/agents/sessions/{ID}/exec: 409: session is expired\n");
    assert_eq!(text(&output.stderr), wanted);
}

#[test]
fn the_start_of_an_id_is_enough_when_only_one_fits() {
    let daemon = FakeDaemon::new(|request| match request.line.as_str() {
        "GET /v1/agents/sessions" => Answer::json(
            200,
            &format!(r#"{{"items":[{{"id":"{ID}"}},{{"id":"77"}}]}}"#),
        ),
        _ => Answer::json(200, r#"{"id":"x","new_key":1}"#),
    });
    let output = run(&daemon, &["agent", "get", "5f0c"]);
    assert_eq!(text(&output.stdout), "{\"id\":\"x\",\"new_key\":1}\n");
    assert_eq!(
        daemon.requests()[1].line,
        format!("GET /v1/agents/sessions/{ID}")
    );
    let ambiguous = run(&daemon, &["agent", "get", ""]);
    assert_eq!(ambiguous.status.code(), Some(2));
}

#[test]
fn a_missing_token_is_explained() {
    let daemon =
        FakeDaemon::new(|_| Answer::json(401, r#"{"error":"no token","code":"unauthenticated"}"#));
    let output = run(&daemon, &["agent", "ls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("secrets/admin-token"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_token_of_the_state_folder_is_sent() {
    let daemon = FakeDaemon::new(|_| Answer::json(200, r#"{"items":[]}"#));
    let state = tempfile::tempdir().expect("tempdir");
    let token_file = state.path().join("token");
    fs::write(&token_file, "secret\n").expect("token");
    fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).expect("mode");
    let about = format!(
        r#"{{"url":"{}","token_file":"{}","pid":{}}}"#,
        daemon.url(),
        token_file.display(),
        std::process::id()
    );
    fs::write(state.path().join("daemon.json"), about).expect("daemon.json");
    let output = fluxctl(&["agent", "ls"])
        .env("FLUXVM_STATE_DIR", state.path())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        daemon.requests()[0].header("authorization"),
        Some("Bearer secret")
    );
}

#[test]
fn without_a_daemon_the_exit_code_is_3_and_the_next_step_is_named() {
    let state = tempfile::tempdir().expect("tempdir");
    let output = fluxctl(&["agent", "ls"])
        .env("FLUXVM_STATE_DIR", state.path())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("make run"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn following_goes_on_after_a_break_with_no_event_left_out_or_repeated() {
    let breaks = AtomicU32::new(0);
    let daemon = FakeDaemon::new(
        move |request: &Request| match request.header("last-event-id") {
            // The first connection breaks in the middle of the second event.
            None => Answer::stream(&format!("{}id: 2\nevent: ledger\ndata: {{\"se", event(1))),
            // The second one repeats what was seen, as a careless daemon might.
            // A daemon that was started anew and still reads its ledger.
            Some("1") if breaks.fetch_add(1, Ordering::Relaxed) == 0 => {
                Answer::json(503, r#"{"error":"starting","code":"starting"}"#)
            }
            Some("1") => Answer::stream(&format!("{}{}", event(1), event(2))),
            Some("2") => Answer::stream(&format!(
                "{}event: error\ndata: {{\"error\":\"the session was deleted\",\"code\":\"session_deleted\"}}\n\n",
                event(3)
            )),
            Some(other) => panic!("resumed after {other}"),
        },
    );
    let output = run(&daemon, &["agent", "events", ID, "--follow"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "{\"seq\":1}\n{\"seq\":2}\n{\"seq\":3}\n"
    );
    assert!(text(&output.stderr).contains("the session was deleted"));
}

#[test]
fn following_a_job_waits_for_room_at_its_start_and_for_as_long_as_it_takes_later() {
    /// More in a row than a break may fail.
    const REFUSALS: u32 = 30;
    let asked = AtomicU32::new(0);
    let output_of = |offset: u64, base64: &str| {
        format!("event: output\ndata: {{\"offset\":{offset},\"output_base64\":\"{base64}\"}}\n\n")
    };
    let daemon = FakeDaemon::new(move |request: &Request| {
        let count = asked.fetch_add(1, Ordering::Relaxed);
        match (count, request.header("last-event-id")) {
            (0, _) => Answer::turned_away(1),
            // It breaks after its first byte.
            (1, _) => Answer::stream(&output_of(0, "YQ==")),
            (2..=REFUSALS, Some("1:0")) => Answer::turned_away(0),
            (_, Some("1:0")) => Answer::stream(&format!(
                "{}event: exit\ndata: {{\"exit_code\":7}}\n\n",
                output_of(1, "Yg==")
            )),
            (_, other) => panic!("resumed after {other:?}"),
        }
    });
    let output = run(&daemon, &["agent", "logs", "--follow", ID, ID]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert_eq!(text(&output.stdout), "ab");
    assert_eq!(said.matches("too many streams").count(), 1, "{said}");
}

fn event(seq: u64) -> String {
    format!("id: {seq}\nevent: ledger\ndata: {{\"seq\":{seq}}}\n\n")
}

#[test]
fn events_of_all_pages_are_one_answer() {
    let daemon = FakeDaemon::new(|request| match request.line.rsplit('?').next() {
        Some("after=2") => Answer::json(200, r#"{"ledger":[{"seq":5}],"vm_events":[]}"#),
        Some("after=5") => Answer::json(200, r#"{"ledger":[],"vm_events":[]}"#),
        _ => Answer::json(200, r#"{"ledger":[{"seq":1},{"seq":2}],"vm_events":[]}"#),
    });
    let output = run(&daemon, &["agent", "events", ID]);
    let wanted = "{\"ledger\":[{\"seq\":1},{\"seq\":2},{\"seq\":5}],\"vm_events\":[]}\n";
    assert_eq!(text(&output.stdout), wanted);
}

#[test]
fn a_replay_that_differs_exits_with_1() {
    let daemon = FakeDaemon::new(|_| {
        Answer::json(
            200,
            r#"{"steps":[{"seq":1,"command":"a","recorded_exit_code":0,"exit_code":1,"same_exit_code":false}],"skipped":[]}"#,
        )
    });
    let output = run(&daemon, &["agent", "replay", ID, "--target", ID]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_export_that_breaks_off_leaves_no_file() {
    let daemon = FakeDaemon::new(|_| Answer::broken_off("{\"type\":\"ledger\"}\n"));
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("e.jsonl");
    let output = run(
        &daemon,
        &[
            "agent",
            "export",
            ID,
            "--out",
            file.to_str().expect("a path"),
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 0);
}

#[test]
fn an_export_is_written_as_it_came() {
    let daemon = FakeDaemon::new(|_| Answer::stream("{\"type\":\"ledger\"}\n{}\n"));
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("e.jsonl");
    let output = run(
        &daemon,
        &[
            "agent",
            "export",
            ID,
            "--out",
            file.to_str().expect("a path"),
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        fs::read(&file).expect("written"),
        b"{\"type\":\"ledger\"}\n{}\n"
    );
    let piped = run(&daemon, &["agent", "export", ID]);
    assert_eq!(piped.stdout, b"{\"type\":\"ledger\"}\n{}\n");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let lines = "{}\n".repeat(1_000_000);
    let daemon = FakeDaemon::new(move |_| Answer::stream(&lines));
    let mut child = fluxctl(&["agent", "export", ID])
        .env("FLUXVM_URL", daemon.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fluxctl runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn verify_needs_no_daemon_and_tells_a_bad_ledger_from_a_bad_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("e.jsonl");
    fs::write(&file, "{}\n").expect("written");
    let verify = |path: &std::path::Path| {
        fluxctl(&["ledger", "verify", path.to_str().expect("a path")])
            .output()
            .expect("runs")
    };
    let broken = verify(&file);
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stdout).contains("\"ok\":false"));
    assert_eq!(verify(&folder.path().join("absent")).status.code(), Some(2));
    assert_eq!(verify(folder.path()).status.code(), Some(2));
}

#[test]
fn verify_takes_a_ledger_that_nobody_signed_only_where_it_is_told_to() {
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../eventstore/tests/golden/format-1.jsonl"
    );
    let verify = |more: &[&str]| {
        let words = [&["ledger", "verify", golden], more].concat();
        fluxctl(&words).output().expect("runs")
    };
    let refused = verify(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stdout).contains("\"code\":\"unsigned\""));
    let taken = verify(&["--allow-unsigned"]);
    assert_eq!(taken.status.code(), Some(0));
    assert!(text(&taken.stdout).contains("\"verdict\":\"unsigned\""));
    let said = text(&verify(&["--allow-unsigned", "--table"]).stdout);
    assert!(
        said.contains("UNSIGNED: nothing binds this to the ledger"),
        "{said}"
    );
    assert!(!said.contains("OK"), "{said}");
    assert_eq!(
        verify(&["--consistency", golden]).status.code(),
        Some(2),
        "no proof"
    );
    let proof = fluxctl(&["ledger", "verify-proof", golden]).output();
    assert_eq!(
        proof.expect("runs").status.code(),
        Some(2),
        "whose signature?"
    );
}
