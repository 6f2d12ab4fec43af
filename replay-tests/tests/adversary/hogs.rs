//! Using up what a sandbox has: it is held to its limits, and answers again afterwards.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Exec;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

fn with_budget(api: &Api, budget: &Value) -> String {
    api.create_with(&json!({"agent": "tester", "budget": budget}))
}

fn lives_on(api: &Api, id: &str) {
    assert_eq!(api.exec(id, "echo on").text(), "on\n");
    assert_eq!(api.get("/healthz").status, 200);
}

/// Either the whole sandbox is held to a limit, which `capabilities` says, or each command is, which its
/// own report says.
fn is_told(api: &Api, id: &str, of_sandbox: &str, answer: &Exec) {
    let record = api.session(id);
    let whole = record["capabilities"][of_sandbox] == true;
    assert_ne!(
        answer.json["enforcement"]["limits"] == true,
        whole,
        "{}",
        answer.json
    );
}

#[test]
fn a_fork_bomb_stays_below_its_limit() {
    const BOMB: &str = "python3 -c 'import os,time\n\
        n=0\n\
        for i in range(200):\n\
        \x20 try: p=os.fork()\n\
        \x20 except OSError: break\n\
        \x20 if p==0: time.sleep(60); os._exit(0)\n\
        \x20 n+=1\n\
        print(n, flush=True)\n\
        os.kill(0,9)'";
    let daemon = shared();
    let api = daemon.api();
    let id = with_budget(api, &json!({"max_processes": 40}));
    let count = |answer: &Exec| answer.text().trim().parse::<u32>().expect("a number");
    let bomb = api.exec(&id, BOMB);
    assert!((10..=80).contains(&count(&bomb)), "{}", bomb.json);
    is_told(api, &id, "process_limit", &api.exec(&id, "true"));
    lives_on(api, &id);
    let free = api.create();
    assert_eq!(count(&api.exec(&free, BOMB)), 200, "without a limit");
    assert_eq!(api.session(&id)["budget"]["max_processes"], 40);
    api.remove(&id);
    api.remove(&free);
}

#[test]
fn a_memory_hog_ends_and_nobody_else_does() {
    const HOG: &str =
        "python3 -c 'b=bytearray(400*1024*1024); b[::4096]=b\"x\"*len(b[::4096]); print(len(b))'";
    let daemon = shared();
    let api = daemon.api();
    let id = with_budget(api, &json!({"max_memory": 200 * 1024 * 1024}));
    let hog = api.exec(&id, HOG);
    assert_ne!(hog.exit_code, 0, "{}", hog.json);
    is_told(api, &id, "memory_limit", &api.exec(&id, "true"));
    lives_on(api, &id);
    let free = api.create();
    assert_eq!(api.exec(&free, HOG).exit_code, 0, "without a limit");
    api.remove(&id);
    api.remove(&free);
}

#[test]
fn shared_memory_descriptors_and_time_have_an_end() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let shm = api.exec(
        &id,
        "truncate -s 1K /dev/shm/a && fallocate -l 3G /dev/shm/b",
    );
    assert_ne!(shm.exit_code, 0, "{}", shm.json);
    let files = api.exec(
        &id,
        "python3 -c 'import os\nfor i in range(70000): os.dup(0)' 2>&1",
    );
    assert!(
        files.text().contains("Too many open files"),
        "{}",
        files.json
    );
    let spin = api.exec_within(&id, 0.5, "while :; do :; done");
    assert!(spin.timed_out());
    let deep = api.exec(&id, "python3 -c 'open(\"x\"*300,\"w\")' 2>&1");
    assert!(deep.text().contains("too long"), "{}", deep.json);
    lives_on(api, &id);
    api.remove(&id);
}
