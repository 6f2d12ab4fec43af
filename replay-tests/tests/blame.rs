//! Which step last wrote these bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

fn run(api: &Api, id: &str, command: &str) {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
}

fn put(api: &Api, id: &str, path: &str, content: &str) {
    let body = json!({"path": path, "content_base64": STANDARD.encode(content)});
    let url = format!("{SESSIONS}/{id}/files/content");
    let _ = api.send("PUT", &url, &[], body.to_string().as_bytes());
}

/// `certainty: what it was`.
fn blame(api: &Api, id: &str, query: &str) -> String {
    let answer = api
        .get(&format!("{SESSIONS}/{id}/blame?{query}"))
        .expect(200);
    let step = &answer["step"]["command"];
    let certainty = answer["certainty"].as_str().expect("a word");
    match step.as_str() {
        Some(command) => format!("{certainty}: {command}"),
        None => certainty.to_owned(),
    }
}

#[test]
fn without_any_kept_state_the_commands_are_run_again_to_find_it() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for command in [
        "printf 'one\\ntwo\\nthree\\n' >f",
        "echo other >g",
        "sed -i s/two/2/ f",
        "sed -i '1i zero' f",
        "rm g",
    ] {
        run(api, &id, command);
    }
    for (query, expected) in [
        ("path=f", "done_again: sed -i '1i zero' f"),
        ("path=f&line=1", "done_again: sed -i '1i zero' f"),
        ("path=f&line=3", "done_again: sed -i s/two/2/ f"),
        (
            "path=/workspace/f&line=4",
            "done_again: printf 'one\\ntwo\\nthree\\n' >f",
        ),
        ("path=never", "from_the_beginning"),
    ] {
        assert_eq!(blame(api, &id, query), expected, "{query}");
    }
    assert_eq!(
        api.sessions()
            .iter()
            .filter(|it| it["id"] == id.as_str())
            .count(),
        1
    );
    for (query, code) in [
        ("path=f&line=0", "invalid_field"),
        ("path=f&line=9", "invalid_field"),
        ("path=../f", "invalid_field"),
        ("line=1", "missing_field"),
    ] {
        let answer = api.get(&format!("{SESSIONS}/{id}/blame?{query}"));
        assert_eq!(answer.error(400), code, "{query}");
    }
    api.remove(&id);
}

#[test]
fn kept_states_name_the_step_between_them_whatever_it_was() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(api, &id, "echo 1 >f; echo 1 >gone");
    api.checkpoint(&id, "one");
    put(api, &id, "/workspace/f", "2\n");
    api.checkpoint(&id, "two");
    run(api, &id, "rm gone");
    api.checkpoint(&id, "three");
    run(api, &id, "echo x >undone");
    api.restore(&id, "three");
    assert_eq!(blame(api, &id, "path=f"), "one_step: write /workspace/f");
    assert_eq!(blame(api, &id, "path=gone"), "one_step: rm gone");
    assert_eq!(
        blame(api, &id, "path=undone"),
        "from_the_beginning",
        "that never was"
    );
    // A file that was put is written again.
    put(api, &id, "/workspace/other", "3");
    run(api, &id, "cat other >f; echo >>f");
    run(api, &id, "true");
    assert_eq!(
        blame(api, &id, "path=f"),
        "done_again: cat other >f; echo >>f"
    );
    assert_eq!(
        blame(api, &id, "path=other"),
        "done_again: write /workspace/other"
    );
    // A job is not started again, and so it cannot be told which of three it was.
    let _ = api
        .ask(&id, "jobs", &json!({"command": "true"}))
        .expect(201);
    let answer = api
        .get(&format!("{SESSIONS}/{id}/blame?path=f"))
        .expect(200);
    assert_eq!(answer["certainty"], "one_of_several");
    let candidates = answer["candidates"].as_array().expect("a list").iter();
    let commands: Vec<&Value> = candidates.map(|step| &step["command"]).collect();
    let expected = ["cat other >f; echo >>f", "true", "true"];
    assert_eq!(commands, expected, "the other path was not it");
    assert_eq!(
        (&answer["after"], &answer["before"]),
        (&json!("three"), &json!("now"))
    );
    let child = api.fork(&id, 1).remove(0);
    let answer = api
        .get(&format!("{SESSIONS}/{child}/blame?path=f&line=1"))
        .expect(200);
    assert_eq!(answer["certainty"], "from_the_beginning");
    assert_eq!(
        (&answer["parent"], &answer["text"]),
        (&json!(id), &json!("3"))
    );
    api.remove(&child);
    api.remove(&id);
}
