//! Checkpoints, forks and the ring from the command line, as a script and as a person has them.

use fluxvm_replay_tests::Ctl;
use fluxvm_replay_tests::shared;
use serde_json::Value;

fn json(ctl: &Ctl, words: &[&str]) -> Value {
    ctl.run(&[&["agent"], words].concat()).json(0)
}

fn id_of(value: &Value) -> String {
    value["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_script_goes_back_and_forward_and_branches_off() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = id_of(&json(&ctl, &["run", "codex"]));
    let exec = |id: &str, line: &str| ctl.run(&["agent", "exec", id, "--", line]).text();
    assert_eq!(exec(&id, "echo 1 >f; cat f"), "1\n");
    let taken = json(&ctl, &["checkpoint", &id, "--tag", "one", "--disk-only"]);
    assert_eq!(
        (&taken["tag"], &taken["memory"]),
        (&"one".into(), &false.into())
    );
    let on = json(
        &ctl,
        &[
            "rewind",
            &id,
            "on",
            "--max-points",
            "4",
            "--triggers",
            "exec,git",
        ],
    );
    assert_eq!(on["config"]["triggers"], serde_json::json!(["exec", "git"]));
    exec(&id, "echo 2 >f");
    exec(&id, "echo 3 >f");
    assert_eq!(
        json(&ctl, &["rewind", &id, "pin", "rw-1"])["points"][0]["pinned"],
        true
    );
    assert_eq!(
        json(&ctl, &["rewind", &id, "undo", "--to", "rw-2"])["steps"],
        1
    );
    assert_eq!(json(&ctl, &["rewind", &id, "redo"])["redo_steps"], 0);
    let branched = json(&ctl, &["rewind", &id, "branch", "rw-2"]);
    let child = id_of(&branched["items"][0]);
    assert_eq!(exec(&child, "cat f"), "2\n");
    let forked = json(
        &ctl,
        &[
            "fork",
            &id,
            "-n",
            "2",
            "--tag",
            "one",
            "--identity",
            "preserve",
        ],
    );
    assert_eq!(forked["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        json(&ctl, &["rewind", &id, "off"])["config"]["enabled"],
        false
    );
    assert_eq!(json(&ctl, &["restore", &id, "one"])["tag"], "one");
    assert_eq!(exec(&id, "cat f"), "1\n");
    assert_eq!(json(&ctl, &["checkpoints", &id])["items"][0]["tag"], "one");
    assert_eq!(json(&ctl, &["rm-checkpoint", &id, "one"])["deleted"], true);
    let children = json(&ctl, &["get", &id])["children"].clone();
    for child in children.as_array().expect("children") {
        let _ = ctl.run(&["agent", "rm", child.as_str().expect("an id")]);
    }
    let _ = ctl.run(&["agent", "rm", &id]);
}

#[test]
fn a_person_is_told_what_to_type_next() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = id_of(&json(&ctl, &["run", "codex"]));
    let says = |words: &[&str], wanted: &str| {
        let ran = ctl.run(&[&["--table", "agent"], words].concat());
        let said = format!("{}{}", ran.text(), ran.errors());
        assert!(said.contains(wanted), "{words:?}: {said}");
        ran.code
    };
    assert_eq!(says(&["checkpoints", &id], "Take one with"), 0);
    assert_eq!(says(&["rewind", &id], "takes one before every command"), 0);
    let next = format!("fluxctl agent restore {id} a");
    assert_eq!(says(&["checkpoint", &id, "--tag", "a"], &next), 0);
    assert_eq!(says(&["checkpoint", &id, "--tag", "a"], "rm-checkpoint"), 1);
    let list = format!("fluxctl agent checkpoints {id}");
    assert_eq!(says(&["restore", &id, "b"], &list), 1);
    assert_eq!(says(&["rewind", &id, "undo"], "lists the steps"), 1);
    let _ = ctl.run(&["agent", "rewind", &id, "on"]);
    let _ = ctl.run(&["agent", "exec", &id, "--", "true"]);
    assert_eq!(says(&["rewind", &id, "undo"], "1 step to redo"), 0);
    assert_eq!(says(&["timeline", &id], "to rw-1, 1 step"), 0);
    assert_eq!(says(&["timeline", &id], "rw-1 before step"), 0);
    let _ = ctl.run(&["agent", "rm", &id]);
}
