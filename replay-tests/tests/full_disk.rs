//! A disk without room: new work is refused while there is still room to record what runs, whoever
//! fills the disk is ended, and nothing that was ever answered is lost.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::thread;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::is_root_or_says_so;
use fluxvm_replay_tests::open_offline;
use nix::mount::MntFlags;
use nix::mount::MsFlags;
use nix::mount::mount;
use nix::mount::umount2;
use nix::sched::CloneFlags;
use nix::sched::unshare;
use serde_json::json;

/// A file system of its own for the state, seen by this thread and the daemons that it starts only.
/// It goes with the value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mounted(folder: &Path, mebibytes: u32) -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private mounts");
        fs::create_dir_all(folder).expect("a mount point");
        let size = format!("size={mebibytes}m,mode=0700");
        let (tmpfs, none) = (Some("tmpfs"), MsFlags::empty());
        mount(tmpfs, folder, tmpfs, none, Some(size.as_str())).expect("mounted");
        Self(folder.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What still uses it when a test has failed keeps it until it ends.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Writes until there is no room.
fn fill(file: &Path) {
    let mut file = fs::File::create(file).expect("a file");
    for chunk in [vec![0; 1024 * 1024], vec![0; 4096]] {
        while file.write_all(&chunk).is_ok() {}
    }
}

#[test]
fn a_full_disk_is_a_typed_refusal_and_no_end_and_loses_nothing_that_was_acknowledged() {
    if !is_root_or_says_so("mount a small file system") {
        return;
    }
    let state = State::new();
    let _disk = SmallDisk::mounted(&state.root(), 160);
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    assert_eq!(api.exec(&id, "mkfifo go").exit_code, 0);
    let acknowledged = api.exec(&id, "echo before").seq;
    let ballast = state.root().join("ballast");
    eventually("there is ballast", || ballast.exists().then_some(()));
    let mut stream = api.stream(&id, "", None);
    let running = thread::spawn({
        let (api, id) = (api.clone(), id.clone());
        move || api.exec(&id, "echo began; read word <go; echo $word")
    });
    stream.until("exec.started");
    let filler = state.root().join("filler");
    fill(&filler);
    let new = api.try_exec(&id, &json!({"command": "echo more"}));
    assert_eq!(new.error(507), "insufficient_storage");
    let new = api.post(SESSIONS, &json!({"agent": "a"}));
    assert_eq!(new.error(507), "insufficient_storage");
    eventually("the ballast is given up", || {
        (!ballast.exists()).then_some(())
    });
    // What runs comes to its end, and that is recorded. Who feeds it is on the host: nobody may
    // run a new command now.
    let fifo = format!("/proc/{}/root/workspace/go", daemon.guest_pid(&id));
    fs::write(fifo, "on\n").expect("the command reads");
    let answer = running.join().expect("an answer");
    assert_eq!(answer.text(), "began\non\n");

    fs::remove_file(&filler).expect("room again");
    assert_eq!(
        api.exec(&id, "echo after").text(),
        "after\n",
        "nothing was restarted"
    );
    let events = api.events(&id);
    for seq in [acknowledged, answer.seq] {
        assert!(events.iter().any(|event| event["seq"] == seq), "{seq}");
    }
    eventually("there is ballast again", || ballast.exists().then_some(()));
    drop(daemon);
    assert!(open_offline(&state.root()).len() > events.len());
}

#[test]
fn a_session_that_fills_the_disk_loses_its_sandbox_and_nobody_else_does() {
    if !is_root_or_says_so("mount a small file system") {
        return;
    }
    let state = State::new();
    let _disk = SmallDisk::mounted(&state.root(), 256);
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let (good, bad) = (api.create(), api.create());
    let mut stream = api.stream(&bad, "", None);
    // As fast as an ordinary download, into many files.
    let line = "i=0; while :; do i=$((i+1)); head -c 262144 /dev/zero >f$i; sleep 0.01; done";
    let running = thread::spawn({
        let (api, id) = (api.clone(), bad.clone());
        move || api.try_exec(&id, &json!({"command": line, "timeout_seconds": 120}))
    });
    stream.until("sandbox.gone");
    let answer = running.join().expect("an answer");
    assert_eq!(answer.error(409), "sandbox_gone");
    let record = api.session(&bad);
    assert_eq!(record["status"], "gone", "{record}");
    assert!(
        record["status_reason"]
            .as_str()
            .is_some_and(|why| why.contains("disk")),
        "{record}"
    );
    eventually("its room is given back", || {
        let answer = api.try_exec(&good, &json!({"command": "echo on"}));
        (answer.status == 200).then_some(())
    });
    assert_eq!(api.session(&good)["status"], "running");
    drop(daemon);
    assert!(!open_offline(&state.root()).is_empty());
}
