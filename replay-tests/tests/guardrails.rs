//! Rules, tokens, approvals and budgets, in the real daemon: what is refused did not run and is
//! recorded, and what is let through once is let through once.

use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

fn with_process(api: &Api, process: Value) -> String {
    api.create_with(&json!({"agent": "tester", "policy": {"process": process}}))
}

fn exec(api: &Api, id: &str, command: &str) -> fluxvm_replay_tests::Answer {
    api.try_exec(id, &json!({"command": command}))
}

#[test]
fn what_a_rule_refuses_does_not_run_and_is_recorded() {
    let daemon = shared();
    let api = daemon.api();
    let id = with_process(api, json!({"deny": ["rm -rf *"]}));
    let _ = exec(api, &id, "touch here && mkdir folder").expect(200);
    let before = api.events(&id).len();
    let lines = [
        "rm -rf folder",
        "true; sh -c 'rm -rf folder'",
        "env A=b nohup rm -rf folder",
        "echo $(rm -rf folder)",
        "sh <<EOF\nrm -rf folder\nEOF",
    ];
    for line in lines {
        assert_eq!(exec(api, &id, line).error(403), "policy_refused", "{line}");
    }
    let refused: Vec<Value> = api.events(&id).split_off(before);
    assert_eq!(refused.len(), lines.len());
    for (event, line) in refused.iter().zip(lines) {
        assert_eq!(event["kind"], "exec.refused");
        assert_eq!(event["data"]["command"], line);
        assert_eq!(event["data"]["matched"], "rm -rf *");
    }
    assert_eq!(api.exec(&id, "ls").text(), "folder\nhere\n");
    let held = exec(api, &id, "X=rm; $X -rf folder").expect(428);
    assert_eq!(held["matched"], "unjudged");
    assert_eq!(
        api.exec(&id, "echo 'rm is only a word'; ls -d folder")
            .exit_code,
        0
    );
    let record = api.session(&id);
    assert_eq!(record["policy"]["process"]["deny"][0], "rm -rf *");
    assert_eq!(record["usage"]["execs"], 3, "a refusal is no use");
    api.remove(&id);
}

#[test]
fn with_a_list_of_what_may_run_nothing_else_does() {
    let daemon = shared();
    let api = daemon.api();
    let id = with_process(
        api,
        json!({"allow": ["echo *", "ls*"], "deny": ["echo secret*"]}),
    );
    assert_eq!(api.exec(&id, "echo a && ls").text(), "a\n");
    assert_eq!(api.exec(&id, "echo 'a & b; c'").text(), "a & b; c\n");
    for line in [
        "cat /etc/passwd",
        "echo $(cat /etc/passwd)",
        "echo a; echo secret",
        "X=1 echo a",
    ] {
        assert_eq!(exec(api, &id, line).error(403), "policy_refused", "{line}");
    }
    api.remove(&id);
}

#[test]
fn a_policy_that_cannot_be_enforced_makes_no_session_unless_that_is_agreed() {
    let daemon = shared();
    let api = daemon.api();
    let create = |policy: Value| api.post(SESSIONS, &json!({"agent": "a", "policy": policy}));
    assert_eq!(
        create(json!({"preset": "developer-safe"})).error(400),
        "not_enforceable"
    );
    let agreed = json!({"preset": "developer-safe", "network": {"enforcement": "best-effort"}});
    let record = create(agreed).expect(201);
    let id = record["id"].as_str().expect("an id");
    assert_eq!(record["policy"]["offline"], true);
    assert!(
        record["policy"]["allow_hosts"]
            .as_array()
            .is_some_and(|hosts| hosts.len() == 11)
    );
    assert_eq!(record["capabilities"]["http_policy"], false);
    assert!(api.kinds(id).contains(&"policy.http_unenforced".to_owned()));
    api.remove(id);
    for (policy, field) in [
        (
            json!({"process": {"ask": [{"match": "x", "approvers": 9}]}}),
            "policy.process.ask.approvers",
        ),
        (json!({"process": {"alow": []}}), "policy.process.alow"),
        (
            json!({"network": {"allow": ["https://a"]}}),
            "policy.network.allow.host",
        ),
        (
            json!({"filesystem": {"read": ["x"], "enforcement": "best-effort"}}),
            "policy.filesystem.read",
        ),
    ] {
        assert_eq!(create(policy).expect(400)["field"], field);
    }
}

