//! A session's state is kept under a tag, gone back to, and started from again: with the same files,
//! with evidence in the ledger, and with nothing left behind.

use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

fn text(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

#[test]
fn a_restore_brings_back_the_files_of_the_tag_and_the_ledger_has_the_evidence() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    text(api, &id, "echo one >a; echo same >b");
    let taken = api.checkpoint(&id, "before");
    assert_eq!(taken["tag"], "before");
    assert_eq!(taken["revision"], 2, "a checkpoint changes the session");
    text(api, &id, "echo two >a; rm b; echo new >c");
    let before = api.session(&id);
    let restored = api.restore(&id, "before");
    assert_eq!(restored["disk"], taken["snapshot"]["disk"]);
    assert_eq!(restored["revision"], 3);
    assert_eq!(text(api, &id, "cat a b; ls"), "one\nsame\na\nb\n");
    let after = api.session(&id);
    assert_ne!(after["sandbox_id"], before["sandbox_id"], "another sandbox");
    assert_eq!(after["checkpoints"][0]["tag"], "before");
    let event = api.only_event(&id, "checkpoint");
    assert_eq!(event["data"]["snapshot"]["disk"], taken["snapshot"]["disk"]);
    let event = api.only_event(&id, "restore");
    assert_eq!(event["data"]["previous_sandbox_id"], before["sandbox_id"]);
    let again = api.checkpoint(&id, "again");
    assert_ne!(
        again["snapshot"]["disk"],
        Value::Null,
        "what was restored can be captured again"
    );
    verified(&api.export_ledger());
    api.remove(&id);
}

#[test]
fn c40_a_tree_with_everything_in_it_survives_checkpoint_restore_and_fork() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    text(
        api,
        &id,
        "mkdir -p t/empty t/deep/er && echo x >t/file && chmod 751 t/file && ln -s file t/link && \
         ln -s /nowhere t/dangling && ln t/file t/hard && touch -d '2001-02-03 04:05:06.789' t/file \
         && chmod 1777 t/empty && mkfifo t/pipe && printf 'a\\nb' >'t/a name with spaces' && \
         touch -d '2002-02-02' t/deep",
    );
    let look = "find t -printf '%p %y %m %s %T@ %l %n\\n' | sort; sha256sum t/file t/a*";
    let before = text(api, &id, look);
    api.checkpoint(&id, "tree");
    text(api, &id, "rm -rf t; mkdir t; echo other >t/file");
    api.restore(&id, "tree");
    assert_eq!(text(api, &id, look), before, "restored");
    let child = api.fork(&id, 1).remove(0);
    assert_eq!(text(api, &child, look), before, "forked");
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn tags_are_named_listed_and_let_go_of() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let unnamed = api.send("POST", &format!("{SESSIONS}/{id}/checkpoint"), &[], &[]);
    assert_eq!(
        unnamed.expect(201)["tag"],
        "cp-1",
        "no body is an empty one"
    );
    api.checkpoint(&id, "mine");
    let taken = api.ask(&id, "checkpoint", &json!({"tag": "mine"}));
    assert_eq!(taken.error(409), "tag_taken");
    assert_eq!(api.tags(&id), ["cp-1", "mine"]);
    let path = format!("{SESSIONS}/{id}/checkpoints/cp-1");
    assert_eq!(api.delete(&path).status, 204);
    assert_eq!(api.delete(&path).error(404), "tag_not_found");
    let gone = api.ask(&id, "restore", &json!({"tag": "cp-1"}));
    assert_eq!(gone.error(404), "tag_not_found");
    assert_eq!(
        api.ask(&id, "checkpoint", &json!({})).expect(201)["tag"],
        "cp-3"
    );
    let other = api.create();
    let foreign = api.ask(&other, "restore", &json!({"tag": "mine"}));
    assert_eq!(foreign.error(404), "tag_not_found", "only its own");
    api.remove(&other);
    api.remove(&id);
}

