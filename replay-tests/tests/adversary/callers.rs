//! Who calls the API for what is not theirs: the holder of one session's token, at other sessions, at the
//! rules of its own, and around the rules through files.

use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::shared;
use serde_json::json;

#[test]
fn c51_a_sessions_token_is_for_nothing_but_its_session_and_its_operations() {
    let daemon = shared();
    let api = daemon.api();
    let process = json!({"ask": ["touch *"]});
    let body = json!({"agent": "tester", "policy": {"process": process}});
    let (id, other) = (api.create_with(&body), api.create());
    let of = |rest: &str| format!("{SESSIONS}/{id}{rest}");
    let minted = api.post(
        &of("/tokens"),
        &json!({"ops": ["exec", "read", "files.read"]}),
    );
    let secret = minted.expect(201)["token"]
        .as_str()
        .expect("a secret")
        .to_owned();
    let holder = api.with_token(Some(&secret));
    assert_eq!(holder.exec(&id, "echo mine").text(), "mine\n");
    let held = holder
        .try_exec(&id, &json!({"command": "touch x"}))
        .expect(428);
    let approval = held["approval_id"].as_str().expect("an id").to_owned();
    let attempts = [
        (
            "another session",
            "POST",
            format!("{SESSIONS}/{other}/exec"),
            "{\"command\":\"true\"}",
        ),
        (
            "another session's files",
            "GET",
            format!("{SESSIONS}/{other}/files?path=/"),
            "",
        ),
        (
            "another session's end",
            "DELETE",
            format!("{SESSIONS}/{other}"),
            "",
        ),
        (
            "a token of its own making",
            "POST",
            of("/tokens"),
            "{\"ops\":[\"exec\"]}",
        ),
        (
            "its own approval",
            "POST",
            of(&format!("/approvals/{approval}/approve")),
            "{}",
        ),
        (
            "its own denial",
            "POST",
            of(&format!("/approvals/{approval}/deny")),
            "{}",
        ),
        (
            "a session without rules",
            "POST",
            SESSIONS.to_owned(),
            "{\"agent\":\"a\"}",
        ),
        ("a child", "POST", of("/fork"), "{\"count\":1}"),
        (
            "a file of its session",
            "DELETE",
            of("/files?path=/workspace/x"),
            "",
        ),
        ("its session's end", "DELETE", of(""), ""),
        (
            "the whole ledger",
            "GET",
            "/v1/ledger/export".to_owned(),
            "",
        ),
    ];
    let refused = |id: &str| {
        let kinds = api.kinds(id);
        kinds.iter().filter(|kind| *kind == "token.refused").count()
    };
    for (name, method, path, body) in &attempts {
        let before = refused(&id);
        let answer = holder.send(method, path, &[], body.as_bytes());
        assert_eq!(answer.error(403), "forbidden", "{name}");
        assert_eq!(refused(&id), before + 1, "{name} is recorded");
    }
    // There is no way to another policy: not for the holder, nor for anybody.
    for method in ["PUT", "PATCH"] {
        for caller in [&holder, api] {
            let path = of("");
            let answer = caller.send(method, &path, &[], b"{\"policy\":{}}");
            assert!(matches!(answer.status, 403..=405), "{}", answer.status);
        }
    }
    assert_eq!(api.exec(&id, "ls").text(), "", "nothing ran");
    assert_eq!(api.session(&other)["status"], "running");
    // The control: whoever may do these things can.
    let approve = api.post(&of(&format!("/approvals/{approval}/approve")), &json!({}));
    assert_eq!(approve.expect(200)["status"], "approved");
    api.remove(&id);
    api.remove(&other);
}
