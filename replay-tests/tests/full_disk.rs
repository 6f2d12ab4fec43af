//! A disk without room: what cannot be recorded is refused, the daemon ends rather than go on
//! without its ledger, and nothing that it ever answered is lost.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

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
fn a_full_disk_is_a_typed_refusal_and_then_an_end_and_loses_nothing_that_was_acknowledged() {
    if !is_root_or_says_so("mount a small file system") {
        return;
    }
    let state = State::new();
    let _disk = SmallDisk::mounted(&state.root(), 96);
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let mut acknowledged = vec![api.exec(&id, "echo before").seq];
    let filler = state.root().join("filler");
    fill(&filler);
    // What is written goes into the ledger whole: it needs room that there is not.
    let big = format!(": {}", "x".repeat(60_000));
    let refused = loop {
        match api.try_send(
            "POST",
            &format!("{SESSIONS}/{id}/exec"),
            &[],
            json!({"command": big}).to_string().as_bytes(),
        ) {
            Ok(answer) if answer.status == 200 => {
                acknowledged.push(answer.json()["seq"].as_u64().expect("seq"));
            }
            Ok(answer) => break Some(answer),
            Err(_) => break None,
        }
        assert!(acknowledged.len() < 10_000, "the disk never fills");
    };
    let refused = refused.expect("an answer before the end");
    let code = refused.error(503);
    assert!(
        ["ledger_unavailable", "content_unavailable"].contains(&code.as_str()),
        "{code}"
    );
    let ended = daemon.ended();
    assert!(
        ended.code.is_some_and(|code| code != 0),
        "{ended:?}: {}",
        state.last_words()
    );

    fs::remove_file(&filler).expect("room again");
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let known: Vec<u64> = api
        .events(&id)
        .iter()
        .map(|event| event["seq"].as_u64().expect("seq"))
        .collect();
    let lost: Vec<&u64> = acknowledged
        .iter()
        .filter(|seq| !known.contains(seq))
        .collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    assert_eq!(
        api.exec(&id, "echo after").text(),
        "after\n",
        "the session lives on"
    );
    eventually("nothing is left open", || {
        (api.session(&id)["in_flight"] == json!([])).then_some(())
    });
    drop(daemon);
    assert!(open_offline(&state.root()).len() > known.len());
}
