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
