//! A daemon that is killed again and again under load keeps its word: whatever it answered is so
//! after the restart, whatever it did not answer is either done or undone, and nothing is left
//! over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Sender;
use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// How often the daemon is killed.
const ROUNDS: usize = 6;

/// Callers at once.
const CALLERS: usize = 6;

/// What the daemon has answered, over all of its lives.
#[derive(Debug, Default)]
struct Answered {
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Session, ledger number, standard output.
    ran: Vec<(String, u64, String)>,
}

/// One caller: makes a session, works in it and deletes it, over and over, until the daemon is
/// gone.
fn call(api: &Api, name: &str, answered: &Mutex<Answered>, answers: &Sender<()>) {
    let note = |keep: &mut dyn FnMut(&mut Answered)| {
        keep(&mut answered.lock().unwrap_or_else(PoisonError::into_inner));
        // The test may have seen enough.
        let _ = answers.send(());
    };
    let send = |method: &str, path: &str, body: &str| -> Option<Value> {
        let answer = api.try_send(method, path, &[], body.as_bytes()).ok()?;
        assert!(
            answer.status / 100 == 2,
            "{method} {path}: {}",
            answer.json()
        );
        Some(if answer.body.is_empty() {
            Value::Null
        } else {
            answer.json()
        })
    };
    for turn in 0.. {
        let Some(made) = send("POST", SESSIONS, r#"{"agent":"storm"}"#) else {
            return;
        };
        let id = made["id"].as_str().expect("id").to_owned();
        note(&mut |it| {
            it.created.insert(id.clone());
        });
        let path = format!("{SESSIONS}/{id}");
        for step in 0..3 {
            let word = format!("{name}-{turn}-{step}");
            let body = json!({"command": format!("echo {word} | tee -a log")}).to_string();
            let Some(ran) = send("POST", &format!("{path}/exec"), &body) else {
                return;
            };
            let seq = ran["seq"].as_u64().expect("seq");
            assert_eq!(ran["stdout"], format!("{word}\n"));
            note(&mut |it| it.ran.push((id.clone(), seq, word.clone())));
        }
        // Every other session stays, so that there is something to take up again.
        if turn % 2 == 0 {
            if send("DELETE", &path, "").is_none() {
                return;
            }
            note(&mut |it| {
                it.deleted.insert(id.clone());
            });
        }
    }
}

/// Lets callers work until there were so many answers, then kills the daemon under them.
fn one_life(state: &State, round: usize, answered: &Arc<Mutex<Answered>>) {
    let daemon = Daemon::start(state);
    let (sender, answers) = mpsc::channel();
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let (api, answered) = (daemon.api().clone(), Arc::clone(answered));
            let (name, sender) = (format!("r{round}c{number}"), sender.clone());
            thread::spawn(move || call(&api, &name, &answered, &sender))
        })
        .collect();
    drop(sender);
    // Each round ends at another place.
    for _ in 0..(7 + 13 * round) {
        answers.recv().expect("the daemon answers");
    }
    daemon.kill9();
    callers
        .into_iter()
        .for_each(|caller| caller.join().expect("its answers held"));
}

fn holds(daemon: &Daemon, answered: &Answered) {
    let api = daemon.api();
    for id in &answered.created {
        let record = eventually("what was under way is settled", || {
            let record = api.session(id);
            (record["in_flight"] == json!([])).then_some(record)
        });
        let status = record["status"].as_str().expect("a status");
        // A deletion that was not answered may have been done.
        let known = ["running", "deleted"].contains(&status);
        assert!(known, "an acknowledged session: {record}");
        if answered.deleted.contains(id) {
            assert_eq!(status, "deleted", "an acknowledged deletion: {record}");
        }
    }
    for (id, seq, word) in &answered.ran {
        let events = api.events(id);
        let event = events.iter().find(|event| event["seq"] == *seq);
        let event = event.unwrap_or_else(|| panic!("acknowledged and lost: {id} {seq}"));
        let digest = blake3::hash(format!("{word}\n").as_bytes())
            .to_hex()
            .to_string();
        assert_eq!(event["data"]["stdout"]["blake3"], digest.as_str());
    }
    let listed = api.sessions();
    let mut running = 0;
    for session in &listed {
        match session["status"].as_str() {
            Some("running") => {
                running += 1;
                let id = session["id"].as_str().expect("id");
                let log = api.exec(id, "sort log | uniq -d").text().to_owned();
                assert_eq!(log, "", "no command ran twice");
            }
            Some("failed") => {}
            _ => panic!("neither made nor undone: {session}"),
        }
    }
    let folders = std::fs::read_dir(daemon.state_dir().join("sandboxes"))
        .expect("folder")
        .flatten();
    let sandboxes = folders
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .count();
    assert_eq!(sandboxes, running, "one sandbox for each session that runs");
}

#[test]
fn c12_what_was_answered_holds_after_every_kill() {
    let state = State::new();
    let answered = Arc::new(Mutex::new(Answered::default()));
    for round in 0..ROUNDS {
        one_life(&state, round, &answered);
        let daemon = Daemon::start(&state);
        holds(
            &daemon,
            &answered.lock().unwrap_or_else(PoisonError::into_inner),
        );
        verified(&daemon.api().export_ledger());
        daemon.kill9();
    }
    drop(Daemon::start(&state));
    let answered = answered.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} sessions, {} commands",
        answered.created.len(),
        answered.ran.len()
    );
    assert!(open_offline(&state.root()).len() > 2 * answered.ran.len());
}
