//! Differences, promotions and searches from the command line.

use fluxvm_replay_tests::Ctl;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

fn answer(ctl: &Ctl, words: &[&str]) -> Value {
    ctl.run(&[&["agent"], words].concat()).json(0)
}

#[test]
fn a_script_compares_promotes_and_finds_what_broke_it() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let exec = |id: &str, line: &str| ctl.run(&["agent", "exec", id, "--", line]).text();
    let id = answer(&ctl, &["run", "codex"]);
    let id = id["id"].as_str().expect("an id");
    exec(id, "echo 1 >f");
    answer(&ctl, &["rewind", id, "on"]);
    let forked = answer(&ctl, &["fork", id]);
    let child = forked["items"][0]["id"].as_str().expect("an id");
    exec(child, "echo 2 >f");
    let made = answer(&ctl, &["artifacts", child]);
    assert_eq!(made["workspace"]["modified"], json!(["f"]));
    let diff = answer(&ctl, &["diff", child, "f", "--from", id, "--to", "now"]);
    assert_eq!(diff["items"][0]["change"], "modified");
    let shown = ctl.run(&["--table", "agent", "diff", child]).text();
    assert!(shown.contains("-1\n+2"), "{shown}");
    let planned = answer(&ctl, &["promote", child, "--dry-run"]);
    let plan = planned["plan_id"].as_str().expect("a plan");
    let done = answer(&ctl, &["promote", child, "--plan-id", plan, "--path", "f"]);
    assert_eq!(done["modified"], 1);
    assert_eq!(exec(id, "cat f"), "2\n");
    exec(id, "echo 3 >f");
    let found = answer(&ctl, &["rewind", id, "bisect", "grep -q 2 f"]);
    assert_eq!(found["culprit"]["command"], "echo 3 >f");
    let timeline = ctl.run(&["--table", "agent", "timeline", id]).text();
    for words in ["1 path from", "it was: echo 3 >f"] {
        assert!(timeline.contains(words), "{timeline}");
    }
    assert!(ctl.run(&["agent", "rm", child, id]).text().contains(id));
}

#[test]
fn a_script_tries_candidates_asks_who_wrote_a_line_and_sees_a_tree() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = answer(&ctl, &["run", "codex"]);
    let id = id["id"].as_str().expect("an id");
    let exec = |line: &str| ctl.run(&["agent", "exec", id, "--", line]).text();
    exec("printf 'one\\ntwo\\n' >f");
    answer(&ctl, &["checkpoint", id, "--tag", "before"]);
    exec("sed -i s/two/2/ f");
    let who = answer(&ctl, &["blame", id, "f:2"]);
    assert_eq!(who["step"]["command"], "sed -i s/two/2/ f");
    let said = ctl.run(&["--table", "agent", "blame", id, "f:2"]).text();
    assert!(said.starts_with("2: 2\nIt was event "), "{said}");
    let tries = [
        "--candidate",
        "false",
        "--candidate",
        "echo 3 >f",
        "--test",
        "grep -q 3 f",
    ];
    let tried = answer(&ctl, &[&["evaluate", id][..], &tries].concat());
    let winner = tried["winner"].as_str().expect("a winner");
    assert_eq!(tried["items"][0]["score"], 0);
    let none = ctl.run(&["agent", "evaluate", id, "--candidate", "false"]);
    assert_eq!(none.json(1)["winner"], Value::Null);
    let rolled = answer(&ctl, &["rollout", id, "-n", "2", "--", "cat", "f"]);
    assert_eq!(rolled["items"][1]["output_tail"], "one\n2\n");
    answer(&ctl, &["restore", id, "before"]);
    let replayed = answer(&ctl, &["replay", id, "--from", "before", "--dry-run"]);
    assert_eq!(replayed["steps"], json!([]));
    let timeline = ctl.run(&["--table", "agent", "timeline", id]).text();
    for words in ["TREE", "│ ○", "(undone by step", "◀", "├─▶", winner] {
        assert!(timeline.contains(words), "{words}: {timeline}");
    }
    assert!(ctl.run(&["agent", "rm", winner, id]).text().contains(id));
}
