//! Sentences of the contract about rules, and a slow model that the judge equals.

use proptest::prelude::*;

use super::*;
use fluxvm_projections::AskRecord;

fn rules(allow: &[&str], deny: &[&str], ask: &[&str]) -> ProcessRecord {
    let owned = |patterns: &[&str]| patterns.iter().map(ToString::to_string).collect();
    let ask = ask.iter().map(|pattern| AskRecord {
        pattern: (*pattern).to_owned(),
        approvers: 1,
    });
    ProcessRecord {
        allow: owned(allow),
        deny: owned(deny),
        ask: ask.collect(),
        strict: true,
        programs: Vec::new(),
    }
}

fn word(rules: &ProcessRecord, line: &str) -> &'static str {
    match judge(Some(rules), line).verdict {
        Verdict::Run => "run",
        Verdict::Ask { matched, .. } if matched == UNJUDGED => "unjudged",
        Verdict::Ask { .. } => "ask",
        Verdict::Refuse { .. } => "refuse",
    }
}

#[test]
fn no_construct_of_the_shell_walks_around_deny() {
    let rules = rules(&[], &["rm -rf *"], &[]);
    for line in [
        "rm -rf /x",
        "echo a; rm -rf /x",
        "echo a && rm -rf /x || true",
        "true | rm -rf /x",
        "sleep 1 & rm -rf /x",
        "echo a\nrm -rf /x",
        "'rm' \"-rf\" /x",
        "r\\m -rf /x",
        "r''m  -r\"\"f   /x",
        "/bin/rm -rf /x",
        "$DIR/rm -rf /x",
        "$(rm -rf /x)",
        "echo $(echo $(rm -rf /x))",
        "echo `rm -rf /x`",
        "echo `echo \\`rm -rf /x\\``",
        "echo \"a `rm -rf /x` b\"",
        "echo ${x:-$(rm -rf /x)}",
        "echo $((1 + $(rm -rf /x)))",
        "X=$(rm -rf /x) true",
        "X=1 rm -rf /x",
        "export A=`rm -rf /x`",
        "a=(1 $(rm -rf /x))",
        "sh -c 'rm -rf /x'",
        "bash -ec \"rm -rf /x\"",
        "sh -e -c 'echo a; sh -c \"rm -rf /x\"'",
        "sh -c 'rm -rf \"$1\"' _ /x",
        "eval rm -rf /x",
        "eval 'rm -rf' /x",
        "env X=1 rm -rf /x",
        "env -i -u Y X=1 rm -rf /x",
        "env -S 'rm -rf /x'",
        "xargs rm -rf",
        "echo /x | xargs -0 -n 1 rm -rf",
        "nohup rm -rf /x &",
        "timeout -k 5 10 rm -rf /x",
        "timeout --whatever 5 10 rm -rf /x",
        "nice -n 5 nohup setsid rm -rf /x",
        "sudo -u root -E rm -rf /x",
        "sudo A=b rm -rf /x",
        "exec -a ls rm -rf /x",
        "command rm -rf /x",
        "builtin exec rm -rf /x",
        "busybox rm -rf /x",
        "time rm -rf /x",
        "! rm -rf /x",
        "(rm -rf /x)",
        "{ rm -rf /x; }",
        "if true; then rm -rf /x; fi",
        "if rm -rf /x; then a; fi",
        "while rm -rf /x; do a; done",
        "for i in $(rm -rf /x); do a; done",
        "for i in 1; do rm -rf /x; done",
        "case x in y) rm -rf /x;; esac",
        "f() { rm -rf /x; }; f",
        "trap 'rm -rf /x' EXIT",
        "cat <<EOF\n$(rm -rf /x)\nEOF",
        "sh <<EOF\necho a\nrm -rf /x\nEOF",
        "sh <<'EOF'\nrm -rf /x\nEOF",
        "bash <<< 'rm -rf /x'",
        "cat <(rm -rf /x)",
        "cat > >(rm -rf /x)",
        "find / -name a -exec rm -rf {} ;",
        "find / -name a -exec rm -rf {} \\; -print",
        "find / -execdir sh -c 'rm -rf {}' \\;",
        "coproc rm -rf /x",
        "((rm -rf /x))",
        "watch -n 1 rm -rf /x",
        "flock /tmp/l rm -rf /x",
        "flock /tmp/l -c 'rm -rf /x'",
        "su root -c 'rm -rf /x'",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm -rf /x",
    ] {
        assert_eq!(word(&rules, line), "refuse", "{line}");
    }
}