#[test]
fn bad_input_names_the_field() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for (verb, body, field) in [
        ("checkpoint", json!({"tag": "a b"}), "tag"),
        ("checkpoint", json!({"tag": ""}), "tag"),
        ("checkpoint", json!({"tag": "../x"}), "tag"),
        ("checkpoint", json!({"tag": "x".repeat(65)}), "tag"),
        ("checkpoint", json!({"memory": "yes"}), "memory"),
        ("checkpoint", json!({"tags": "a"}), "tags"),
        ("restore", json!({}), "tag"),
        ("restore", json!({"tag": 7}), "tag"),
        ("restore", json!({"tag": "/"}), "tag"),
        ("fork", json!({"count": 0}), "count"),
        ("fork", json!({"count": 33}), "count"),
        ("fork", json!({"count": -1}), "count"),
        ("fork", json!({"count": 1.5}), "count"),
        ("fork", json!({"identity": "other"}), "identity"),
        ("fork", json!({"tag": "a", "memory": true}), "memory"),
        ("rewind/config", json!({"max_points": 0}), "max_points"),
        ("rewind/config", json!({"max_points": 51}), "max_points"),
        ("rewind/config", json!({"triggers": []}), "triggers"),
        ("rewind/config", json!({"triggers": ["all"]}), "triggers[0]"),
        ("rewind/config", json!({"on": true}), "on"),
        ("rewind/undo", json!({"steps": 0}), "steps"),
        ("rewind/undo", json!({"steps": 1, "to": "a"}), "to"),
        ("rewind/redo", json!({"to": "a/b"}), "to"),
        ("rewind/pin", json!({"pinned": true}), "tag"),
        ("rewind/branch", json!({"count": 2}), "tag"),
        ("rewind/branch", json!({"tag": "x", "count": 0}), "count"),
    ] {
        let answer = api.ask(&id, verb, &body).expect(400);
        assert_eq!(answer["field"], field, "{verb} {body}: {answer}");
    }
    assert_eq!(
        api.kinds(&id).len(),
        2,
        "nothing of it reached the ledger: {:?}",
        api.kinds(&id)
    );
    api.remove(&id);
}

#[test]
fn if_match_holds_whoever_saw_an_older_revision_back() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let record = api.get(&format!("{SESSIONS}/{id}"));
    assert_eq!(record.headers["etag"], "\"1\"");
    let first = api.ask_with(
        &id,
        "checkpoint",
        &[("if-match", "1")],
        &json!({"tag": "a"}),
    );
    assert_eq!(first.expect(201)["revision"], 2);
    assert_eq!(first.headers["etag"], "\"2\"");
    for (verb, body) in [
        ("checkpoint", json!({"tag": "b"})),
        ("restore", json!({"tag": "a"})),
        ("fork", json!({})),
    ] {
        let late = api.ask_with(&id, verb, &[("if-match", "1")], &body);
        assert_eq!(late.error(412), "revision_differs", "{verb}");
        let wrong = api.ask_with(&id, verb, &[("if-match", "x")], &body);
        assert_eq!(wrong.error(400), "invalid_field", "{verb}");
    }
    let any = api.ask_with(&id, "restore", &[("if-match", "*")], &json!({"tag": "a"}));
    assert_eq!(any.expect(200)["revision"], 3);
    let quoted = api.ask_with(
        &id,
        "restore",
        &[("if-match", "\"3\"")],
        &json!({"tag": "a"}),
    );
    assert_eq!(quoted.expect(200)["revision"], 4);
    api.remove(&id);
}

#[test]
fn c12_a_repeated_request_takes_one_checkpoint_makes_one_fork_and_restores_once() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let key = [("idempotency-key", "once")];
    for (verb, body, status, kind) in [
        ("checkpoint", json!({"tag": "a"}), 201, "checkpoint"),
        ("restore", json!({"tag": "a"}), 200, "restore"),
        ("fork", json!({"count": 2}), 201, "fork"),
    ] {
        let asked: Vec<_> = (0..5)
            .map(|_| {
                let (api, id, body) = (api.clone(), id.clone(), body.clone());
                thread::spawn(move || {
                    eventually("the first one is answered", || {
                        let answer = api.ask_with(&id, verb, &key, &body);
                        (answer.status != 409).then_some(answer)
                    })
                })
            })
            .collect();
        let answers: Vec<_> = asked
            .into_iter()
            .map(|it| it.join().expect("an answer").expect(status))
            .collect();
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{verb}");
        let _ = api.only_event(&id, kind);
        let other = api.ask_with(&id, verb, &key, &json!({"tag": "other", "count": 3}));
        assert!(
            other.status == 422 || other.status == 400,
            "{verb}: {}",
            other.json()
        );
    }
    for child in api.session(&id)["children"].as_array().expect("children") {
        api.remove(child.as_str().expect("an id"));
    }
    api.remove(&id);
}

