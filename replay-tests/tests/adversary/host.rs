//! At the host from inside: what each attempt is after is put on the host by the test, which can reach it.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::marker;

use crate::row::Layer;
use crate::row::Layer::Mask;
use crate::row::Layer::Namespace;

#[test]
fn nothing_of_the_host_is_there_but_what_anybody_may_read() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain");
    fs::write(&plain, "anybody may read this").expect("a file");
    let shared = tempfile::Builder::new()
        .tempfile_in("/dev/shm")
        .expect("a file");
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let name = marker();
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let _abstract = UnixListener::bind_addr(&address).expect("a socket");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = tcp.local_addr().expect("its address").port();
    let pid = daemon.pid();
    let token = daemon.token_file();

    // The control of each: from here it can be reached.
    assert!(fs::read(&plain).is_ok() && fs::read(shared.path()).is_ok());
    assert!(fs::read(token).is_ok_and(|secret| !secret.is_empty()));
    assert!(UnixStream::connect(&socket).is_ok());
    assert!(UnixStream::connect_addr(&address).is_ok());
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(Path::new(&format!("/proc/{pid}/root")).exists());

    let connect = |family: u32, to: &str| {
        format!("python3 -c 'import socket; socket.socket({family}).connect({to})'")
    };
    let path = |path: &Path| path.display().to_string();
    let attempts: [(&str, Layer, String); 12] = [
        (
            "a file in the scratch folder",
            Mask,
            format!("cat {}", path(&plain)),
        ),
        (
            "a file in shared memory",
            Namespace,
            format!("cat {}", path(shared.path())),
        ),
        ("the state", Mask, format!("ls {}", path(&state.root()))),
        ("the admin token", Mask, format!("cat {}", path(token))),
        (
            "a socket in a folder",
            Mask,
            connect(1, &format!("\"{}\"", path(&socket))),
        ),
        (
            "an abstract socket",
            Namespace,
            connect(1, &format!("\"\\0{name}\"")),
        ),
        (
            "a port of loopback",
            Namespace,
            connect(2, &format!("(\"127.0.0.1\",{port})")),
        ),
        ("the daemon's port", Namespace, {
            let port = api.url().rsplit(':').next().expect("a port");
            connect(2, &format!("(\"127.0.0.1\",{port})"))
        }),
        ("the daemon's process", Namespace, format!("kill -0 {pid}")),
        (
            "the daemon's root",
            Namespace,
            format!("ls /proc/{pid}/root"),
        ),
        (
            "the state through one's own root",
            Mask,
            format!("ls /proc/self/root{}", path(&state.root())),
        ),
        (
            "the state above one's own root",
            Mask,
            format!("cd / && ls ../../../..{}", path(&state.root())),
        ),
    ];
    let mut open = Vec::new();
    for (name, layer, line) in &attempts {
        let answer = api.exec(&id, line);
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        if answer.exit_code == 0 || !layer.stopped(&said) {
            open.push(format!("{name} ({layer:?}): {} {said}", answer.exit_code));
        }
    }
    assert!(open.is_empty(), "{}", open.join("\n"));

    // What is written stays inside, whatever it is called.
    let new = format!("/usr/local/{name}");
    let written = api.exec(
        &id,
        &format!(
            "echo x >{new}; mkdir -p {0} && echo x >{0}/plain",
            path(folder.path())
        ),
    );
    let mut text = String::new();
    let mut file = fs::File::open(&plain).expect("the host's file");
    file.read_to_string(&mut text).expect("text");
    assert_eq!(text, "anybody may read this", "{:?}", written.json);
    assert!(!Path::new(&new).exists());
    assert_eq!(api.exec(&id, "echo on").text(), "on\n");
    assert_eq!(api.get("/healthz").status, 200);
}
