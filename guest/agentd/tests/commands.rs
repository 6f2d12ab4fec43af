//! What can be run, as whom, with what, and what cannot.

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

use agentd_client::protocol::PrincipalRef;
use agentd_client::protocol::ShellChoice;
use agentd_client::protocol::StartRequest;
use support::*;

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
