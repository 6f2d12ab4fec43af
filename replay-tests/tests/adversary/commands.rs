//! Around a rule about commands, by what a shell can do with a line. The rule refuses what it sees and
//! has people decide on what nobody can see; either way nothing runs, and the ledger has it.

use fluxvm_replay_tests::shared;
use serde_json::json;

/// Every line removes the file `victim` where no rule is in its way.
const LINES: [&str; 26] = [
    "rm victim",
    "true; rm victim",
    "false || rm victim",
    "true & rm victim",
    "true | rm victim",
    "(rm victim)",
    "{ rm victim; }",
    "if rm victim; then true; fi",
    "for i in 1; do rm victim; done",
    "sh -c 'rm victim'",
    "bash -c \"rm victim\"",
    "eval 'rm victim'",
    "f() { rm victim; }; f",
    "trap 'rm victim' EXIT",
    "echo $(rm victim)",
    "echo `rm victim`",
    "sh <<EOF\nrm victim\nEOF",
    "echo rm victim | sh",
    "echo victim | xargs rm",
    "find . -name victim -exec rm {} +",
    "env -i PATH=$PATH rm victim",
    "nohup nice timeout 5 rm victim",
    "command rm victim",
    "r\"\"m victim",
    "\\rm victim",
    "X=rm; $X victim",
];

#[test]
fn a_rule_about_commands_is_not_walked_around_by_anything_that_a_shell_can_write() {
    let daemon = shared();
    let api = daemon.api();
    let process = json!({"deny": ["rm *", "rm"]});
    let id = api.create_with(&json!({"agent": "tester", "policy": {"process": process}}));
    let free = api.create();
    assert_eq!(api.exec(&id, "touch victim").exit_code, 0);
    let mut open = Vec::new();
    for line in LINES {
        let before = api.events(&id).len();
        let answer = api.try_exec(&id, &json!({"command": line}));
        let events = api.events(&id).split_off(before);
        let kinds: Vec<_> = events.iter().map(|event| event["kind"].clone()).collect();
        match answer.status {
            403 => assert_eq!(kinds, ["exec.refused"], "{line}"),
            428 => assert_eq!(kinds, ["approval.requested"], "{line}"),
            status => open.push(format!("{status} for {line}")),
        }
        let made = api.exec(&free, &format!("touch victim; {line}\n"));
        let gone = api.exec(&free, "! [ -e victim ]").exit_code == 0;
        assert!(gone, "without the rule it removes: {line}: {}", made.json);
    }
    assert!(open.is_empty(), "{open:#?}");
    assert_eq!(api.exec(&id, "ls").text(), "victim\n");
    assert_eq!(api.get("/healthz").status, 200);
    api.remove(&id);
    api.remove(&free);
}