#[test]
fn a_token_reaches_its_session_for_its_operations_and_what_else_it_tries_is_recorded() {
    let daemon = shared();
    let api = daemon.api();
    let (id, other) = (api.create(), api.create());
    let of = |rest: &str| format!("{SESSIONS}/{id}{rest}");
    let minted = api
        .post(
            &of("/tokens"),
            &json!({"ops": ["exec", "read"], "label": "codex"}),
        )
        .expect(201);
    let secret = minted["token"].as_str().expect("a secret").to_owned();
    assert!(secret.starts_with("fxst_"), "{minted}");
    let holder = api.with_token(Some(&secret));
    assert_eq!(holder.exec(&id, "echo mine").text(), "mine\n");
    assert_eq!(holder.session(&id)["id"], id.as_str());
    let outcome = api.only_event(&id, "exec");
    assert_eq!(
        outcome["actor"],
        format!("session-token:{}", minted["id"].as_str().expect("id"))
    );
    let tries = [
        ("GET", format!("{SESSIONS}/{other}")),
        ("POST", format!("{SESSIONS}/{other}/exec")),
        ("POST", of("/tokens")),
        ("GET", of("/tokens")),
        ("DELETE", of("")),
        ("GET", SESSIONS.to_owned()),
        ("POST", SESSIONS.to_owned()),
        ("GET", "/v1/ledger/export".to_owned()),
        (
            "POST",
            of("/approvals/0c1d2e3f-0000-4000-8000-000000000001/approve"),
        ),
        ("GET", of("/files/content")),
    ];
    for (method, path) in &tries {
        let answer = holder.send(method, path, &[], b"{\"command\":\"true\"}");
        assert_eq!(answer.error(403), "forbidden", "{method} {path}");
    }
    let into_other = json!({"target": other});
    assert_eq!(
        holder.post(&of("/replay"), &into_other).error(403),
        "forbidden"
    );
    let refused = api
        .kinds(&id)
        .iter()
        .filter(|kind| *kind == "token.refused")
        .count();
    assert_eq!(refused, tries.len());
    assert_eq!(
        api.kinds(&other),
        ["session.create.started", "session.create"]
    );

    let listed = api.get(&of("/tokens")).expect(200);
    assert_eq!(listed["items"].as_array().expect("items").len(), 1);
    assert!(!listed.to_string().contains("fxst_"));
    let export = String::from_utf8_lossy(&api.export_ledger()).into_owned();
    assert!(!export.contains("fxst_"), "no secret is in the ledger");

    let mut stream = holder.stream(&id, "", None);
    assert_eq!(stream.next_frame().event, "ledger");
    let token = of(&format!("/tokens/{}", minted["id"].as_str().expect("id")));
    assert!(api.delete(&token).expect(204).is_null());
    while stream.next_or_end().is_some() {}
    assert_eq!(holder.get(&of("")).error(401), "unauthorized");
    assert_eq!(api.delete(&token).status, 204, "again is fine");
    for body in [
        json!({"ops": []}),
        json!({"ops": ["fork"]}),
        json!({"ops": ["read"], "ttl_seconds": 86_401}),
    ] {
        assert_eq!(api.post(&of("/tokens"), &body).error(400), "invalid_field");
    }
    for _ in 0..32 {
        let _ = api
            .post(&of("/tokens"), &json!({"ops": ["read"]}))
            .expect(201);
    }
    assert_eq!(
        api.post(&of("/tokens"), &json!({"ops": ["read"]}))
            .error(409),
        "too_many_tokens"
    );
    let last = api.with_token(Some(&secret));
    api.remove(&id);
    assert_eq!(last.get(&of("")).error(401), "unauthorized");
    api.remove(&other);
}

