//! Processes and states of the past: kept where this machine can, and never lost in silence where it
//! cannot.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use serde_json::json;

fn text(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().trim().to_owned()
}

/// Leaves a process running that counts in its own memory.
fn start_counter(api: &Api, id: &str) {
    let line = "setsid sh -c 'echo $$ >pid; n=0; while :; do n=$((n+1)); echo $n >count; sleep 0.02; done' \
                >/dev/null 2>&1 </dev/null &";
    text(api, id, line);
    eventually("it counts", || (count(api, id) > 3).then_some(()));
}

fn count(api: &Api, id: &str) -> u64 {
    let shown = api.exec(id, "cat count 2>/dev/null || echo 0");
    shown.text().trim().parse().unwrap_or_default()
}

fn counts_on(api: &Api, id: &str, from: u64) {
    eventually("it counts on", || (count(api, id) > from).then_some(()));
}

fn keeps_memory(api: &Api) -> bool {
    let host = api.get("/v1/capabilities").expect(200);
    host["capabilities"]["memory_checkpoint"] == true
}

#[test]
fn a_checkpoint_keeps_what_runs_or_says_that_it_cannot() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    start_counter(api, &id);
    if !keeps_memory(api) {
        for body in [json!({"tag": "a"}), json!({"tag": "a", "memory": true})] {
            let refused = api.ask(&id, "checkpoint", &body);
            assert_eq!(refused.error(409), "memory_checkpoint_impossible", "{body}");
        }
        let disk = json!({"tag": "a", "memory": false});
        assert_eq!(
            api.ask(&id, "checkpoint", &disk).expect(201)["memory"],
            false
        );
        let restored = api.restore(&id, "a");
        assert_eq!(restored["memory"], false);
        let frozen = count(api, &id);
        text(api, &id, "sleep 0.2");
        assert_eq!(count(api, &id), frozen, "nothing runs in it");
        api.remove(&id);
        return;
    }
    let taken = api.checkpoint(&id, "a");
    assert_eq!(
        (&taken["memory"], &taken["snapshot"]["processes"]),
        (&json!(true), &json!("kept"))
    );
    let at = count(api, &id);
    counts_on(api, &id, at + 20);
    text(api, &id, "kill -9 $(cat pid); rm -f count pid");
    let restored = api.restore(&id, "a");
    assert_eq!(restored["memory"], true, "{restored}");
    counts_on(api, &id, at);
    assert_eq!(api.session(&id)["status"], "running");
    api.remove(&id);
}

#[test]
fn children_of_one_state_each_have_its_processes_and_count_on_apart() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    start_counter(api, &id);
    let forked = api.ask(&id, "fork", &json!({"count": 3})).expect(201);
    let memory = keeps_memory(api);
    let processes = &forked["snapshot"]["processes"];
    assert_eq!(processes, if memory { "kept" } else { "impossible" });
    let before = count(api, &id);
    for child in forked["items"].as_array().expect("children") {
        let child_id = child["id"].as_str().expect("an id");
        assert_eq!(child["origin"]["memory"], memory, "{child}");
        if memory {
            let at = count(api, child_id);
            counts_on(api, child_id, at);
        }
        api.remove(child_id);
    }
    counts_on(api, &id, before);
    api.remove(&id);
}

#[test]
fn an_undo_brings_processes_back_and_a_redo_too() {
    let daemon = shared();
    let api = daemon.api();
    if !keeps_memory(api) {
        println!("skipped: needs an engine that keeps memory");
        return;
    }
    let id = api.create();
    start_counter(api, &id);
    api.rewind_on(&id, 5);
    text(api, &id, "true");
    let off = json!({"enabled": false});
    text(api, &id, "echo last >mark");
    let undone = api
        .ask(&id, "rewind/undo", &json!({"steps": 1}))
        .expect(200);
    assert_eq!(undone["memory"], true, "{undone}");
    let redone = api.ask(&id, "rewind/redo", &json!({})).expect(200);
    assert_eq!(redone["memory"], true, "{redone}");
    let _ = api.ask(&id, "rewind/config", &off).expect(200);
    assert_eq!(text(api, &id, "cat mark"), "last");
    let at = count(api, &id);
    counts_on(api, &id, at);
    api.remove(&id);
}

#[test]
fn a_job_goes_back_with_its_session_and_one_that_came_later_is_gone() {
    let daemon = shared();
    let api = daemon.api();
    let memory = keeps_memory(api);
    let id = api.create();
    let waits = "echo waiting; while [ ! -e stop ]; do sleep 0.05; done; echo stopped";
    let early = api.background(&id, waits);
    eventually("it waits", || {
        (api.job(&id, &early, "")["output"] == "waiting\n").then_some(())
    });
    let body = json!({"tag": "a", "memory": memory});
    let _ = api.ask(&id, "checkpoint", &body).expect(201);
    let later = api.background(&id, "sleep 300");
    let restored = api.restore(&id, "a");
    assert_eq!(restored["memory"], memory);
    eventually("the later one is gone", || {
        (api.job(&id, &later, "")["state"] == "failed").then_some(())
    });
    let failed = |event: &serde_json::Value| event["kind"] == "job.failed";
    if memory {
        text(api, &id, "touch stop");
        eventually("the early one ends", || {
            (api.job(&id, &early, "")["state"] == "exited").then_some(())
        });
        let ended = api.job(&id, &early, "");
        assert_eq!(
            (&ended["output"], &ended["exit_code"]),
            (&json!("waiting\nstopped\n"), &json!(0)),
            "{ended}"
        );
    }
    let events = api.events(&id);
    let codes: Vec<_> = events
        .iter()
        .filter(|event| failed(event))
        .map(|event| event["data"]["code"].clone())
        .collect();
    assert_eq!(codes, vec![json!("replaced"); if memory { 1 } else { 2 }]);
    api.remove(&id);
}
