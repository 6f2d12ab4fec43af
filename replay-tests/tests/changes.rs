//! What sessions made of their workspaces: listed, compared line by line, and carried from a child to its
//! parent, all of it or nothing.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

fn run(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

fn diff(api: &Api, id: &str, query: &str) -> Value {
    api.get(&format!("{SESSIONS}/{id}/diff{query}")).expect(200)
}

/// `change path` for each that differs.
fn changes(diff: &Value) -> Vec<String> {
    let word = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    let items = diff["items"].as_array().expect("a list").iter();
    items
        .map(|item| format!("{} {}", word(item, "change"), word(item, "path")))
        .collect()
}

fn artifacts(api: &Api, id: &str) -> Value {
    api.get(&format!("{SESSIONS}/{id}/artifacts")).expect(200)
}

fn promote(api: &Api, child: &str, body: &Value) -> Value {
    api.ask(child, "promote", body).expect(200)
}

fn checkpoints_on_disk(api: &Api, id: &str) -> usize {
    api.tags(id).len()
}

#[test]
fn artifacts_are_what_a_session_made_since_it_began() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let none = artifacts(api, &id);
    assert_eq!(none["workspace"]["added"], json!([]), "{none}");
    run(
        api,
        &id,
        "mkdir d; echo 1 >d/a; ln -s d/a l; echo x >/tmp/elsewhere",
    );
    let made = artifacts(api, &id);
    assert_eq!(made["workspace"]["added"], json!(["d", "d/a", "l"]));
    assert_eq!(made["counters"]["execs"], 1);
    let child = api.fork(&id, 1).remove(0);
    run(api, &child, "echo 2 >d/a; rm l; echo 3 >c");
    let made = artifacts(api, &child);
    assert_eq!(made["workspace"]["added"], json!(["c"]), "since the fork");
    assert_eq!(made["workspace"]["modified"], json!(["d/a"]));
    assert_eq!(made["workspace"]["deleted"], json!(["l"]));
    assert_eq!(artifacts(api, &id)["children"], json!([child]));
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn any_two_states_are_compared_line_by_line() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(
        api,
        &id,
        "printf 'one\\ntwo\\n' >f; printf '\\0' >bin; echo same >s",
    );
    api.checkpoint(&id, "first");
    api.rewind_on(&id, 5);
    run(
        api,
        &id,
        "printf 'one\\n2\\n' >f; printf '\\0\\0' >bin; chmod 600 s; ln -s /etc/shadow l",
    );
    let all = diff(api, &id, "?from=first");
    assert_eq!(
        changes(&all),
        ["modified bin", "modified f", "added l", "modified s"]
    );
    let patch = all["items"][1]["diff"].as_str().expect("a patch");
    assert!(
        patch.ends_with("@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
        "{patch}"
    );
    assert_eq!(all["items"][0]["omitted"], "binary");
    assert_eq!(all["items"][2]["after"]["target"], "/etc/shadow");
    assert_eq!(all["items"][3]["diff"], Value::Null, "only its mode");
    assert_eq!(changes(&diff(api, &id, "?from=rw-1&to=first")), [""; 0]);
    assert_eq!(
        changes(&diff(api, &id, "?from=first&path=f")),
        ["modified f"]
    );
    assert_eq!(changes(&diff(api, &id, "?from=now&to=now")), [""; 0]);
    let child = api.fork(&id, 1).remove(0);
    run(api, &child, "rm f");
    let between = diff(api, &id, &format!("?from=now&to={child}"));
    assert_eq!(changes(&between), ["deleted f"]);
    let back = diff(
        api,
        &child,
        &format!("?from=now&to={id}:first&path=/workspace/f"),
    );
    assert_eq!(changes(&back), ["added f"]);
    for (query, status, code) in [
        ("?from=nothing", 404, "tag_not_found"),
        ("?path=../../etc", 400, "invalid_field"),
        ("?path=/etc/passwd", 400, "invalid_field"),
        ("?form=now", 400, "unknown_field"),
    ] {
        let answer = api.get(&format!("{SESSIONS}/{id}/diff{query}"));
        assert_eq!(answer.error(status), code, "{query}");
    }
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn a_childs_changes_are_carried_to_its_parent_as_planned() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(
        api,
        &id,
        "mkdir d; echo 1 >d/a; echo 1 >b; echo 1 >gone; echo mine >parent",
    );
    let child = api.fork(&id, 1).remove(0);
    run(
        api,
        &child,
        "echo 2 >d/a; rm gone; mkdir -p n/m; echo new >n/m/x; ln -s b l; chmod 700 b",
    );
    run(api, &id, "echo more >>parent");
    let planned = promote(api, &child, &json!({"dry_run": true}));
    assert_eq!(
        planned["plan"]["apply"]["added"],
        json!(["l", "n", "n/m", "n/m/x"])
    );
    assert_eq!(planned["plan"]["apply"]["modified"], json!(["b", "d/a"]));
    assert_eq!(planned["plan"]["apply"]["deleted"], json!(["gone"]));
    assert_eq!(planned["not_carried"]["memory_and_processes"], true);
    assert_eq!(run(api, &id, "cat d/a"), "1\n", "nothing is done");
    let other = api.ask(&child, "promote", &json!({"plan_id": "other"}));
    assert_eq!(other.error(409), "plan_changed");
    assert_eq!(checkpoints_on_disk(api, &id), 0, "a refusal leaves nothing");
    let done = promote(api, &child, &json!({"plan_id": planned["plan_id"]}));
    assert_eq!(done["plan"], planned["plan"]);
    let look = "cat d/a n/m/x parent; readlink l; stat -c %a b; ls";
    assert_eq!(
        run(api, &id, look),
        "2\nnew\nmine\nmore\nb\n700\nb\nd\nl\nn\nparent\n"
    );
    let event = api.only_event(&id, "promote");
    assert_eq!(event["data"]["plan_id"], planned["plan_id"]);
    assert_eq!(api.only_event(&child, "promote.out")["data"]["carried"], 7);
    let again = promote(api, &child, &json!({"dry_run": true}));
    assert_eq!(
        again["plan"]["apply"]["added"],
        json!([]),
        "it is there already"
    );
    let tag = done["checkpoint"].as_str().expect("a tag");
    api.restore(&id, tag);
    assert_eq!(
        run(api, &id, "cat d/a gone"),
        "1\n1\n",
        "and it can be undone"
    );
    verified(&api.export_ledger());
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn what_both_sides_changed_is_never_overwritten() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(api, &id, "echo 1 >both; echo 1 >one");
    let child = api.fork(&id, 1).remove(0);
    run(
        api,
        &child,
        "echo child >both; echo child >one; mkdir d; echo x >d/x",
    );
    run(api, &id, "echo parent >both");
    let refused = api.ask(&child, "promote", &json!({}));
    assert_eq!(refused.error(409), "conflicts");
    assert_eq!(
        run(api, &id, "cat both one"),
        "parent\n1\n",
        "nothing is done"
    );
    let part = promote(api, &child, &json!({"paths": ["/workspace/d"]}));
    assert_eq!(part["plan"]["apply"]["added"], json!(["d", "d/x"]));
    let rest = promote(api, &child, &json!({"skip_conflicts": true}));
    assert_eq!(rest["plan"]["conflicts"], json!(["both"]));
    assert_eq!(rest["skipped"], 1);
    assert_eq!(run(api, &id, "cat both one d/x"), "parent\nchild\nx\n");
    for (body, status, code) in [
        (json!({"paths": ["../x"]}), 400, "invalid_field"),
        (json!({"paths": ["/etc"]}), 400, "invalid_field"),
        (json!({"dryrun": true}), 400, "unknown_field"),
    ] {
        assert_eq!(
            api.ask(&child, "promote", &body).error(status),
            code,
            "{body}"
        );
    }
    let orphan = api.ask(&id, "promote", &json!({}));
    assert_eq!(orphan.error(409), "no_baseline");
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn c10_a_link_is_carried_as_a_link_and_leads_nowhere() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(
        api,
        &id,
        "mkdir d; echo 1 >d/x; echo kept >/tmp/outside; mkdir /tmp/folder",
    );
    let child = api.fork(&id, 1).remove(0);
    run(
        api,
        &child,
        "ln -s /etc link; echo 2 >d/x; mkdir d/new; echo 3 >d/new/y; mkfifo pipe",
    );
    // The folder that the child writes to leads out of the parent's workspace now.
    run(api, &id, "rm -r d; ln -s /tmp/folder d");
    let done = promote(api, &child, &json!({"skip_conflicts": true}));
    assert_eq!(done["plan"]["apply"]["added"], json!(["link"]));
    assert_eq!(
        done["plan"]["conflicts"],
        json!(["d/new", "d/new/y", "d/x", "pipe"])
    );
    assert_eq!(
        run(api, &id, "readlink link; ls /tmp/folder; cat /tmp/outside"),
        "/etc\nkept\n"
    );
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn c40_a_tree_with_everything_in_it_is_promoted_whole() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let child = api.fork(&id, 1).remove(0);
    run(
        api,
        &child,
        "mkdir -p t/empty t/deep/er && echo x >t/file && chmod 4751 t/file && ln -s file t/link && \
         ln -s /nowhere t/dangling && printf 'a\\nb' >'t/a name with \\ and é' && \
         touch -d '2001-02-03 04:05:06.789' t/file && chown 7:8 t/link && touch -h -d 2003-03-03 t/link \
         && chmod 1777 t/empty && touch -d '2002-02-02' t/deep t/deep/er t/empty t",
    );
    let look = "find t -printf '%p %y %m %U %s %T@ %l\\n' | sort; sha256sum t/file t/a*";
    let before = run(api, &child, look);
    promote(api, &child, &json!({}));
    assert_eq!(run(api, &id, look), before);
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn neither_side_may_be_at_work() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let child = api.fork(&id, 1).remove(0);
    run(api, &child, "echo 1 >a");
    for working in [&id, &child] {
        std::thread::scope(|scope| {
            let command = "touch /tmp/begun; until [ -e /tmp/go ]; do sleep 0.02; done; rm /tmp/go";
            let at_work = scope.spawn(move || api.exec(working, command));
            eventually("the command runs", || {
                let session = api.session(working);
                let in_flight = session["in_flight"].as_array().map_or(0, Vec::len);
                (in_flight > 0).then_some(())
            });
            let refused = api.ask(&child, "promote", &json!({}));
            assert_eq!(refused.error(409), "commands_running");
            run(api, working, "touch /tmp/go");
            assert_eq!(at_work.join().expect("it ended").exit_code, 0);
        });
    }
    promote(api, &child, &json!({}));
    api.remove(&child);
    api.remove(&id);
}

#[test]
fn a_trajectory_is_every_step_in_order() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let _ = api.exec(&id, "exit 3");
    let way = api.get(&format!("{SESSIONS}/{id}/trajectory")).expect(200);
    assert_eq!(way["session"]["id"], id.as_str());
    let steps = way["steps"].as_array().expect("a list");
    let kinds: Vec<&str> = steps
        .iter()
        .filter_map(|step| step["kind"].as_str())
        .collect();
    assert_eq!(kinds, api.kinds(&id));
    let numbers: Vec<u64> = steps.iter().filter_map(|step| step["n"].as_u64()).collect();
    assert_eq!(numbers, (1..=steps.len() as u64).collect::<Vec<_>>());
    let exec = steps.last().expect("a step");
    assert_eq!(
        (&exec["command"], &exec["exit_code"]),
        (&json!("exit 3"), &json!(3))
    );
    api.remove(&id);
}
