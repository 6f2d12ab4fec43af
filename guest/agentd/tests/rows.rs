//! Rows of the contract that fit nowhere else, and the table that maps rows to tests.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing
)]

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use agentd_client::protocol::AgentToken;
use agentd_client::protocol::RunHookPayload;
use bytes::Bytes;
use futures_util::stream;
use nix::sys::signal::Signal;
use support::*;

#[tokio::test]
async fn a_repeated_start_is_still_checked_for_its_shape() {
    let (guest, client) = Guest::start().await;
    let known = command(["true"]);
    run(&client, &known).await;
    let id = known.exec_id.as_str();
    for (body, status) in [
        (format!(r#"{{"exec_id":"{id}","command":["other"]}}"#), 200),
        (format!(r#"{{"exec_id":"{id}","command":"other"}}"#), 400),
        (format!(r#"{{"exec_id":"{id}","command":[]}}"#), 400),
    ] {
        let answer = guest.http("POST", "/v1/exec/start", &bearer(), &body);
        assert_eq!(answer.status(), status, "{body}");
        if status == 200 {
            let expected = format!(r#"{{"exec_id":"{id}","phase":"running"}}"#);
            assert_eq!(answer.body(), expected);
        }
    }
}

/// Whether somebody listens on a port of all addresses, as the kernel tells it to a process.
fn listens(pid: i32, port: u16) -> bool {
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let place = format!("00000000:{port:04X} 00000000:0000 0A");
    sockets.lines().any(|line| line.contains(&place))
}

#[tokio::test]
async fn without_a_socket_it_listens_on_its_port_and_either_signal_ends_it() {
    // A network of its own, so that no port can be taken.
    let alone = ["unshare", "--user", "--map-root-user", "--net"];
    let mut trial = std::process::Command::new(alone[0]);
    if !trial
        .args(&alone[1..])
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("SKIPPED: no network namespaces here, so the daemon's own port is NOT tested");
        return;
    }
    let starter = [&alone[..], &["env", "-u", "AGENTD_LISTEN_FD"]].concat();
    for (variables, port, signal) in [
        (&[][..], 9000, Signal::SIGINT),
        (&[("AGENTD_PORT", "9123")], 9123, Signal::SIGTERM),
        (&[("AGENTD_PORT", "many")], 9000, Signal::SIGINT),
    ] {
        let guest = Guest::under(&starter, variables);
        until("it listens", || listens(guest.pid(), port)).await;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(guest.pid()), signal).unwrap();
        until("it ends", || guest.log().contains("\"ended\"")).await;
    }
}

#[tokio::test]
async fn the_log_is_json_and_holds_no_secret() {
    let guest = Guest::bare(&[("AGENTD_LOG", "trace"), ("AGENTD_EXEC_TTL_SECS", "never")]);
    let client = guest.client(TOKEN);
    let mut launch = RunHookPayload::new(AgentToken::new(TOKEN));
    launch
        .env
        .insert("NAME".into(), "value-not-to-be-seen".into());
    client.run_hook(&launch).await.unwrap();
    run(&client, &command(["env"])).await;
    guest.http(
        "POST",
        "/v1/exec/start",
        "authorization: Bearer wrong-secret\r\n",
        "{}",
    );
    let log = guest.log();
    assert!(log.contains("AGENTD_EXEC_TTL_SECS"));
    for line in log.lines() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(parsed.is_ok(), "{line}");
    }
    for secret in [TOKEN, "value-not-to-be-seen", "wrong-secret"] {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn the_images_variables_come_only_when_asked_for() {
    let variables = [("IMAGE", "yes"), ("AGENTD_LOG", "info")];
    let (_guest, client) = Guest::start_with(&variables).await;
    let mut request = command(["/usr/bin/env"]);
    let without = String::from_utf8(run(&client, &request).await.stdout).unwrap();
    assert!(!without.contains("IMAGE="), "{without}");
    request = command(["/usr/bin/env"]);
    request.inherit_image_env = true;
    let with = String::from_utf8(run(&client, &request).await.stdout).unwrap();
    assert!(with.lines().any(|line| line == "IMAGE=yes"), "{with}");
    assert!(!with.contains("AGENTD_") && !with.contains(TOKEN), "{with}");
    assert!(client.health().await.unwrap().image_env_keys > Some(0));
}

#[tokio::test]
async fn uploads_belong_to_the_daemon_whatever_the_default_user_is() {
    let (guest, client) = Guest::start_with(&[("AGENTD_DEFAULT_USER", "nobody")]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/file");
    let content = stream::iter([Ok(Bytes::from_static(b"x"))]);
    client
        .write_file(path.to_str().unwrap(), None, content)
        .await
        .unwrap();
    let own = folder.path().metadata().unwrap().uid();
    for made in [path.as_path(), path.parent().unwrap()] {
        assert_eq!(made.metadata().unwrap().uid(), own);
    }
    let head = guest.http("GET", "/v1/health", "", "");
    assert_eq!(head.header("microvms-default-user-configured"), Some("1"));
}

fn names_of_tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names_of_tests(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let after = text.split("fn ").skip(1);
            found.extend(after.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
}

#[test]
fn the_table_of_rows_names_tests_that_exist() {
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = guest.parent().unwrap().join("docs/GUEST-PROTOCOL.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = page.split_once("## From row to test").unwrap().1;
    let mut known = BTreeSet::new();
    names_of_tests(guest, &mut known);
    names_of_tests(&guest.parent().unwrap().join("vmm/tests"), &mut known);
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .collect();
    assert!(rows.len() > 80, "{}", rows.len());
    for row in rows {
        let named = row.rsplit_once(" | ").unwrap().1;
        for name in named.split('`').skip(1).step_by(2) {
            assert!(known.contains(name), "{name} in {row}");
        }
    }
}