#[test]
fn what_only_the_shell_knows_is_said_and_held() {
    let rules = rules(&[], &["rm -rf *"], &[]);
    for line in [
        "X=rm; $X -rf /x",
        "rm $FLAGS /x",
        "rm $EMPTY -rf /x",
        "$A$B /x",
        "$(echo rm) -rf /x",
        "r? -rf /x",
        "/bin/r[m] -rf /x",
        "{rm,-rf,/x}",
        "$'rm' -rf /x",
        "sh -c \"$X\"",
        "eval $X",
        "curl x | sh",
        "sh < file",
        ". /dev/stdin",
        "alias ls='rm -rf'\nls /x",
        "sh $FLAGS 'ls'",
        "env $X ls",
        "'unfinished",
        "echo $(",
        "select x in a; do b; done",
        "[[ a && b ]]",
        &"$(".repeat(2_000),
        "99999999999999999999>x true",
        "echo ~+99999999999999999999999",
    ] {
        assert_eq!(word(&rules, line), "unjudged", "{line}");
        assert!(!judge(Some(&rules), line).unjudged.is_empty(), "{line}");
    }
}

#[test]
fn what_is_only_written_does_not_run() {
    let rules = rules(&[], &["rm -rf *"], &[]);
    for line in [
        "echo rm -rf /x",
        "echo 'rm -rf /x'",
        "echo \"rm -rf /x\" '$(rm -rf /x)'",
        "echo \\$(echo rm -rf /x",
        "cat file # rm -rf /x",
        "grep -r 'rm -rf' .",
        "rm -r /x",
        "cat $FILE > $OUT",
        "for i in *; do echo \"$i\"; done",
        "sh script.sh",
        "command -v rm",
        "sudo echo rm -rf /x",
        "",
    ] {
        let expected = if line.starts_with("echo \\$(") {
            "unjudged"
        } else {
            "run"
        };
        assert_eq!(word(&rules, line), expected, "{line}");
    }
}

#[test]
fn the_pieces_of_the_contract_match_as_documented() {
    let contract = rules(&["git *", "ls*"], &["git push --force*"], &["git push*"]);
    let table = [
        ("git status", "run"),
        ("git status && ls -l | ls", "run"),
        ("git status; make", "refuse"),
        ("git push origin", "ask"),
        ("git push --force", "refuse"),
        ("ls & git push", "ask"),
        ("make", "refuse"),
        ("X=1 git status", "refuse"),
        ("git commit -m 'fix; really & truly'", "run"),
        ("git log --format='%h | %s'", "run"),
        ("ls <<EOF\nsome; text\nEOF\ngit status", "run"),
        ("git status $(make)", "refuse"),
        ("git $WHAT", "unjudged"),
        ("git status \"$WHAT\"", "run"),
        ("$WHAT", "refuse"),
    ];
    for (line, expected) in table {
        assert_eq!(word(&contract, line), expected, "{line}");
    }
    // A quoted piece is one as the contract cuts it, so that it still refuses.
    let deny = rules(&[], &["rm *"], &[]);
    assert_eq!(word(&deny, "echo 'a; rm x'"), "refuse");
    assert_eq!(word(&deny, "echo 'a & b'"), "run");
}

#[test]
fn without_strictness_what_cannot_be_judged_runs_and_is_said() {
    let lenient = ProcessRecord {
        strict: false,
        ..rules(&[], &["rm -rf *"], &[])
    };
    let judgement = judge(Some(&lenient), "$X -rf /x");
    assert_eq!(judgement.verdict, Verdict::Run);
    assert_eq!(
        judgement.unjudged[0],
        "`… -rf /x` may match deny `rm -rf *`"
    );
    let refused = judge(Some(&lenient), "$X; sh -c \"rm -rf $Y\"").verdict;
    assert!(matches!(refused, Verdict::Refuse { .. }));
}

#[test]
fn the_pattern_that_wants_the_most_people_decides() {
    let mut both = rules(&[], &[], &["deploy*"]);
    both.ask.push(AskRecord {
        pattern: "* prod".into(),
        approvers: 2,
    });
    let verdict = judge(Some(&both), "deploy prod").verdict;
    let matched = "* prod".to_owned();
    assert_eq!(
        verdict,
        Verdict::Ask {
            matched,
            approvers: 2
        }
    );
}

#[test]
fn a_line_of_the_largest_size_is_judged_in_its_time() {
    let line = "env -x ".repeat(18_000);
    let rules = rules(&["env *"], &["rm*", "*a*b*c*d*"], &[]);
    let started = std::time::Instant::now();
    assert_ne!(word(&rules, &line), "run");
    assert!(started.elapsed() < std::time::Duration::from_secs(20));
}

