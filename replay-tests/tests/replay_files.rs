//! A replay redoes files, uploads, removals and git from what was recorded, and ends in the same files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

/// Every file below the workspace with its mode and digest, and every link, folder and commit.
const DIGEST: &str = "cd /workspace && { find . -path ./repo/.git -prune -o -type f -print0 | sort -z | \
    xargs -0 sha256sum; find . -path ./repo/.git -prune -o -printf '%p %m %y %l\\n' | sort; \
    git -C repo log --format='%H %T %an %at %s' --all; git -C repo branch; } | sha256sum";

fn put(api: &Api, id: &str, path: &str, content: &[u8], mode: &str) {
    let body = json!({"path": path, "content_base64": STANDARD.encode(content), "mode": mode});
    let url = format!("{SESSIONS}/{id}/files/content");
    let _ = api
        .send("PUT", &url, &[], body.to_string().as_bytes())
        .expect(200);
}

fn upload(api: &Api, id: &str, path: &str, content: &[u8]) {
    let base = format!("{SESSIONS}/{id}/uploads");
    let opened = api
        .post(&base, &json!({"path": path, "size": content.len()}))
        .expect(201);
    let upload = opened["id"].as_str().expect("an id").to_owned();
    for (index, part) in content.chunks(4 * 1024 * 1024).enumerate() {
        let offset = index * 4 * 1024 * 1024;
        let url = format!("{base}/{upload}?offset={offset}");
        let _ = api.send("PUT", &url, &[], part).expect(200);
    }
    let _ = api
        .post(&format!("{base}/{upload}/complete"), &json!({}))
        .expect(200);
}

fn git(api: &Api, id: &str, what: &str, body: &Value) {
    let _ = api
        .post(&format!("{SESSIONS}/{id}/git/{what}"), body)
        .expect(200);
}

fn replay(api: &Api, source: &str, body: &Value) -> Value {
    api.post(&format!("{SESSIONS}/{source}/replay"), body)
        .expect(200)
}

/// A session in which something of every kind was done.
fn recorded(api: &Api, record: &str) -> String {
    let id = api.create_with(&json!({"agent": "tester", "record": record}));
    assert_eq!(api.exec(&id, "git init -q -b main repo").exit_code, 0);
    put(
        api,
        &id,
        "/workspace/repo/run.sh",
        b"#!/bin/sh\necho $((6*7))\n",
        "755",
    );
    put(api, &id, "/workspace/repo/gone", b"soon gone", "644");
    put(api, &id, "/workspace/empty", b"", "600");
    let repo = "/workspace/repo";
    git(
        api,
        &id,
        "commit",
        &json!({"repo": repo, "message": "first"}),
    );
    git(
        api,
        &id,
        "branch",
        &json!({"repo": repo, "name": "agent/try"}),
    );
    let big: Vec<u8> = (0..9_500_000_u32).map(|n| (n % 247) as u8).collect();
    upload(api, &id, "/workspace/repo/data.bin", &big);
    assert_eq!(
        api.exec(
            &id,
            "./repo/run.sh >repo/answer; mkdir -p t/u; echo x >t/u/v"
        )
        .exit_code,
        0
    );
    let path = format!("{SESSIONS}/{id}/files?path=/workspace/repo/gone");
    assert_eq!(api.delete(&path).status, 204);
    let path = format!("{SESSIONS}/{id}/files?path=/workspace/t/u&recursive=true");
    assert_eq!(api.delete(&path).status, 204);
    git(
        api,
        &id,
        "commit",
        &json!({"repo": repo, "message": "second"}),
    );
    id
}

