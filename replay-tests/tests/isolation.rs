//! What runs in a session sees of the machine what any ordinary user may read, and of fluxvm
//! nothing.

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;

#[test]
fn a_session_sees_neither_the_daemons_state_nor_its_secrets() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let root = state.root();
    let listed = api.exec(&id, &format!("ls -A {} 2>/dev/null", root.display()));
    assert_eq!(listed.text(), "", "the state folder");
    let token = daemon.token_file().display().to_string();
    assert_ne!(
        api.exec(&id, &format!("cat {token}")).exit_code,
        0,
        "the admin token"
    );
    let secret = api.token().expect("a token");
    let searched = api.exec(
        &id,
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/mounts | tr '\\0' '\\n'",
    );
    assert!(!searched.text().contains(secret), "nor anywhere in sight");
    assert!(
        !searched.text().contains(root.to_str().expect("a path")),
        "{}",
        searched.text()
    );
    assert_ne!(
        api.exec(&id, "cat /etc/shadow").exit_code,
        0,
        "what only root may read"
    );
}

#[test]
fn a_session_sees_no_process_no_network_and_no_files_of_others() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let (one, other) = (api.create(), api.create());
    let _ = api.exec(&other, "echo secret >/workspace/file; sleep 300 & :");
    let names = api.exec(&one, "cat /proc/[0-9]*/comm");
    assert!(
        !names.text().contains("fluxvmd") && !names.text().contains("sleep"),
        "{}",
        names.text()
    );
    assert_eq!(
        api.exec(&one, "ls -A /workspace /tmp").text(),
        "/tmp:\n\n/workspace:\n"
    );
    let links = api.exec(&one, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert_eq!(links.text(), "lo\n", "loopback only");
    let port = api.url().rsplit(':').next().expect("a port").to_owned();
    let dial = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let dialled = api.exec(&one, &format!("bash -c '{dial}'"));
    assert_ne!(dialled.exit_code, 0, "the host's loopback is another one");
}

#[test]
fn what_a_session_writes_is_its_own_and_goes_with_it() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let (one, other) = (api.create(), api.create());
    let write = "echo changed >/etc/hostname && echo new >/usr/local/new && cat /etc/hostname";
    let written = api.exec(&one, write);
    if api.session(&one)["capabilities"]["host_root_writable"] == true {
        assert_eq!(
            written.text(),
            "changed\n",
            "root inside may change the system it sees"
        );
    }
    assert_ne!(
        std::fs::read_to_string("/etc/hostname").unwrap_or_default(),
        "changed\n"
    );
    assert!(
        !std::path::Path::new("/usr/local/new").exists(),
        "not the machine's"
    );
    assert_ne!(
        api.exec(&other, "cat /usr/local/new").exit_code,
        0,
        "nor another session's"
    );
}