#[test]
fn a_command_waits_for_people_and_their_word_counts_once() {
    let daemon = shared();
    let api = daemon.api();
    let id = with_process(api, json!({"ask": ["touch *"]}));
    let approvals = format!("{SESSIONS}/{id}/approvals");
    let held = exec(api, &id, "touch approved").expect(428);
    let approval = held["approval_id"].as_str().expect("an id").to_owned();
    assert_eq!(held["matched"], "touch *");
    assert_eq!(held["runs"], json!(["touch approved"]));
    assert_eq!(held["cwd"], "/workspace");
    let again = exec(api, &id, "touch approved").expect(428);
    assert_eq!(again["approval_id"], approval.as_str(), "the same request");
    assert_eq!(api.exec(&id, "ls").text(), "");

    let with =
        |command: &str| api.try_exec(&id, &json!({"command": command, "approval_id": approval}));
    assert_eq!(with("touch approved").error(428), "approval_required");
    let decided = api.post(
        &format!("{approvals}/{approval}/approve"),
        &json!({"note": "fine"}),
    );
    assert_eq!(decided.expect(200)["status"], "approved");
    let twice = api.send("POST", &format!("{approvals}/{approval}/deny"), &[], b"");
    assert_eq!(twice.error(409), "approval_decided");
    assert_eq!(with("touch other").error(403), "approval_refused");
    let longer =
        json!({"command": "touch approved", "approval_id": approval, "timeout_seconds": 9});
    assert_eq!(api.try_exec(&id, &longer).error(403), "approval_refused");
    let _ = with("touch approved").expect(200);
    assert_eq!(with("touch approved").error(403), "approval_refused");
    assert_eq!(api.exec(&id, "ls").text(), "approved\n");

    let denied = exec(api, &id, "touch denied").expect(428);
    let denied = denied["approval_id"].as_str().expect("an id");
    let answer = api.send("POST", &format!("{approvals}/{denied}/deny"), &[], b"");
    assert_eq!(answer.expect(200)["status"], "denied");
    let request = json!({"command": "touch denied", "approval_id": denied});
    assert_eq!(api.try_exec(&id, &request).error(403), "approval_refused");
    let missing = format!("{approvals}/0c1d2e3f-0000-4000-8000-000000000001/approve");
    assert_eq!(
        api.send("POST", &missing, &[], b"").error(404),
        "approval_not_found"
    );

    let approved = api.only_event(&id, "approval.approved");
    assert_eq!(approved["data"]["by"], "admin:local");
    let kinds = api.kinds(&id);
    let place = |kind: &str| kinds.iter().position(|it| it == kind).expect("recorded");
    assert!(place("approval.consumed") < kinds.len());
    let consumed = place("approval.consumed");
    assert_eq!(
        kinds[consumed + 1],
        "exec.started",
        "in one piece with the command"
    );
    let statuses: Vec<Value> = api.get(&approvals).expect(200)["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["status"].clone())
        .collect();
    assert_eq!(statuses, ["consumed", "denied"]);
    api.remove(&id);
}

#[test]
fn a_held_request_goes_on_when_it_is_approved_and_holds_nothing_meanwhile() {
    let daemon = shared();
    let api = daemon.api();
    let id = with_process(api, json!({"ask": ["echo held"]}));
    let mut stream = api.stream(&id, "", None);
    let body = json!({"command": "echo held", "approval_wait_seconds": 60});
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| api.try_exec(&id, &body).expect(200));
        let seen = stream.until("approval.requested");
        let asked = seen.last().expect("the request").data["data"]["approval_id"].clone();
        let asked = asked.as_str().expect("an id");
        assert_eq!(api.exec(&id, "echo meanwhile").text(), "meanwhile\n");
        let path = format!("{SESSIONS}/{id}/approvals/{asked}/approve");
        let _ = api.send("POST", &path, &[], b"").expect(200);
        assert_eq!(waiting.join().expect("answered")["stdout"], "held\n");
    });
    let short = json!({"command": "echo held", "approval_wait_seconds": 1});
    assert_eq!(api.try_exec(&id, &short).error(428), "approval_required");
    let long = json!({"command": "echo held", "approval_wait_seconds": 121});
    assert_eq!(api.try_exec(&id, &long).error(400), "invalid_field");
    api.remove(&id);
}