#[test]
fn a_replay_of_everything_ends_in_the_same_files_and_the_same_commits() {
    let daemon = shared();
    let api = daemon.api();
    let source = recorded(api, "full");
    let digest = api.exec(&source, DIGEST).text().to_owned();
    let target = api.create();
    let answer = replay(api, &source, &json!({"target": target}));
    let steps = answer["steps"].as_array().expect("steps");
    for step in steps {
        assert_eq!(step["same"], true, "{step:#}");
        assert_eq!(step["recorded"], step["replayed"], "{step:#}");
    }
    let kinds: Vec<&str> = steps
        .iter()
        .map(|step| step["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "exec",
            "file.write",
            "file.write",
            "file.write",
            "git.commit",
            "git.branch",
            "file.upload",
            "exec",
            "file.delete",
            "file.delete",
            "git.commit",
            "exec"
        ]
    );
    assert_eq!(
        (&answer["diverged_at"], &answer["skipped"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(api.exec(&target, DIGEST).text(), digest);
    let entry = api.only_event(&target, "replay");
    assert_eq!(
        (&entry["data"]["ran"], &entry["data"]["same"]),
        (&json!(12), &json!(12))
    );
    api.remove(&source);
    api.remove(&target);
}

#[test]
fn what_was_recorded_by_digest_is_skipped_and_the_first_difference_is_named() {
    let daemon = shared();
    let api = daemon.api();
    let source = recorded(api, "digest");
    let target = api.create();
    let answer = replay(
        api,
        &source,
        &json!({"target": target, "stop_on_failure": false}),
    );
    let skipped = answer["skipped"].as_array().expect("skipped");
    let kinds: Vec<&str> = skipped
        .iter()
        .map(|step| step["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["file.write", "file.write", "file.upload"]);
    assert!(
        skipped[0]["reason"]
            .as_str()
            .is_some_and(|why| why.contains("digest"))
    );
    // Without its files the first commit has nothing to commit: that is where the histories part.
    let steps = answer["steps"].as_array().expect("steps");
    let first = steps
        .iter()
        .find(|step| step["same"] != true)
        .expect("a difference");
    assert_eq!(first["kind"], "git.commit");
    assert_eq!(answer["diverged_at"], first["seq"]);
    assert_eq!(first["error"]["code"], "nothing_to_commit");
    assert_eq!(answer["stopped_at"], Value::Null, "it went on");

    let other = api.create();
    let stops = replay(api, &source, &json!({"target": other}));
    assert_eq!(stops["stopped_at"], answer["diverged_at"]);
    for id in [source, target, other] {
        api.remove(&id);
    }
}

#[test]
fn a_replay_can_begin_and_end_at_an_event() {
    let daemon = shared();
    let api = daemon.api();
    let source = api.create();
    let seqs: Vec<u64> = (0..5)
        .map(|n| api.exec(&source, &format!("echo {n} >>log")).seq)
        .collect();
    put(api, &source, "/workspace/mark", b"m", "644");
    let target = api.create();
    let part = json!({"target": target, "from": seqs[1], "to": seqs[3]});
    let answer = replay(api, &source, &part);
    assert_eq!(answer["steps"].as_array().map(Vec::len), Some(3));
    assert_eq!(api.exec(&target, "cat log; ls").text(), "1\n2\n3\nlog\n");
    api.remove(&source);
    api.remove(&target);
}

#[test]
fn a_promotion_is_done_again_from_what_the_ledger_kept_of_it() {
    let daemon = shared();
    let api = daemon.api();
    let source = api.create();
    let command = "mkdir d; echo 1 >d/a; echo 1 >gone";
    assert_eq!(api.exec(&source, command).exit_code, 0);
    let child = api.fork(&source, 1).remove(0);
    let command = "echo 2 >d/a; rm gone; ln -s d l; head -c 9000000 /dev/zero >big; chmod 700 big";
    assert_eq!(api.exec(&child, command).exit_code, 0);
    let _ = api.ask(&child, "promote", &json!({})).expect(200);
    // What was promoted is the ledger's: the child is gone by the time it is needed.
    api.remove(&child);
    let target = api.create();
    let answer = api
        .ask(&source, "replay", &json!({"target": target}))
        .expect(200);
    assert_eq!(answer["steps"][1]["kind"], "promote", "{answer}");
    assert_eq!(answer["steps"][1]["same"], true, "{answer}");
    let look = "cat d/a; readlink l; ls; stat -c '%a %s' big; sha256sum big";
    let (here, there) = (api.exec(&source, look), api.exec(&target, look));
    assert_eq!(there.text(), here.text());
    let event = api.only_event(&target, "changes");
    assert_eq!(event["data"]["paths"], 4);
    let event = api.only_event(&source, "promote");
    let pieces = event["data"]["blobs"].as_array().map(Vec::len);
    assert_eq!(pieces, Some(2), "9 MB are two pieces");
    api.remove(&target);
    api.remove(&source);
}