#[test]
fn children_start_from_the_same_state_go_their_own_ways_and_leave_the_parent_alone() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create_with(&json!({"agent": "parent", "record": "digest", "ttl_seconds": 3600}));
    text(api, &id, "echo start >f");
    let answer = api.ask(&id, "fork", &json!({"count": 8})).expect(201);
    let children: Vec<String> = answer["items"]
        .as_array()
        .expect("children")
        .iter()
        .map(|child| child["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(children.len(), 8);
    let parent = api.session(&id);
    assert_eq!(parent["children"], json!(children));
    assert_eq!(parent["usage"]["children"], 8);
    for child in &children {
        let record = api.session(child);
        assert_eq!(record["parent"], id.as_str());
        assert_eq!(record["status"], "running");
        assert_eq!(record["agent"], "parent");
        assert_eq!(record["record"], "digest", "everything is inherited");
        assert_eq!(record["expires_at"], parent["expires_at"]);
        assert_eq!(record["origin"]["snapshot"], answer["snapshot"]);
        text(api, child, &format!("cat f; echo {child} >f"));
    }
    text(api, &id, "echo parent >f");
    for child in &children {
        assert_eq!(text(api, child, "cat f"), format!("{child}\n"));
    }
    assert_eq!(text(api, &id, "cat f"), "parent\n");
    let grandchild = api.fork(&children[0], 1).remove(0);
    assert_eq!(
        text(api, &grandchild, "cat f"),
        format!("{}\n", children[0])
    );
    // The parent may go; its children stand on what was captured.
    api.remove(&id);
    assert_eq!(
        text(api, &children[7], "cat f"),
        format!("{}\n", children[7])
    );
    api.remove(&grandchild);
    children.iter().for_each(|child| api.remove(child));
}

#[test]
fn a_child_has_a_name_of_its_own_unless_it_is_to_keep_the_parents() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let name = |id: &str| text(api, id, "cat /proc/sys/kernel/hostname");
    let parents = name(&id);
    let forked = |identity: &str| {
        let answer = api.ask(&id, "fork", &json!({"identity": identity}));
        let answer = answer.expect(201);
        answer["items"][0]["id"].as_str().expect("an id").to_owned()
    };
    let same = forked("preserve");
    assert_eq!(name(&same), parents);
    let own = forked("best-effort");
    assert_ne!(name(&own), parents);
    api.checkpoint(&id, "a");
    api.restore(&id, "a");
    assert_eq!(name(&id), parents, "a restored session is the same machine");
    [same, own, id].iter().for_each(|id| api.remove(id));
}

#[test]
fn a_machine_is_not_replaced_or_copied_while_a_command_runs_and_can_be_captured() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    api.checkpoint(&id, "a");
    let mut stream = api.stream(&id, "", None);
    let running = thread::spawn({
        let (api, id) = (api.clone(), id.clone());
        move || api.exec(&id, "mkfifo p; read x <p; echo $x")
    });
    stream.until("exec.started");
    for (verb, body) in [
        ("restore", json!({"tag": "a"})),
        ("fork", json!({})),
        ("rewind/branch", json!({"tag": "a"})),
    ] {
        let refused = api.ask(&id, verb, &body);
        assert_eq!(refused.error(409), "commands_running", "{verb}");
    }
    let captured = api.ask(&id, "checkpoint", &json!({"tag": "b", "memory": false}));
    assert_eq!(captured.expect(201)["snapshot"]["processes"], "not_asked");
    eventually("the pipe is there", || {
        (api.exec(&id, "test -p p").exit_code == 0).then_some(())
    });
    text(api, &id, "echo on >p");
    assert_eq!(running.join().expect("it ran").text(), "on\n");
    api.remove(&id);
}

