//! The daemon ends, as a power cut would end it, at each step of carrying a child's changes to its parent.
//! The next daemon finds the parent as it was or as it was to be, and says which.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::is_tidy;
use fluxvm_replay_tests::verified;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

const KEY: [(&str, &str); 1] = [("idempotency-key", "the-only-one")];

fn run(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

/// What the parent has, file by file.
const LOOK: &str = "find . -mindepth 1 | sort | while read -r it; do echo \"$it $(cat \"$it\" \
                    2>/dev/null)\"; done";

#[test]
fn a_promotion_is_whole_or_nothing_wherever_the_daemon_ends() {
    for (point, done, checkpoints) in [
        ("promote.checkpoint", false, 1),
        ("promote.intent", false, 1),
        ("promote.captured", false, 1),
        ("promote.applied", false, 1),
        ("promote.outcome", true, 1),
    ] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let parent = api.create();
        run(api, &parent, "echo 1 >a; mkdir d; echo 1 >d/gone");
        let child = api.fork(&parent, 1).remove(0);
        run(
            api,
            &child,
            "echo 2 >a; rm -r d; mkdir n; echo new >n/x; ln -s a l",
        );
        let (before, after) = (run(api, &parent, LOOK), run(api, &child, LOOK));
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let path = format!("{SESSIONS}/{child}/promote");
        let answer = daemon.api().try_send("POST", &path, &KEY, b"{}");
        assert!(answer.is_err(), "{point}: {answer:?}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let expected = if done { &after } else { &before };
        assert_eq!(&run(api, &parent, LOOK), expected, "{point}");
        let record = api.session(&parent);
        assert_eq!(record["in_flight"], json!([]), "{point}: {record}");
        assert_eq!(api.tags(&parent).len(), checkpoints, "{point}");
        let retried = api.ask_with(&child, "promote", &KEY, &json!({}));
        assert_eq!(
            retried.expect(200)["plan"]["apply"]["deleted"],
            json!(["d", "d/gone"]),
            "{point}"
        );
        assert_eq!(
            run(api, &parent, LOOK),
            after,
            "{point}: a retry comes to the end"
        );
        let promotions = api.kinds(&parent);
        let promotions = promotions.iter().filter(|kind| *kind == "promote").count();
        assert_eq!(promotions, 1, "{point}");
        is_tidy(api, &state, point);
        verified(&api.export_ledger());
        api.remove(&child);
        api.remove(&parent);
        assert_eq!(daemon.terminate().code, Some(0));
    }
}

#[test]
fn a_promotion_that_is_done_again_says_so_or_was_interrupted() {
    for (point, expected) in [("changes.intent", "1\n"), ("changes.done", "2\n")] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let source = api.create();
        run(api, &source, "echo 1 >a");
        let child = api.fork(&source, 1).remove(0);
        run(api, &child, "echo 2 >a");
        let _ = api.ask(&child, "promote", &json!({})).expect(200);
        let target = api.create();
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let path = format!("{SESSIONS}/{source}/replay");
        let body = json!({"target": target});
        let sent = body.to_string();
        let answer = daemon.api().try_send("POST", &path, &[], sent.as_bytes());
        assert!(answer.is_err(), "{point}: {answer:?}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let record = api.session(&target);
        assert_eq!(record["in_flight"], json!([]), "{point}: {record}");
        let kinds = api.kinds(&target);
        let interrupted = kinds.iter().filter(|it| *it == "lifecycle.interrupted");
        assert_eq!(interrupted.count(), 2, "{point}: it and its replay");
        assert_eq!(run(api, &target, "cat a"), expected, "{point}");
        let again = api.ask(&source, "replay", &body).expect(200);
        assert_eq!(again["diverged_at"], json!(null), "{point}: {again}");
        assert_eq!(run(api, &target, "cat a"), "2\n", "{point}");
        is_tidy(api, &state, point);
        verified(&api.export_ledger());
        for id in [&child, &source, &target] {
            api.remove(id);
        }
        assert_eq!(daemon.terminate().code, Some(0));
    }
}
