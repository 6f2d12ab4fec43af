//! What a policy says about files and programs holds for everything that runs in a session and for what
//! is done to its files from outside, stays in force over restores and forks, and is told truthfully.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

fn create(api: &Api, policy: Value) -> String {
    api.create_with(&json!({"agent": "tester", "policy": policy}))
}

fn with_files(api: &Api) -> String {
    create(
        api,
        json!({"filesystem": {"read": ["/opt/**"], "write": ["/srv"]}}),
    )
}

fn with_programs(api: &Api, allow: &[&str]) -> String {
    create(api, json!({"process": {"allow": allow, "enforce": "exec"}}))
}

fn readonly(api: &Api) -> String {
    let body = json!({"agent": "tester", "workspace": {"mode": "readonly"}});
    api.create_with(&body)
}

fn put(api: &Api, id: &str, path: &str) -> Answer {
    let body = json!({"path": path, "content_base64": STANDARD.encode("new"), "mode": "755"});
    let url = format!("{SESSIONS}/{id}/files/content");
    api.send("PUT", &url, &[], body.to_string().as_bytes())
}

fn get(api: &Api, id: &str, what: &str, path: &str) -> Answer {
    api.get(&format!("{SESSIONS}/{id}/files{what}?path={path}"))
}

fn delete(api: &Api, id: &str, path: &str) -> Answer {
    let query = format!("path={path}&recursive=true");
    api.delete(&format!("{SESSIONS}/{id}/files?{query}"))
}

/// How a line ends in each way in which a session runs one, one after the other: they work on the same
/// files.
fn exit_codes(api: &Api, id: &str, line: &str) -> [Option<i64>; 3] {
    let job = api.background(id, line);
    [
        api.follow_job(id, &job).exit_code(),
        Some(api.exec(id, line).exit_code),
        api.exec_stream(id, &json!({"command": line})).exit_code(),
    ]
}

/// The 403 of a file route: it names the path and the rule.
fn assert_denied(answer: &Answer, path: &str, rule: &str) {
    assert_eq!(answer.error(403), "file_denied");
    let said = answer.json()["error"].as_str().expect("text").to_owned();
    assert!(said.contains(path) && said.contains(rule), "{said}");
}

#[test]
fn rules_about_files_hold_every_kind_of_command_and_the_answer_and_the_ledger_say_so() {
    let daemon = shared();
    let api = daemon.api();
    let id = with_files(api);
    let free = api.create();
    for line in [
        "echo a >/workspace/a && cat /workspace/a",
        "echo a >/srv/a && rm /srv/a",
        "ls /opt /usr /etc /proc/self",
        "echo a >/tmp/a && echo b >/dev/null && mkdir -p /tmp/b && mv /tmp/a /tmp/b/c",
        "head -c 1 /dev/urandom >/dev/null && git --version && python3 -c 'print(1)'",
    ] {
        assert_eq!(exit_codes(api, &id, line), [Some(0); 3], "{line}");
    }
    for line in [
        "ls /var",
        "ls /",
        "touch /usr/new",
        "touch /opt/new",
        "echo x >>/etc/hosts",
        "mkdir /new",
    ] {
        for code in exit_codes(api, &id, line) {
            assert!(code.is_some_and(|code| code != 0), "{line}: {code:?}");
        }
        assert_eq!(api.exec(&free, line).exit_code, 0, "without rules: {line}");
    }
    let answer = api.exec(&id, "true");
    let report = &answer.json["enforcement"];
    assert!(report["landlock_abi"].as_u64() >= Some(3), "{report}");
    for held in ["filesystem", "seccomp", "seccomp_sockets"] {
        assert_eq!(report[held], true, "{held}: {report}");
    }
    assert_eq!(report["execute"], false);
    assert_eq!(report["not_enforced"], json!([]));
    let events = api.events(&id);
    let outcome = events.iter().find(|event| event["seq"] == answer.seq);
    let recorded = &outcome.expect("its event")["data"]["enforcement"];
    assert_eq!(recorded["filesystem"], true, "{recorded}");
    let job = events.iter().find(|event| event["kind"] == "job.exit");
    assert_eq!(
        job.expect("a job ended")["data"]["enforcement"]["filesystem"],
        true
    );
    assert_eq!(api.jobs(&id)[0]["enforcement"]["filesystem"], true);
    let streamed = api.exec_stream(&id, &json!({"command": "true"}));
    assert_eq!(streamed.end.expect("an end")["enforcement"], *report);
    let record = api.session(&id);
    assert_eq!(record["policy"]["exec"]["read"], json!(["/opt"]));
    assert_eq!(record["policy"]["enforced"]["filesystem"], true);
    assert_eq!(record["capabilities"]["confinement"], true);
    let unconfined = api.exec(&free, "true");
    assert_eq!(unconfined.json["enforcement"], Value::Null);
    assert_eq!(api.session(&free)["policy"]["enforced"], Value::Null);
}

