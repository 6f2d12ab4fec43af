//! One session through all of it: what runs, what is written and what is undone stand right at every
//! turn.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::ids;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

fn text(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

/// 5,000 files, a web server and a loop that counts in memory.
fn furnish(api: &Api, id: &str) {
    text(
        api,
        id,
        "mkdir -p tree && cd tree && for d in $(seq 50); do mkdir d$d; for f in $(seq 100); do \
         echo $d.$f >d$d/f$f; done; done",
    );
    text(
        api,
        id,
        "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n >count; sleep 0.05; done' \
         >/dev/null 2>&1 </dev/null &",
    );
    text(
        api,
        id,
        "setsid python3 -m http.server 8123 --bind 127.0.0.1 --directory tree \
         >/dev/null 2>&1 </dev/null &",
    );
    serves(api, id);
}

fn fetch(path: &str) -> String {
    format!(
        "python3 -c 'import urllib.request as r; \
         print(r.urlopen(\"http://127.0.0.1:8123/{path}\", timeout=5).read().decode(), end=\"\")'"
    )
}

fn serves(api: &Api, id: &str) {
    eventually("the web server answers", || {
        let ran = api.exec(id, &fetch("d7/f9"));
        (ran.exit_code == 0 && ran.text() == "7.9\n").then_some(())
    });
}

fn counts(api: &Api, id: &str) {
    let count = || -> u64 {
        let shown = api.exec(id, "cat count");
        shown.text().trim().parse().unwrap_or_default()
    };
    let before = count();
    eventually("the loop counts on", || (count() > before).then_some(()));
}

/// The files' digest, without what the loop writes.
fn files(api: &Api, id: &str) -> String {
    let line = "find . -type f ! -name count -print0 | sort -z | xargs -0 sha256sum | sha256sum";
    text(api, id, line)
}

fn ring_off(api: &Api, id: &str) {
    let off = json!({"enabled": false});
    let _ = api.ask(id, "rewind/config", &off).expect(200);
}

/// One child's line comes to the parent, and what runs there runs on.
fn promote_one(api: &Api, id: &str, child: &str) {
    let everything = api
        .ask(child, "promote", &json!({"dry_run": true}))
        .expect(200);
    assert_eq!(
        everything["plan"]["conflicts"],
        json!(["count"]),
        "both loops write it: {everything}"
    );
    let done = api
        .ask(child, "promote", &json!({"paths": ["log"]}))
        .expect(200);
    assert_eq!(done["modified"], 1, "{done}");
    assert_eq!(text(api, id, "tail -2 log"), "7\nchild 3\n");
    counts(api, id);
    serves(api, id);
}

/// The whole ledger of the session, once more in a fresh one, comes to the same files: what was gone back
/// past is left out by name.
fn again_from_zero(api: &Api, id: &str, files_expected: &str) {
    let fresh = api.create();
    let body = json!({"target": fresh, "stop_on_failure": false});
    let replayed = api.ask(id, "replay", &body).expect(200);
    assert_eq!(files(api, &fresh), files_expected, "{replayed}");
    let skipped = replayed["skipped"].as_array().expect("a list");
    let undone = |skipped: &&Value| {
        let reason = skipped["reason"].as_str().unwrap_or_default();
        reason.starts_with("it was undone: event ")
    };
    assert!(skipped.iter().filter(undone).count() >= 10, "{replayed}");
    api.remove(&fresh);
}

#[test]
fn checkpoint_ten_commands_undo_redo_fork_and_restore_with_everything_running() {
    let daemon = shared();
    let api = daemon.api();
    let host = api.get("/v1/capabilities").expect(200);
    if host["capabilities"]["memory_checkpoint"] != true {
        println!("skipped: needs an engine that keeps memory");
        return;
    }
    let id = api.create();
    furnish(api, &id);
    let first = files(api, &id);
    let taken = api.checkpoint(&id, "first");
    assert_eq!(taken["memory"], true, "{taken}");
    api.rewind_on(&id, 20);
    for number in 0..10 {
        text(
            api,
            &id,
            &format!("echo {number} >>log; rm tree/d{}/f1", number + 1),
        );
    }
    let undone = api
        .ask(&id, "rewind/undo", &json!({"steps": 3}))
        .expect(200);
    assert_eq!(
        (&undone["memory"], &undone["redo_steps"]),
        (&json!(true), &json!(3))
    );
    let redone = api
        .ask(&id, "rewind/redo", &json!({"steps": 1}))
        .expect(200);
    assert_eq!(redone["redo_steps"], 2);
    ring_off(api, &id);
    assert_eq!(
        text(
            api,
            &id,
            "tail -1 log; ls tree/d8/f1 tree/d9/f1 2>&1 | grep -c No"
        ),
        "7\n1\n"
    );
    counts(api, &id);
    serves(api, &id);

    let forked = api.ask(&id, "fork", &json!({"count": 8})).expect(201);
    let children = ids(&forked);
    for (number, child) in children.iter().enumerate() {
        assert_eq!(api.session(child)["origin"]["memory"], true);
        text(api, child, &format!("echo child {number} >>log"));
    }
    for (number, child) in children.iter().enumerate() {
        assert_eq!(text(api, child, "tail -1 log"), format!("child {number}\n"));
        counts(api, child);
        serves(api, child);
    }
    assert_eq!(
        text(api, &id, "tail -1 log"),
        "7\n",
        "the parent is untouched"
    );
    promote_one(api, &id, &children[3]);
    children.iter().for_each(|child| api.remove(child));

    let restored = api.restore(&id, "first");
    assert_eq!(restored["memory"], Value::Bool(true));
    assert_eq!(files(api, &id), first);
    counts(api, &id);
    serves(api, &id);
    again_from_zero(api, &id, &first);
    verified(&api.export_ledger());
    api.remove(&id);
}