const OPS: &str = "the-token-of-operations";
const SECURITY: &str = "the-token-of-security";
const SLOW: &str = "a-token-that-asks-often";

fn configured(state: &State, auth: &str) -> Daemon {
    let config = state.beside("config.toml");
    let token = |token: &str, name: &str| {
        format!("[[auth.tokens]]\ntoken = \"{token}\"\nrole = \"admin\"\nname = \"{name}\"\n")
    };
    let tokens = [
        token(OPS, "ops"),
        token(SECURITY, "security"),
        token(SLOW, "slow"),
    ];
    std::fs::write(&config, format!("{auth}{}", tokens.concat())).expect("a config");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).expect("mode");
    Start::new(state)
        .words(&["--config", config.to_str().expect("a path")])
        .ready()
}

#[test]
fn two_approvers_are_two_people() {
    let state = State::new();
    let daemon = configured(&state, "");
    let api = daemon.api();
    let id = with_process(api, json!({"ask": [{"match": "echo *", "approvers": 2}]}));
    let held = exec(api, &id, "echo both").expect(428);
    let approval = held["approval_id"].as_str().expect("an id");
    let approve = |token: &str| {
        let path = format!("{SESSIONS}/{id}/approvals/{approval}/approve");
        api.with_token(Some(token)).send("POST", &path, &[], b"")
    };
    assert_eq!(approve(OPS).expect(200)["status"], "pending");
    assert_eq!(approve(OPS).error(409), "approval_decided");
    assert_eq!(approve(SECURITY).expect(200)["status"], "approved");
    let request = json!({"command": "echo both", "approval_id": approval});
    let _ = api.try_exec(&id, &request).expect(200);
    let consumed = api.only_event(&id, "approval.consumed");
    assert_eq!(
        consumed["data"]["approved_by"],
        json!(["admin:ops", "admin:security"])
    );
}

#[test]
fn an_actor_that_asks_too_often_is_told_when_to_come_back() {
    let state = State::new();
    let auth = "[auth]\nrate_limit_rps = 1\nrate_limit_burst = 5\n";
    let daemon = configured(&state, auth);
    let slow = daemon.api().with_token(Some(SLOW));
    let answers: Vec<_> = (0..20).map(|_| slow.get("/v1/capabilities")).collect();
    let refused = answers.iter().find(|it| it.status == 429).expect("a limit");
    assert_eq!(refused.error(429), "rate_limited");
    let after = refused.headers["retry-after"].to_str().expect("text");
    assert!(
        after.parse::<u64>().is_ok_and(|seconds| seconds >= 1),
        "{after}"
    );
    assert_eq!(slow.get("/healthz").status, 200);
    assert_eq!(
        daemon
            .api()
            .with_token(Some(OPS))
            .get("/v1/capabilities")
            .status,
        200
    );
    // The test's own end asks as another actor, at its own rate.
    daemon.terminate();
}

#[test]
fn a_budget_is_what_a_session_may_use_and_no_more() {
    let daemon = shared();
    let api = daemon.api();
    let create = |budget: Value| api.create_with(&json!({"agent": "a", "budget": budget}));
    let counted = create(json!({"max_execs": 2}));
    assert_eq!(api.session(&counted)["budget"]["max_execs"], 2);
    assert_eq!(api.exec(&counted, "echo 1").text(), "1\n");
    assert_eq!(api.exec(&counted, "echo 2").text(), "2\n");
    assert_eq!(exec(api, &counted, "echo 3").error(403), "budget_exceeded");
    assert_eq!(
        api.only_event(&counted, "exec.refused")["data"]["code"],
        "budget_exceeded"
    );
    api.remove(&counted);

    let timed = create(json!({"max_exec_seconds": 1}));
    let stopped = api.exec_within(&timed, 60.0, "sleep 60");
    assert_eq!(
        stopped.json["timed_out"], true,
        "it got what was left and was stopped"
    );
    assert_eq!(exec(api, &timed, "true").error(403), "budget_exceeded");
    api.remove(&timed);

    let short = create(json!({"max_output_bytes": 4}));
    let cut = api.exec(&short, "echo 123456; exit 3");
    assert_eq!((cut.text(), cut.exit_code), ("1234", 3));
    assert_eq!(cut.json["stdout_dropped_bytes"], 3);
    api.remove(&short);

    let tokens = create(json!({"max_input_tokens": 100, "max_cost_usd": 0.5}));
    let usage = format!("{SESSIONS}/{tokens}/usage");
    let used = api.post(
        &usage,
        &json!({"model": "m", "input_tokens": 60, "cost_usd": 0.1}),
    );
    assert_eq!(used.expect(200)["cost_usd"], 0.1);
    let _ = exec(api, &tokens, "true").expect(200);
    let _ = api.post(&usage, &json!({"input_tokens": 60})).expect(200);
    assert_eq!(exec(api, &tokens, "true").error(403), "budget_exceeded");
    assert_eq!(
        api.post(&usage, &json!({"cost_usd": -1})).error(400),
        "invalid_field"
    );
    api.remove(&tokens);
}

