//! Starting, asking, acknowledging, killing.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::time::Duration;
use std::time::Instant;

use agentd_client::ClientError;
use agentd_client::protocol::ExecId;
use agentd_client::protocol::ExecState;
use agentd_client::protocol::Phase;
use agentd_client::protocol::PrincipalRef;
use agentd_client::protocol::ShellChoice;
use agentd_client::protocol::StartRequest;
use futures_util::future::join_all;
use support::*;

async fn exited(client: &agentd_client::AgentdClient, id: &ExecId) -> ExecState {
    let started = Instant::now();
    loop {
        let state = client.poll(id).await.unwrap();
        if state.phase != Phase::Running {
            return state;
        }
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_start_is_polled_acknowledged_once_and_keeps_nothing() {
    let (_guest, client) = Guest::start().await;
    let request = script("echo out; echo err >&2; exit 3");
    let id = &request.exec_id;
    let started = client.start(&request).await.unwrap();
    assert_eq!((&started.exec_id, started.phase), (id, Phase::Running));
    let state = exited(&client, id).await;
    let outcome = state.outcome.as_ref().unwrap();
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!((outcome.exit_code, outcome.signal), (Some(3), None));
    assert!(!outcome.truncated && !outcome.timed_out && !outcome.writers_may_be_alive);

    let acked = client.ack(id).await.unwrap();
    assert_eq!((acked.phase, acked.outcome), (Phase::Acked, state.outcome));
    assert_eq!(client.poll(id).await.unwrap().outcome, None);
    let again = client.ack(id).await.unwrap_err();
    assert_eq!(refusal(&again), (409, Some("already_acked")));
    // A start of a known id says so for ever, and the stream replays until collection.
    assert_eq!(client.start(&request).await.unwrap().phase, Phase::Running);
    let told = follow(client.stream(id, 0).await.unwrap()).await;
    assert_eq!(
        (told.stdout.as_slice(), told.code()),
        (&b"out\n"[..], Some(3))
    );
}

#[tokio::test]
async fn a_release_is_an_acknowledgement_without_the_result() {
    let (guest, client) = Guest::start().await;
    let request = script("echo out");
    run(&client, &request).await;
    let path = format!("/v1/exec/{}/ack?x_outcome=none", request.exec_id);
    let answer = guest.http("POST", &path, &bearer(), "");
    assert_eq!(
        answer.body(),
        format!(r#"{{"exec_id":"{}","phase":"acked"}}"#, request.exec_id)
    );
    let again = client.release(&request.exec_id).await.unwrap_err();
    assert_eq!(refusal(&again), (409, Some("already_acked")));
}

#[tokio::test]
async fn an_acknowledgement_before_the_end_is_refused() {
    let (_guest, client) = Guest::start().await;
    let request = command(["sleep", "300"]);
    client.start(&request).await.unwrap();
    let early = client.ack(&request.exec_id).await.unwrap_err();
    assert_eq!(refusal(&early), (409, Some("still_running")));
    assert!(client.health().await.unwrap().busy);
    assert!(client.kill(&request.exec_id).await.unwrap().killed);
    let outcome = exited(&client, &request.exec_id).await.outcome.unwrap();
    assert_eq!((outcome.exit_code, outcome.signal), (None, Some(15)));
    assert!(!client.kill(&request.exec_id).await.unwrap().killed);
    assert!(!client.health().await.unwrap().busy);
    assert!(client.ack(&request.exec_id).await.is_ok());
}

#[tokio::test]
async fn an_unknown_id_is_404_with_the_id_as_the_detail() {
    let (_guest, client) = Guest::start().await;
    let id = ExecId::new("no/such exec?").unwrap();
    let errors = [
        client.poll(&id).await.unwrap_err(),
        client.ack(&id).await.unwrap_err(),
        client.kill(&id).await.unwrap_err(),
        client.stream(&id, 0).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(refusal(&error), (404, Some("unknown_exec")));
        let ClientError::Refused { detail, .. } = error else {
            unreachable!()
        };
        assert_eq!(detail, id.as_str());
    }
}

#[tokio::test]
async fn one_id_is_one_process_however_often_and_concurrently_it_is_started() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let request = script(&format!(
        "echo $$ >> {}/pids; echo once",
        folder.path().display()
    ));
    let starts = join_all((0..10).map(|_| client.start(&request)));
    let runs = join_all((0..10).map(|_| async { run(&client, &request).await }));
    let (starts, told) = tokio::join!(starts, runs);
    assert!(starts.iter().all(Result::is_ok));
    for told in told {
        assert_eq!(
            (told.stdout.as_slice(), told.code()),
            (&b"once\n"[..], Some(0))
        );
    }
    let pids = std::fs::read_to_string(folder.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 1);
    assert_eq!(client.health().await.unwrap().execs, 1);

    // A retry's fields are ignored, but a retry that is no request at all is still refused.
    let mut retry = request.clone();
    retry.command = vec!["exit 9".into()];
    assert_eq!(run(&client, &retry).await.code(), Some(0));
    retry.timeout_sec = Some(-1.0);
    let malformed = client.start(&retry).await.unwrap_err();
    assert_eq!(refusal(&malformed), (400, Some("malformed_request")));
}

#[tokio::test]
async fn what_cannot_be_started_is_a_typed_refusal_and_leaves_nothing() {
    let (guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "text").unwrap();
    let long = "x".repeat(200 * 1024);
    let mut bad_cwd = command(["true"]);
    bad_cwd.cwd = Some("/no/such/folder".into());
    let mut file_cwd = command(["true"]);
    file_cwd.cwd = Some(plain.display().to_string());
    let mut much_env = command(["true"]);
    much_env.env = (0..10_000)
        .map(|i| (format!("V{i}"), "v".repeat(1000)))
        .collect();
    let mut nul_env = command(["true"]);
    nul_env.env.insert("A".into(), "a\0b".into());
    let spawn_failures = [
        command(["no-such-program-anywhere"]),
        command(["/no/such/program"]),
        command([""]),
        command(["/tmp"]),
        command([plain.to_str().unwrap()]),
        command(["echo", &long]),
        command(["echo", "a\0b"]),
        bad_cwd,
        file_cwd,
        much_env,
        nul_env,
    ];
    for request in &spawn_failures {
        let what = request
            .command
            .first()
            .map(|word| word.chars().take(20).collect::<String>());
        let start = client.start(request).await.unwrap_err();
        assert_eq!(refusal(&start), (500, Some("spawn_failed")), "{what:?}");
        let run = client.run(request).await.unwrap_err();
        assert_eq!(refusal(&run), (500, Some("spawn_failed")), "{what:?}");
        let poll = client.poll(&request.exec_id).await.unwrap_err();
        assert_eq!(refusal(&poll), (404, Some("unknown_exec")), "{what:?}");
    }
    assert_eq!(client.health().await.unwrap().execs, 0);
    until("nothing is left", || descendants(guest.pid()).is_empty()).await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_a_process_exists() {
    let (_guest, client) = Guest::start().await;
    let changed = |change: &dyn Fn(&mut StartRequest)| {
        let mut request = command(["true"]);
        change(&mut request);
        request
    };
    let name = |text: &str| Some(PrincipalRef::Name(text.into()));
    for (request, slug) in [
        (changed(&|r| r.command.clear()), "malformed_request"),
        (changed(&|r| r.timeout_sec = Some(0.0)), "malformed_request"),
        (changed(&|r| r.stdin = true), "malformed_request"),
        (
            changed(&|r| drop(r.env.insert("A=B".into(), String::new()))),
            "malformed_request",
        ),
        (
            changed(&|r| r.shell = ShellChoice::Named(String::new())),
            "malformed_request",
        ),
        (
            changed(&|r| r.user = name("nobody-by-this-name")),
            "unknown_user",
        ),
        (
            changed(&|r| r.group = name("no-group-by-this-name")),
            "unknown_group",
        ),
        (
            changed(&|r| r.shell = ShellChoice::Named("no-shell".into())),
            "unknown_shell",
        ),
        (
            changed(&|r| r.poweroff_on_exit = true),
            "poweroff_unavailable",
        ),
    ] {
        let error = client.start(&request).await.unwrap_err();
        assert_eq!(refusal(&error), (400, Some(slug)), "{error}");
        assert_eq!(
            refusal(&client.poll(&request.exec_id).await.unwrap_err()).0,
            404
        );
    }
}

#[tokio::test]
async fn odd_but_valid_commands_work() {
    let (_guest, client) = Guest::start().await;
    let mut big_env = script("env | wc -l");
    big_env.env = (0..10_000).map(|i| (format!("V{i}"), "v".into())).collect();
    let told = run(&client, &big_env).await;
    let lines: usize = String::from_utf8(told.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(lines >= 10_000);
    let told = run(&client, &command(["printf", "%s", "a\nb\u{20ac}"])).await;
    assert_eq!(told.stdout, "a\nb\u{20ac}".as_bytes());
    let mut empty = command([]);
    empty.shell = ShellChoice::Flag(true);
    assert_eq!(run(&client, &empty).await.code(), Some(0));
    let mut named = command(["echo $0"]);
    named.shell = ShellChoice::Named("sh".into());
    assert!(run(&client, &named).await.stdout.ends_with(b"/sh\n"));
    let mut forever = command(["true"]);
    forever.timeout_sec = Some(1e300);
    assert_eq!(run(&client, &forever).await.code(), Some(0));
}

#[tokio::test]
async fn an_executable_text_without_an_interpreter_line_runs_in_sh() {
    use std::os::unix::fs::PermissionsExt;
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("tool");
    std::fs::write(&program, "echo \"$1 from $0\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut request = command(["tool", "hi"]);
    request.env.insert(
        "PATH".into(),
        format!("/nowhere:{}:/usr/bin", folder.path().display()),
    );
    let told = run(&client, &request).await;
    assert_eq!(
        told.stdout,
        format!("hi from {}\n", program.display()).as_bytes()
    );
}

#[tokio::test]
async fn shells_answer_as_shells_do() {
    let (_guest, client) = Guest::start().await;
    for (text, code, stdout) in [
        ("cat <<'E'\nhere\nE", 0, "here\n"),
        ("exit 7", 7, ""),
        ("exec false", 1, ""),
        ("cat", 0, ""),
        ("set -e; false; echo no", 1, ""),
        ("unset PATH; echo still", 0, "still\n"),
        ("no-such-program-anywhere", 127, ""),
        ("echo ok", 0, "ok\n"),
    ] {
        let asked = Instant::now();
        let told = run(&client, &script(text)).await;
        assert_eq!(
            (told.code(), told.stdout.as_slice()),
            (Some(code), stdout.as_bytes()),
            "{text}"
        );
        assert!(asked.elapsed() < Duration::from_secs(2), "{text}");
    }
}

#[tokio::test]
async fn the_child_has_exactly_the_environment_and_folder_that_it_was_given() {
    let (guest, client) = Guest::start_with(&[("IMAGE_VARIABLE", "image")]).await;
    let mut request = command(["/usr/bin/env"]);
    request.env.insert("GIVEN".into(), "1".into());
    let told = run(&client, &request).await;
    let text = String::from_utf8(told.stdout).unwrap();
    let mut names: Vec<&str> = text
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["GIVEN", "HOME", "LOGNAME", "USER"]);

    let mut request = command(["/usr/bin/env"]);
    request.inherit_image_env = true;
    let text = String::from_utf8(run(&client, &request).await.stdout).unwrap();
    assert!(
        text.contains("IMAGE_VARIABLE=image\n") && !text.contains("AGENTD_"),
        "{text}"
    );

    let own = std::fs::read_link(format!("/proc/{}/cwd", guest.pid())).unwrap();
    let told = run(&client, &command(["/bin/pwd"])).await;
    assert_eq!(
        String::from_utf8(told.stdout).unwrap().trim(),
        own.display().to_string()
    );
    let mut elsewhere = command(["/bin/pwd"]);
    elsewhere.cwd = Some("/usr".into());
    assert_eq!(run(&client, &elsewhere).await.stdout, b"/usr\n");
}

#[tokio::test]
async fn a_user_is_taken_with_its_group_and_without_the_daemons_others() {
    let (_guest, client) = Guest::start().await;
    if !nix::unistd::geteuid().is_root() {
        // Only root can become somebody else; what others get is a typed refusal.
        let mut request = command(["id"]);
        request.user = Some(PrincipalRef::Id(4242));
        let error = client.start(&request).await.unwrap_err();
        assert_eq!(refusal(&error), (500, Some("spawn_failed")));
        return;
    }
    let mut request = script("id -u; id -g; id -G; echo $HOME");
    request.user = Some(PrincipalRef::Id(4242));
    request.group = Some(PrincipalRef::Id(4343));
    let told = run(&client, &request).await;
    assert_eq!(
        String::from_utf8_lossy(&told.stdout),
        "4242\n4343\n4343\n\n"
    );
    let mut request = script("id -u; id -un; echo $USER");
    request.user = Some(PrincipalRef::Name("nobody".into()));
    let told = run(&client, &request).await;
    assert_eq!(
        String::from_utf8_lossy(&told.stdout),
        "65534\nnobody\nnobody\n"
    );
}

#[tokio::test]
async fn a_thousand_execs_lose_no_result_blocking_or_streamed() {
    let (_guest, client) = Guest::start().await;
    let one = |index: usize| {
        let client = client.clone();
        async move {
            let request = command(["true"]);
            if index.is_multiple_of(2) {
                assert_eq!(run(&client, &request).await.code(), Some(0));
            } else {
                client.start(&request).await.unwrap();
                // Never 404 right after the start.
                let state = exited(&client, &request.exec_id).await;
                assert_eq!(state.outcome.unwrap().exit_code, Some(0));
            }
            client.ack(&request.exec_id).await.unwrap();
        }
    };
    for batch in 0..50 {
        join_all((batch * 20..batch * 20 + 20).map(one)).await;
    }
    let health = client.health().await.unwrap();
    assert_eq!((health.execs, health.busy), (1000, false));
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_answer_leaves_one_whole_exec() {
    let (_guest, client) = Guest::start().await;
    let request = script("echo whole");
    // Polled once: the request is on its way, and then nobody waits for it.
    let _ = tokio::time::timeout(Duration::from_millis(1), client.start(&request)).await;
    client.start(&request).await.unwrap();
    let outcome = exited(&client, &request.exec_id).await.outcome.unwrap();
    assert_eq!(
        (outcome.stdout.as_str(), outcome.exit_code),
        ("whole\n", Some(0))
    );
    assert_eq!(client.health().await.unwrap().execs, 1);
}