#[test]
fn file_routes_obey_the_rules_wherever_links_lead() {
    let daemon = shared();
    let api = daemon.api();
    let id = with_files(api);
    for path in ["/srv/made/here", "/workspace/here", "/tmp/here"] {
        let _ = put(api, &id, path).expect(200);
        let read = get(api, &id, "/content", path).expect(200);
        assert_eq!(read["content_base64"], STANDARD.encode("new"));
        assert_eq!(delete(api, &id, path).status, 204, "{path}");
    }
    for path in ["/var/lib/x", "/opt/x", "/usr/bin/git", "/etc/ld.so.preload"] {
        assert_denied(&put(api, &id, path), path, "policy.filesystem");
        assert_denied(&delete(api, &id, path), path, "policy.filesystem");
        let upload = api.post(
            &format!("{SESSIONS}/{id}/uploads"),
            &json!({"path": path, "size": 1}),
        );
        assert_denied(&upload, path, "policy.filesystem");
    }
    let _ = get(api, &id, "", "/usr/bin").expect(200);
    let _ = get(api, &id, "", "/bin/sh").expect(200);
    let planted =
        "ln -s /var/lib to; ln -s /root up; ln -s /proc/self/root/var magic; ln -s /etc in";
    assert_eq!(api.exec(&id, planted).exit_code, 0);
    for (path, leads) in [
        ("/workspace/to", "/var/lib"),
        ("/workspace/up", "/root"),
        ("/var", "/var"),
        ("/", "/"),
    ] {
        assert_denied(&get(api, &id, "", path), leads, "policy.filesystem");
    }
    let magic = get(api, &id, "", "/workspace/magic");
    assert!(matches!(magic.status, 400 | 403), "{}", magic.status);
    let _ = get(api, &id, "/content", "/workspace/in/passwd").expect(200);
    assert_eq!(
        put(api, &id, "/workspace/to/x").error(400),
        "symlink_in_the_way"
    );
    let kinds = api.kinds(&id);
    let begun = kinds.iter().filter(|kind| *kind == "file.write.started");
    assert_eq!(begun.count(), 4, "what is denied does not begin");
}

#[test]
fn a_list_of_programs_holds_whoever_starts_them_and_the_programs_stay_what_they_are() {
    let daemon = shared();
    let api = daemon.api();
    let allow = [
        "cat *",
        "cp *",
        "chmod *",
        "python3 *",
        "/usr/bin/env *",
        "git *",
        "sh *",
    ];
    let id = with_programs(api, &allow);
    let free = api.create();
    for line in [
        "cat /etc/hostname",
        "sh -c 'cat /etc/hostname'",
        "git --version",
    ] {
        assert_eq!(exit_codes(api, &id, line), [Some(0); 3], "{line}");
    }
    let script = "import os,sys; os.execv(sys.argv[1], sys.argv[1:])";
    let in_memory = "import os,sys; f=os.memfd_create(\"x\",0); \
                     os.write(f,open(\"/bin/ls\",\"rb\").read()); os.execv(f\"/proc/self/fd/{f}\",[\"ls\",\"/\"])";
    for line in [
        format!("python3 -c '{script}' /bin/ls /"),
        "cp /bin/ls mine && chmod 755 mine && python3 -c 'import os; os.execv(\"./mine\",[\"ls\"])'"
            .to_owned(),
        "cp /bin/ls /usr/bin/cat && cat /".to_owned(),
        format!("python3 -c '{in_memory}'"),
        "python3 -c 'import subprocess; subprocess.check_call([\"ls\"])'".to_owned(),
        "/usr/bin/env ls /".to_owned(),
        "git -c alias.x='!ls' x".to_owned(),
        "printf '#!/bin/sh\\necho no\\n' >s && chmod 755 s && sh -c ./s".to_owned(),
    ] {
        let denied = api.try_exec(&id, &json!({"command": line}));
        match denied.status {
            // The rules about lines stand before the kernel.
            403 | 428 => {}
            _ => assert_ne!(denied.expect(200)["exit_code"], 0, "{line}"),
        }
        let _ = api.exec(&free, "cp /usr/bin/cat /tmp/cat.old");
        assert_eq!(api.exec(&free, &line).exit_code, 0, "without a list: {line}");
        let _ = api.exec(&free, "cp /tmp/cat.old /usr/bin/cat");
    }
    assert_eq!(api.exec(&id, "cat /etc/hostname").exit_code, 0);
    assert_denied(
        &put(api, &id, "/usr/bin/cat"),
        "/usr/bin/cat",
        "policy.process.enforce",
    );
    let body = json!({"agent": "a", "policy": {"process":
        {"allow": ["/workspace/tool *"], "enforce": "exec"}}});
    let field = api.post(SESSIONS, &body).expect(400)["field"].clone();
    assert_eq!(
        field, "policy.process.enforce",
        "a program that commands could write"
    );
    let record = api.session(&id);
    assert_eq!(record["policy"]["process"]["enforce"], "exec");
    assert_eq!(record["policy"]["enforced"]["execute"], true);
    assert_eq!(record["capabilities"]["exec_allowlist"], true);
}

