//! The verbs on files, uploads and git of fluxctl, against the real daemon.

use std::fs;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;

#[test]
fn files_go_in_are_looked_at_come_out_and_are_removed() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (ctl, id) = (daemon.ctl(), daemon.api().create());
    let local = |name: &str| state.root().join(name).display().to_string();
    fs::write(local("in"), b"\x00\xffbytes\n").expect("written");

    let put = [
        "agent",
        "put",
        &id,
        &local("in"),
        "/workspace/d/a",
        "--mode",
        "750",
    ];
    assert_eq!(ctl.run(&put).json(0)["size"], 8);
    let shown = ctl.run(&["agent", "cat", &id, "/workspace/d/a"]);
    assert_eq!(
        (shown.code, shown.stdout.as_slice()),
        (0, &b"\x00\xffbytes\n"[..])
    );
    let mode = daemon.api().exec(&id, "stat -c %a d/a");
    assert_eq!((mode.exit_code, mode.stdout.as_slice()), (0, &b"750\n"[..]));
    let listed = ctl.run(&["--table", "agent", "files", &id, "/workspace/d"]);
    assert!(
        listed.code == 0 && listed.text().contains('a'),
        "{}",
        listed.errors()
    );

    // Three parts, the last one short.
    let large: Vec<u8> = (0..9_000_000_u32).map(|it| (it % 251) as u8).collect();
    fs::write(local("large"), &large).expect("written");
    let upload = ["agent", "upload", &id, &local("large"), "/workspace/large"];
    let uploaded = ctl.run(&upload);
    assert_eq!(uploaded.code, 0, "{}", uploaded.errors());
    let download = ["agent", "download", &id, "/workspace/large", &local("back")];
    let downloaded = ctl.run(&download);
    assert_eq!(downloaded.code, 0, "{}", downloaded.errors());
    assert!(
        fs::read(local("back")).expect("read") == large,
        "the same bytes"
    );

    let removed = ctl.run(&["agent", "rm-file", &id, "/workspace/d", "-r"]);
    assert_eq!(removed.code, 0, "{}", removed.errors());
    let missing = ctl.run(&["agent", "cat", &id, "/workspace/d/a"]);
    assert_eq!(
        (missing.code, missing.stdout.len()),
        (1, 0),
        "{}",
        missing.errors()
    );
    let timeline = ctl.run(&["--table", "agent", "timeline", &id]).text();
    for kind in ["file.write", "file.upload", "file.delete"] {
        assert!(timeline.contains(kind), "{kind}: {timeline}");
    }
    daemon.remove_everything();
}

#[test]
fn git_is_looked_at_committed_to_and_branched() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (ctl, id) = (daemon.ctl(), daemon.api().create());
    let made = daemon
        .api()
        .exec(&id, "git init -q -b main . && echo one >a");
    assert_eq!(made.exit_code, 0, "{:?}", made.stderr);
    let git = |words: &[&str]| ctl.run(&[&["agent", "git", &id], words].concat());

    assert_eq!(git(&["status"]).json(0)["changes"][0]["path"], "a");
    assert_eq!(git(&["commit", "first"]).code, 0);
    assert_eq!(git(&["branch", "try/1"]).code, 0);
    assert_eq!(git(&["status"]).json(0)["branch"], "try/1");
    let log = git(&["log", "-n", "5"]).json(0);
    assert_eq!(log["commits"].as_array().map(Vec::len), Some(1), "{log}");
    let nothing = git(&["commit", "second"]);
    assert!(
        nothing.code == 1 && !nothing.errors().is_empty(),
        "{}",
        nothing.errors()
    );
    daemon.remove_everything();
}
