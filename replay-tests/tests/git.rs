//! Git in a session: look, commit, branch, and what goes wrong under its own name.

use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

fn git(api: &Api, id: &str, what: &str) -> Answer {
    api.get(&format!("{SESSIONS}/{id}/git/{what}"))
}

fn commit(api: &Api, id: &str, body: &Value) -> Answer {
    api.post(&format!("{SESSIONS}/{id}/git/commit"), body)
}

fn branch(api: &Api, id: &str, name: &str) -> Answer {
    api.post(
        &format!("{SESSIONS}/{id}/git/branch"),
        &json!({"name": name}),
    )
}

fn in_repository(api: &Api) -> String {
    let id = api.create();
    let made = api.exec(
        &id,
        "git init -q -b main . && echo one >a && echo two >'b c'",
    );
    assert_eq!(made.exit_code, 0, "{:?}", made.stderr);
    id
}

#[test]
fn a_repository_is_looked_at_committed_to_and_branched() {
    let daemon = shared();
    let api = daemon.api();
    let id = in_repository(api);
    assert_eq!(git(api, &id, "log").expect(200)["commits"], json!([]));
    let status = git(api, &id, "status").expect(200);
    assert_eq!(
        (&status["branch"], &status["commit"]),
        (&json!("main"), &Value::Null)
    );
    assert_eq!(status["changes"][1]["path"], "b c");
    let first = commit(
        api,
        &id,
        &json!({"message": "first\n\n-m no option; $(id)"}),
    )
    .expect(200);
    assert_eq!(first["author"], "FluxVM Agent <agent@fluxvm.local>");
    assert_eq!(
        (&first["branch"], &first["parent"]),
        (&json!("main"), &Value::Null)
    );
    let told = api.exec(&id, "git log -1 --format='%H %T %an %cn%n%B'");
    let expected = format!(
        "{} {} FluxVM Agent FluxVM Agent\nfirst\n\n-m no option; $(id)\n\n",
        first["commit"].as_str().unwrap(),
        first["tree"].as_str().unwrap()
    );
    assert_eq!(told.text(), expected);
    assert_eq!(
        commit(api, &id, &json!({"message": "x"})).error(409),
        "nothing_to_commit"
    );
    assert_eq!(git(api, &id, "status").expect(200)["clean"], true);

    assert_eq!(
        api.exec(
            &id,
            "git config user.name Ada; echo 1 >>a; echo 2 >>'b c'; git add a"
        )
        .exit_code,
        0
    );
    let diff = git(api, &id, "diff?staged=true").expect(200);
    assert!(
        diff["diff"]
            .as_str()
            .is_some_and(|text| text.contains("\n+1\n") && !text.contains("\n+2\n"))
    );
    let diff = git(api, &id, "diff?path=b%20c").expect(200);
    assert!(
        diff["diff"]
            .as_str()
            .is_some_and(|text| text.contains("\n+2\n") && !text.contains("\n+1\n"))
    );
    let staged = commit(api, &id, &json!({"message": "staged", "staged_only": true})).expect(200);
    assert_eq!(staged["author"], "Ada <agent@fluxvm.local>");
    assert_eq!(staged["parent"], first["commit"]);
    let more = json!({"message": "x", "staged_only": true});
    assert_eq!(commit(api, &id, &more).error(409), "nothing_to_commit");
    let made = branch(api, &id, "agent/try-1").expect(200);
    assert_eq!(made["commit"], staged["commit"]);
    assert_eq!(branch(api, &id, "agent/try-1").error(409), "branch_exists");
    assert_eq!(branch(api, &id, "main").error(409), "branch_exists");
    let log = git(api, &id, "log?n=1").expect(200);
    assert_eq!(log["commits"].as_array().map(Vec::len), Some(1));
    assert_eq!(log["commits"][0]["subject"], "staged");
    assert_eq!(
        api.only_event(&id, "git.branch")["data"]["name"],
        "agent/try-1"
    );
    let kinds = api.kinds(&id);
    let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert_eq!(
        (count("git.commit"), count("git.failed"), count("exec")),
        (2, 0, 2 + 1)
    );
    api.remove(&id);
}

#[test]
fn what_git_cannot_do_has_a_name_and_what_is_unsafe_never_reaches_it() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    assert_eq!(git(api, &id, "status").error(404), "repository_not_found");
    assert_eq!(
        git(api, &id, "status?repo=/nowhere").error(404),
        "repository_not_found"
    );
    assert_eq!(git(api, &id, "diff").error(404), "repository_not_found");
    for repo in ["relative", "/a/../b", "/a%00"] {
        assert_eq!(
            git(api, &id, &format!("status?repo={repo}")).error(400),
            "invalid_field"
        );
    }
    assert_eq!(api.exec(&id, "git init -q .").exit_code, 0);
    for name in ["", "-d", "a..b", "a b", "../x", "a.lock", "HEAD", "x\ny"] {
        assert_eq!(
            branch(api, &id, name).error(400),
            "invalid_field",
            "{name:?}"
        );
    }
    for path in ["/etc/passwd", "../x", "--output=/tmp/x", ":(top)x"] {
        let path: String = path.bytes().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(
            git(api, &id, &format!("diff?path={path}")).error(400),
            "invalid_field"
        );
    }
    assert_eq!(
        commit(api, &id, &json!({"message": " "})).error(400),
        "invalid_field"
    );
    assert_eq!(
        commit(api, &id, &json!({"message": "x"})).error(409),
        "nothing_to_commit"
    );
    assert_eq!(git(api, &id, "log?n=0").error(400), "invalid_field");
    // A lock that somebody left: git's own words come out.
    assert_eq!(
        api.exec(&id, "echo x >x; touch .git/index.lock").exit_code,
        0
    );
    let locked = commit(api, &id, &json!({"message": "x"}));
    assert!(
        locked.json()["error"]
            .as_str()
            .is_some_and(|text| text.contains("index.lock"))
    );
    assert_eq!(locked.error(409), "git_failed");
    assert_eq!(
        api.only_event(&id, "git.failed")["data"]["code"],
        "git_failed"
    );
    // Without git.
    let hide = "mkdir /tmp/none && for d in /usr/bin /usr/local/bin /bin; do \
                [ -e $d/git ] && rm -f $d/git; done; ! command -v git";
    assert_eq!(api.exec(&id, hide).exit_code, 0);
    assert_eq!(git(api, &id, "status").error(409), "git_missing");
    assert_eq!(
        api.get(&format!("{SESSIONS}/{id}/probe")).expect(200)["ready_for"]["git"],
        false
    );
    api.remove(&id);
}

