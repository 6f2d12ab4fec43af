//! Who may ask what. Nothing is answered to nobody, a tenant does not learn that others exist, and
//! open access is never had by accident.

use std::os::unix::fs::PermissionsExt;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::shared;
use serde_json::json;

const ADMIN: &str = "an-administrators-token";
const READER: &str = "a-read-only-token-here";
const OF_A: &str = "the-token-of-tenant-a";
const OF_B: &str = "the-token-of-tenant-b";

fn with_tokens(state: &State) -> Daemon {
    let config = state.beside("config.toml");
    let token = |token: &str, role: &str, rest: &str| {
        format!("[[auth.tokens]]\ntoken = \"{token}\"\nrole = \"{role}\"\n{rest}\n")
    };
    let text = [
        token(ADMIN, "admin", "name = \"ops\""),
        token(READER, "read-only", ""),
        token(OF_A, "admin", "tenant = \"a\""),
        token(OF_B, "admin", "tenant = \"b\""),
    ];
    std::fs::write(&config, text.concat()).expect("a config");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).expect("mode");
    Start::new(state)
        .words(&["--config", config.to_str().expect("a path")])
        .ready()
}

/// Every route of a session, with a body that is right.
fn routes(id: &str) -> Vec<(&'static str, String, &'static [u8])> {
    let of = |rest: &str| format!("{SESSIONS}/{id}{rest}");
    vec![
        ("GET", of(""), b""),
        ("GET", of("/events"), b""),
        ("GET", of("/events/stream"), b""),
        ("GET", of("/export"), b""),
        ("POST", of("/exec"), br#"{"command":"echo no"}"#),
        ("POST", of("/replay"), br#"{"dry_run":true}"#),
        ("DELETE", of(""), b""),
    ]
}

#[test]
fn without_a_known_token_everything_but_health_is_401() {
    let daemon = shared();
    let id = daemon.api().create();
    let token = daemon.api().token().expect("the admin's").to_owned();
    let strangers = [None, Some("nobody"), Some(&token[1..]), Some("")];
    for stranger in strangers {
        let api = daemon.api().with_token(stranger);
        let everywhere = [
            SESSIONS,
            "/v1/ledger/info",
            "/v1/ledger/export",
            "/v1/capabilities",
        ];
        for path in everywhere {
            let answer = api.get(path);
            assert!(!answer.error(401).is_empty(), "{path}");
        }
        for (method, path, body) in routes(&id) {
            let _ = api.send(method, &path, &[], body).error(401);
        }
        let _ = api
            .send("POST", SESSIONS, &[], br#"{"agent":"a"}"#)
            .error(401);
        for path in ["/healthz", "/readyz"] {
            assert_eq!(api.get(path).status, 200, "{path}");
        }
    }
    let basic = daemon.api().with_token(None);
    let header = [("authorization", "Basic YWRtaW46YWRtaW4=")];
    let _ = basic.send("GET", SESSIONS, &header, &[]).error(401);
    assert_eq!(
        daemon.api().exec(&id, "echo ok").text(),
        "ok\n",
        "nothing of it was done"
    );
    daemon.api().remove(&id);
}

#[test]
fn a_read_only_token_reaches_no_session() {
    let state = State::new();
    let daemon = with_tokens(&state);
    let id = daemon.api().create();
    let reader = daemon.api().with_token(Some(READER));
    for (method, path, body) in routes(&id) {
        assert_eq!(
            reader.send(method, &path, &[], body).error(403),
            "forbidden",
            "{method} {path}"
        );
    }
    assert_eq!(reader.get(SESSIONS).error(403), "forbidden");
    assert_eq!(
        reader.post(SESSIONS, &json!({"agent": "a"})).error(403),
        "forbidden"
    );
    assert_eq!(
        daemon.api().kinds(&id),
        ["session.create.started", "session.create"]
    );
}

#[test]
fn a_tenant_sees_its_own_sessions_and_no_sign_of_others() {
    let state = State::new();
    let daemon = with_tokens(&state);
    let (a, b) = (
        daemon.api().with_token(Some(OF_A)),
        daemon.api().with_token(Some(OF_B)),
    );
    let (of_a, of_b, of_nobody) = (a.create(), b.create(), daemon.api().create());
    assert_eq!(a.session(&of_a)["tenant"], "a");

    let ids = |api: &Api| -> Vec<String> {
        let id = |session: &serde_json::Value| session["id"].as_str().expect("id").to_owned();
        api.sessions().iter().map(id).collect()
    };
    assert_eq!(ids(&a), std::slice::from_ref(&of_a));
    assert_eq!(ids(&b), std::slice::from_ref(&of_b));
    assert_eq!(
        ids(&daemon.api().with_token(Some(ADMIN))),
        [of_a.clone(), of_b.clone(), of_nobody.clone()]
    );

    let nobody = "00000000-0000-4000-8000-000000000000";
    for other in [&of_b, &of_nobody, &nobody.to_owned()] {
        for (method, path, body) in routes(other) {
            let answer = a.send(method, &path, &[], body);
            assert_eq!(answer.error(404), "session_not_found", "{method} {path}");
            let text = String::from_utf8_lossy(&answer.body).replace(other.as_str(), "ID");
            let known = String::from_utf8_lossy(
                &a.send(method, &path.replace(other.as_str(), nobody), &[], body)
                    .body,
            )
            .replace(nobody, "ID");
            assert_eq!(text, known, "another's id and nobody's look the same");
        }
    }
    let replay = a.post(
        &format!("{SESSIONS}/{of_a}/replay"),
        &json!({"target": of_b}),
    );
    assert_eq!(
        replay.error(404),
        "session_not_found",
        "neither as a target"
    );
    assert_eq!(
        a.get("/v1/ledger/export").error(403),
        "forbidden",
        "it holds every tenant's events"
    );
    assert_eq!(
        daemon.api().kinds(&of_b),
        ["session.create.started", "session.create"]
    );
    assert_eq!(b.exec(&of_b, "echo mine").text(), "mine\n");
}

#[test]
fn the_ledger_names_who_asked() {
    let state = State::new();
    let daemon = with_tokens(&state);
    let ops = daemon.api().with_token(Some(ADMIN));
    let id = ops.create();
    let _ = daemon.api().exec(&id, "true");
    let actors: Vec<String> = ops
        .events(&id)
        .iter()
        .map(|event| event["actor"].as_str().expect("an actor").to_owned())
        .collect();
    assert_eq!(
        actors,
        ["admin:ops", "admin:ops", "admin:local", "admin:local"]
    );
    for secret in [
        ADMIN,
        READER,
        OF_A,
        OF_B,
        daemon.api().token().expect("token"),
    ] {
        let export = String::from_utf8(daemon.api().export_ledger()).expect("text");
        assert!(!export.contains(secret), "a token is in the ledger");
        assert!(
            !state.last_words().contains(secret),
            "a token is in the log"
        );
    }
}

#[test]
fn open_access_is_refused_where_others_could_reach_it() {
    let state = State::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (ended, said) = Start::new(&state)
            .listen(address)
            .words(&["--open"])
            .refused();
        assert_eq!(ended.code, Some(2), "{said}");
        assert!(
            said.contains("--open") && said.contains("loopback"),
            "{said}"
        );
    }
    assert!(!state.root().join("ledger").exists(), "nothing was begun");
}

#[test]
fn open_access_on_loopback_is_for_local_names_only() {
    let state = State::new();
    let daemon = Start::new(&state).words(&["--open"]).ready();
    let id = daemon.api().create();
    assert_eq!(daemon.api().events(&id)[0]["actor"], "anonymous-admin");
    // What a browser sends on behalf of another site's page.
    let foreign = [("origin", "https://evil.example")];
    assert_eq!(
        daemon.api().send("GET", SESSIONS, &foreign, &[]).status / 100,
        4
    );
    let renamed = [("host", "evil.example")];
    assert_eq!(
        daemon.api().send("GET", SESSIONS, &renamed, &[]).status / 100,
        4
    );
}

#[test]
fn the_admin_token_is_private_and_stays_the_same() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    let token = daemon.api().token().expect("a token").to_owned();
    assert_eq!(mode(daemon.token_file()), 0o600);
    assert_eq!(mode(&state.root().join("secrets")), 0o700);
    assert_eq!(mode(&state.root()) & 0o077, 0);
    daemon.terminate();
    let daemon = Daemon::start(&state);
    assert_eq!(daemon.api().token(), Some(token.as_str()));
}

#[test]
fn a_state_folder_has_one_daemon() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (ended, said) = Start::new(&state).refused();
    assert_eq!(ended.code, Some(3), "{said}");
    assert!(
        said.contains(&format!("(process {})", daemon.pid())),
        "{said}"
    );
    assert!(
        daemon.api().sessions().is_empty(),
        "the first one still answers"
    );
}