#[test]
fn two_hundred_callers_at_once_and_one_of_them_wins() {
    let daemon = shared();
    let api = daemon.api();
    let winners = |id: &str, body: &Value, headers: &[(&str, &str)]| {
        let start = Barrier::new(200);
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..200)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let path = format!("{SESSIONS}/{id}/exec");
                        let answer = api.send("POST", &path, headers, body.to_string().as_bytes());
                        (
                            answer.status,
                            answer.headers.contains_key("idempotent-replayed"),
                        )
                    })
                })
                .collect();
            let answers = callers.into_iter().map(|it| it.join().expect("answered"));
            answers
                .filter(|(status, replayed)| *status == 200 && !replayed)
                .count()
        })
    };
    let last = api.create_with(&json!({"agent": "a", "budget": {"max_execs": 1}}));
    assert_eq!(
        winners(&last, &json!({"command": "echo x >> file"}), &[]),
        1
    );
    assert_eq!(api.session(&last)["usage"]["execs"], 1);
    api.remove(&last);

    let id = with_process(api, json!({"ask": ["echo x *"]}));
    let held = exec(api, &id, "echo x >> file").expect(428);
    let approval = held["approval_id"].as_str().expect("an id");
    let path = format!("{SESSIONS}/{id}/approvals/{approval}/approve");
    let _ = api.send("POST", &path, &[], b"").expect(200);
    let body = json!({"command": "echo x >> file", "approval_id": approval});
    assert_eq!(winners(&id, &body, &[]), 1);
    assert_eq!(api.exec(&id, "cat file").text(), "x\n");
    api.remove(&id);

    let id = api.create();
    let body = json!({"command": "echo x >> file"});
    assert_eq!(winners(&id, &body, &[("idempotency-key", "one")]), 1);
    assert_eq!(api.exec(&id, "cat file").text(), "x\n");
    api.remove(&id);
}

#[test]
fn what_was_decided_is_still_decided_after_the_daemon_was_killed() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let body = json!({"agent": "a", "policy": {"process": {"ask": ["echo x"]}}, "budget": {"max_execs": 2}});
    let id = api.create_with(&body);
    let minted = api
        .post(
            &format!("{SESSIONS}/{id}/tokens"),
            &json!({"ops": ["exec"]}),
        )
        .expect(201);
    let approval = |api: &Api| {
        let held = exec(api, &id, "echo x").expect(428);
        let approval = held["approval_id"].as_str().expect("an id").to_owned();
        let path = format!("{SESSIONS}/{id}/approvals/{approval}/approve");
        let _ = api.send("POST", &path, &[], b"").expect(200);
        json!({"command": "echo x", "approval_id": approval})
    };
    let first = approval(api);
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let holder = daemon.api().with_token(minted["token"].as_str());
    let _ = holder.try_exec(&id, &first).expect(200);
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    assert_eq!(api.try_exec(&id, &first).error(403), "approval_refused");
    let second = approval(api);
    let _ = api.try_exec(&id, &second).expect(200);
    assert_eq!(exec(api, &id, "true").error(403), "budget_exceeded");
}