#[test]
fn git_is_confined_like_a_command_and_runs_only_where_it_is_listed() {
    let daemon = shared();
    let api = daemon.api();
    let (listed, not) = (
        with_programs(api, &["git *", "echo *"]),
        with_programs(api, &["echo *"]),
    );
    let status = |id: &str| api.get(&format!("{SESSIONS}/{id}/git/status"));
    assert_eq!(status(&not).error(403), "policy_refused");
    assert_eq!(
        api.exec(&listed, "git init -q -b main . && echo a >a")
            .exit_code,
        0
    );
    assert_eq!(status(&listed).expect(200)["branch"], "main");
    // What a repository's own configuration has git run is held back too.
    let driver =
        "git config filter.x.clean 'touch /var/ran; cat' && echo 'a filter=x' >.gitattributes";
    let id = with_files(api);
    let prepared = format!("git init -q -b main . && echo a >a && {driver}");
    assert_eq!(api.exec(&id, &prepared).exit_code, 0);
    let commit = api.post(
        &format!("{SESSIONS}/{id}/git/commit"),
        &json!({"message": "m"}),
    );
    let _ = commit.expect(200);
    let ran = "import os; print(os.access(\"/var/ran\", os.F_OK))";
    assert_eq!(
        api.exec(&id, &format!("python3 -c '{ran}'")).text(),
        "False\n"
    );
    let elsewhere = api.get(&format!("{SESSIONS}/{id}/git/status?repo=/var/lib"));
    assert_denied(&elsewhere, "/var/lib", "policy.filesystem");
}

#[test]
fn a_readonly_workspace_is_read_and_not_written_by_anyone() {
    let daemon = shared();
    let api = daemon.api();
    let id = readonly(api);
    assert_eq!(
        exit_codes(api, &id, "ls /workspace && echo a >/tmp/a"),
        [Some(0); 3]
    );
    for line in [
        "touch /workspace/a",
        "echo a >a",
        "mkdir b",
        "mv /workspace /tmp/w",
    ] {
        for code in exit_codes(api, &id, line) {
            assert!(code.is_some_and(|code| code != 0), "{line}: {code:?}");
        }
    }
    assert_denied(&put(api, &id, "/workspace/a"), "/workspace/a", "readonly");
    let upload = json!({"path": "/workspace/a", "size": 1});
    let upload = api.post(&format!("{SESSIONS}/{id}/uploads"), &upload);
    assert_denied(&upload, "/workspace/a", "readonly");
    assert_denied(
        &delete(api, &id, "/workspace/a"),
        "/workspace/a",
        "readonly",
    );
    let record = api.session(&id);
    assert_eq!(record["workspace"]["mode"], "readonly");
    assert_eq!(record["policy"]["enforced"]["filesystem"], true);
    for (workspace, files, field) in [
        (
            json!({"mode": "readonly", "path": "/tmp/w"}),
            json!({}),
            "workspace.path",
        ),
        (
            json!({"mode": "readonly"}),
            json!({"write": ["/workspace/out"]}),
            "policy.filesystem.write",
        ),
    ] {
        let body = json!({"agent": "a", "workspace": workspace, "policy": {"filesystem": files}});
        assert_eq!(api.post(SESSIONS, &body).expect(400)["field"], field);
    }
}