#[test]
fn nothing_that_the_repository_names_runs_beside_git() {
    let daemon = shared();
    let api = daemon.api();
    let id = in_repository(api);
    let hooks = "printf '#!/bin/sh\\ntouch /tmp/ran-%s\\nexit 1\\n' hook >/tmp/evil; chmod +x /tmp/evil; \
        for h in pre-commit commit-msg prepare-commit-msg post-commit post-checkout; do \
        cp /tmp/evil .git/hooks/$h; done; mkdir h; cp /tmp/evil h/pre-commit; \
        git config core.hooksPath h; git config core.fsmonitor /tmp/evil; \
        git config diff.external /tmp/evil; git config core.pager /tmp/evil; \
        git config commit.gpgSign true; git config gpg.program /tmp/evil; \
        git config core.editor /tmp/evil";
    assert_eq!(api.exec(&id, hooks).exit_code, 0);
    let _ = git(api, &id, "status").expect(200);
    let _ = commit(api, &id, &json!({"message": "through"})).expect(200);
    assert_eq!(
        api.exec(&id, "rm -f /tmp/ran-*; echo more >>a").exit_code,
        0
    );
    let _ = git(api, &id, "diff").expect(200);
    let _ = git(api, &id, "log").expect(200);
    let _ = branch(api, &id, "quiet").expect(200);
    assert_eq!(
        api.exec(&id, "ls /tmp/ran-* 2>/dev/null | wc -l").text(),
        "0\n"
    );
    api.remove(&id);
}

#[test]
fn a_diff_that_is_too_long_is_cut_at_a_line_and_says_so() {
    let daemon = shared();
    let api = daemon.api();
    let id = in_repository(api);
    assert_eq!(api.exec(&id, "git add a; seq 1 100000 >a").exit_code, 0);
    let diff = git(api, &id, "diff").expect(200);
    let text = diff["diff"].as_str().expect("text");
    assert_eq!(diff["truncated"], true);
    assert!(
        text.len() <= 256 * 1024 && text.ends_with('\n'),
        "{}",
        text.len()
    );
    api.remove(&id);
}

#[test]
fn a_commit_or_a_branch_that_a_crash_cut_off_is_found_or_said_to_be_missing() {
    for (point, kind) in [
        ("git.commit.intent", "git.failed"),
        ("git.commit.staged", "git.failed"),
        ("git.commit.done", "git.commit"),
        ("git.branch.intent", "git.failed"),
        ("git.branch.done", "git.branch"),
    ] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let id = in_repository(daemon.api());
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let (what, body) = match point.contains("commit") {
            true => ("commit", json!({"message": "cut off"})),
            false => ("branch", json!({"name": "cut-off"})),
        };
        let path = format!("{SESSIONS}/{id}/git/{what}");
        let body = body.to_string();
        let cut_off = daemon.api().try_send("POST", &path, &[], body.as_bytes());
        assert!(cut_off.is_err(), "{point}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        assert_eq!(api.session(&id)["in_flight"], json!([]), "{point}");
        let outcome = api.only_event(&id, kind);
        match kind {
            "git.failed" => assert_eq!(outcome["data"]["code"], "interrupted", "{point}"),
            _ => assert_eq!(outcome["data"]["recovered"], true, "{point}"),
        }
        if what == "commit" {
            let made = api.exec(&id, "git log --format=%s").text() == "cut off\n";
            assert_eq!(made, kind == "git.commit", "{point}");
            if !made {
                let _ = commit(api, &id, &json!({"message": "again"})).expect(200);
            }
        }
    }
}

#[test]
fn the_probe_says_what_is_there_and_what_that_is_enough_for() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let probed = api.get(&format!("{SESSIONS}/{id}/probe")).expect(200);
    for (tool, path) in probed["tools"].as_object().expect("tools") {
        if tool == "playwright_browsers" {
            continue;
        }
        let there = api.exec(&id, &format!("command -v {tool}"));
        let expected = (there.exit_code == 0).then(|| there.text().trim().to_owned());
        assert_eq!(path.as_str(), expected.as_deref(), "{tool}");
    }
    assert_eq!(probed["ready_for"]["git"], true);
    assert_eq!(probed["ready_for"]["promote"], true);
    api.remove(&id);
}