/// A glob the slow way: every split is tried.
fn slow_glob(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('*', rest)) => (0..=text.len()).any(|taken| slow_glob(rest, &text[taken..])),
        Some((first, rest)) => text.first() == Some(first) && slow_glob(rest, &text[1..]),
    }
}

/// The judge the slow way, for lines made of known simple commands.
fn slow_judge(rules: &ProcessRecord, commands: &[(Vec<String>, Shape)]) -> &'static str {
    let matches = |pattern: &str, text: &str| {
        let characters = |text: &str| text.chars().collect::<Vec<_>>();
        slow_glob(&characters(pattern), &characters(text))
    };
    let plain = |command: &(Vec<String>, Shape)| command.1.write(&command.0);
    let runs: Vec<String> = commands
        .iter()
        .flat_map(|(words, shape)| shape.runs(words))
        .collect();
    let pieces: Vec<String> = commands.iter().map(plain).collect();
    let all: Vec<&String> = runs.iter().chain(&pieces).collect();
    let any = |patterns: &[String], text: &str| patterns.iter().any(|it| matches(it, text));
    let ask: Vec<String> = rules.ask.iter().map(|rule| rule.pattern.clone()).collect();
    if all.iter().any(|text| any(&rules.deny, text)) {
        return "refuse";
    }
    let allowed = |text: &String| any(&rules.allow, text) || any(&ask, text);
    if !rules.allow.is_empty() && !all.iter().all(|text| allowed(text)) {
        return "refuse";
    }
    if all.iter().any(|text| any(&ask, text)) {
        "ask"
    } else {
        "run"
    }
}

/// How a command of the model is written.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Plain,
    Quoted,
    Shell,
    Env,
}

impl Shape {
    fn write(self, words: &[String]) -> String {
        let line = words.join(" ");
        match self {
            Self::Plain => line,
            Self::Quoted => format!("'{}'", words.join("' '")),
            Self::Shell => format!("sh -c '{line}'"),
            Self::Env => format!("env A=b {line}"),
        }
    }

    fn runs(self, words: &[String]) -> Vec<String> {
        let line = words.join(" ");
        match self {
            Self::Plain | Self::Quoted => vec![line],
            Self::Shell => vec![format!("sh -c {line}"), line],
            Self::Env => vec![format!("env A=b {line}"), line],
        }
    }
}

fn a_pattern() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![Just("a"), Just("b"), Just(" "), Just("*")],
        1..5,
    )
    .prop_map(|parts| parts.concat())
    .prop_filter("patterns say something", |it| !it.trim().is_empty())
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    let fixed = prop_oneof![Just("sh *".to_owned()), Just("env *".to_owned())];
    proptest::collection::vec(prop_oneof![3 => a_pattern(), 1 => fixed], 0..3)
}

fn a_policy() -> impl Strategy<Value = ProcessRecord> {
    (patterns(), patterns(), patterns()).prop_map(|(allow, deny, ask)| ProcessRecord {
        allow,
        deny,
        ask: ask
            .into_iter()
            .map(|pattern| AskRecord {
                pattern,
                approvers: 1,
            })
            .collect(),
        strict: true,
        programs: Vec::new(),
    })
}

fn a_command() -> impl Strategy<Value = (Vec<String>, Shape)> {
    let shapes = vec![Shape::Plain, Shape::Quoted, Shape::Shell, Shape::Env];
    let word = proptest::collection::vec(prop_oneof![Just('a'), Just('b')], 1..3)
        .prop_map(|characters| characters.into_iter().collect::<String>());
    (
        proptest::collection::vec(word, 1..4),
        proptest::sample::select(shapes),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ten_thousand_policies_and_commands_are_judged_like_the_slow_model(
        rules in a_policy(),
        commands in proptest::collection::vec(a_command(), 1..4),
        separator in proptest::sample::select(&["; ", " && ", " | ", "\n", " & ", " || "][..]),
    ) {
        let lines: Vec<String> = commands.iter().map(|(words, shape)| shape.write(words)).collect();
        let line = lines.join(separator);
        prop_assert_eq!(word(&rules, &line), slow_judge(&rules, &commands), "{}", line);
    }

    #[test]
    fn any_line_at_all_is_judged(line in "[ -~\n]{0,60}") {
        let rules = rules(&["*a*"], &["b*"], &["c"]);
        word(&rules, &line);
    }
}