#[test]
fn a_policy_is_in_force_after_a_restore_and_in_a_fork() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let policy = json!({
        "process": {"allow": ["echo *", "cat *", "ls *", "touch *", "sleep *"], "enforce": "exec"},
        "filesystem": {"read": ["/opt"]},
    });
    let id = create(api, policy);
    assert_eq!(api.exec(&id, "echo kept >file").exit_code, 0);
    // A confined process is not kept in memory: it would come back without its confinement.
    let job = api.background(&id, "sleep 300");
    let asked = api.ask(&id, "checkpoint", &json!({"tag": "with-memory"}));
    assert_eq!(asked.error(409), "memory_checkpoint_impossible");
    let _ = api
        .ask(&id, "checkpoint", &json!({"tag": "t", "memory": false}))
        .expect(201);
    let held = |id: &str, when: &str| {
        assert_eq!(api.exec(id, "cat file").text(), "kept\n", "{when}");
        assert_ne!(api.exec(id, "ls /var").exit_code, 0, "{when}");
        assert_ne!(api.exec(id, "touch /usr/new").exit_code, 0, "{when}");
        let other = api.try_exec(id, &json!({"command": "python3 -c 1"}));
        assert_eq!(other.error(403), "policy_refused", "{when}");
        assert_denied(&get(api, id, "", "/var"), "/var", "policy.filesystem");
        let report = api.exec(id, "echo a").json["enforcement"].clone();
        assert_eq!(
            (&report["execute"], &report["filesystem"]),
            (&json!(true), &json!(true))
        );
    };
    let _ = api.delete(&format!("{}?signal=KILL", Api::job_path(&id, &job)));
    let _ = api.follow_job(&id, &job);
    let _ = api.restore(&id, "t");
    held(&id, "after a restore");
    for child in api.fork(&id, 2) {
        held(&child, "in a fork");
        let record = api.session(&child);
        assert_eq!(record["policy"]["enforced"]["execute"], true);
    }
    let _ = daemon.terminate();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    assert_eq!(api.exec(&id, "cat file").text(), "kept\n");
    assert_ne!(
        api.exec(&id, "ls /var").exit_code,
        0,
        "under another daemon"
    );
}

#[test]
fn a_policy_that_cannot_be_tried_makes_no_session_and_leaves_nothing() {
    let state = State::new();
    fs::create_dir_all(state.root().join("images/empty/rootfs")).expect("an image");
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let body =
        |policy: Value| json!({"agent": "a", "runtime": {"image": "empty"}, "policy": policy});
    let _ = api.create_with(&body(json!({})));
    let refused = api.post(SESSIONS, &body(json!({"filesystem": {"read": []}})));
    assert_eq!(refused.expect(400)["field"], "policy.filesystem");
    let sessions = api.sessions();
    let failed = sessions.iter().find(|it| it["status"] == "failed");
    let id = failed.expect("it is listed")["id"].as_str().expect("an id");
    let event = api.only_event(id, "session.create.failed");
    assert_eq!(event["data"]["code"], "not_enforceable");
    let left = fluxvm_replay_tests::names(&state, "sandboxes");
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn what_may_be_left_out_is_told_as_it_is() {
    let daemon = shared();
    let api = daemon.api();
    let policy =
        json!({"filesystem": {"write": ["/srv", "/no/such"], "enforcement": "best-effort"}});
    let id = create(api, policy);
    let record = api.session(&id);
    assert_eq!(record["policy"]["exec"]["enforcement"], "best-effort");
    let enforced = &record["policy"]["enforced"];
    let confines = api.get("/v1/capabilities").expect(200)["capabilities"]["confinement"].clone();
    assert_eq!(enforced["filesystem"], confines);
    assert_eq!(record["capabilities"]["confinement"], confines);
    let report = api.exec(&id, "true").json["enforcement"].clone();
    assert_eq!(report, *enforced, "a command is held to what was tried");
    let absent = report["absent"]
        .as_array()
        .expect("paths that are not there");
    assert!(absent.contains(&json!("/no/such")), "{report}");
}