#[test]
fn c44_a_restore_and_forks_of_one_tag_at_once_leave_all_of_them_alive_and_apart() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    text(api, &id, "echo tagged >f");
    api.checkpoint(&id, "t");
    text(api, &id, "echo later >f");
    let asks = [
        ("restore", json!({"tag": "t"}), 200),
        ("fork", json!({"tag": "t", "count": 2}), 201),
        ("rewind/branch", json!({"tag": "t"}), 200),
    ];
    let asked: Vec<_> = asks
        .into_iter()
        .map(|(verb, body, status)| {
            let (api, id) = (api.clone(), id.clone());
            // Whoever comes second is told what is in flight, and asks again.
            thread::spawn(move || {
                eventually("it is its turn", || {
                    let answer = api.ask(&id, verb, &body);
                    if answer.status == 409 {
                        assert_eq!(answer.error(409), "operation_in_flight");
                        return None;
                    }
                    Some(answer.expect(status))
                })
            })
        })
        .collect();
    asked
        .into_iter()
        .for_each(|it| drop(it.join().expect("done")));
    let children = api.session(&id)["children"]
        .as_array()
        .expect("children")
        .clone();
    let all: Vec<&str> = children
        .iter()
        .filter_map(Value::as_str)
        .chain([id.as_str()])
        .collect();
    assert_eq!(all.len(), 4);
    for session in &all {
        assert_eq!(text(api, session, "cat f"), "tagged\n");
        text(api, session, &format!("echo {session} >f"));
    }
    for session in &all {
        assert_eq!(text(api, session, "cat f"), format!("{session}\n"));
    }
    all.iter().for_each(|session| api.remove(session));
}

#[test]
fn c48_a_session_is_deleted_while_it_is_captured_restored_and_forked() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    for (verb, body) in [
        ("checkpoint", json!({})),
        ("restore", json!({"tag": "a"})),
        ("fork", json!({"count": 3})),
        ("rewind/undo", json!({})),
    ] {
        let id = api.create();
        api.rewind_on(&id, 3);
        text(api, &id, "echo 1 >f");
        api.checkpoint(&id, "a");
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let (api, id, body) = (api.clone(), id.clone(), body.clone());
                thread::spawn(move || api.ask(&id, verb, &body))
            })
            .collect();
        eventually("it is deleted", || {
            let answer = api.delete(&format!("{SESSIONS}/{id}"));
            if answer.status == 409 {
                assert_eq!(answer.error(409), "operation_in_flight", "{verb}");
                return None;
            }
            assert_eq!(answer.status, 204, "{verb}");
            Some(())
        });
        for answer in asked {
            let answer = answer.join().expect("an answer");
            assert!(answer.status < 500, "{verb}: {}", answer.json());
        }
        let record = api.session(&id);
        assert_eq!(record["status"], "deleted", "{verb}");
        assert_eq!(record["in_flight"], json!([]), "{verb}");
        for child in record["children"].as_array().expect("children") {
            api.remove(child.as_str().expect("an id"));
        }
    }
    nothing_is_kept(&state);
}

#[test]
fn what_nobody_needs_any_more_is_removed_and_what_a_child_stands_on_is_not() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    text(api, &id, "head -c 100000 /dev/urandom >f; sha256sum f >sum");
    api.checkpoint(&id, "a");
    let forked = api.ask(&id, "fork", &json!({"tag": "a"})).expect(201);
    let child = forked["items"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        api.delete(&format!("{SESSIONS}/{id}/checkpoints/a")).status,
        204
    );
    api.remove(&id);
    assert_eq!(text(api, &child, "sha256sum -c sum"), "f: OK\n");
    let again = api.fork(&child, 1).remove(0);
    assert_eq!(text(api, &again, "sha256sum -c sum"), "f: OK\n");
    api.remove(&child);
    assert_eq!(text(api, &again, "sha256sum -c sum"), "f: OK\n");
    api.remove(&again);
    nothing_is_kept(&state);
}

/// No snapshot is on disk once no session needs one.
fn nothing_is_kept(state: &State) {
    eventually("every snapshot is removed", || {
        snapshots(state).is_empty().then_some(())
    });
}

fn snapshots(state: &State) -> Vec<String> {
    let folder = state.root().join("snapshots");
    let entries = std::fs::read_dir(&folder).map_or_else(|_| Vec::new(), |it| it.collect());
    entries
        .into_iter()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect()
}
