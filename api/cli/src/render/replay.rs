//! A replay's steps beside what was recorded, and what was not run.

use serde_json::Value;

use super::Tone;
use super::clean;
use super::count;
use super::finish;
use super::first_line;
use super::items;
use super::string;
use super::table;
use super::text;
use super::toned;
use crate::duration::human_millis;
use crate::output::Style;

/// The text of `agent replay`.
pub(crate) fn render(answer: &Value, style: Style) -> String {
    let steps = items(answer, "steps");
    let skipped = items(answer, "skipped");
    let mut parts = Vec::new();
    if steps.is_empty() {
        parts.push("No commands to run again.".to_owned());
    } else if is_dry_run(answer) {
        parts.push(plan(steps, style));
    } else {
        parts.push(outcome(steps, style));
        parts.push(summary(answer, steps));
    }
    if !skipped.is_empty() {
        parts.push(not_run_again(skipped, style));
    }
    parts.join("\n\n")
}

/// True when a command ended with another exit code than the recorded one, when another step came to
/// something else, or when one did not run: then the replay does not show that the history holds.
pub(crate) fn differs(answer: &Value) -> bool {
    !is_dry_run(answer)
        && items(answer, "steps")
            .iter()
            .any(|step| held(step) != Some(true))
}

/// A step that is no command, of which all that counts is in one word.
fn is_other(step: &Value) -> bool {
    !matches!(string(step, "kind"), "" | "exec")
}

/// Whether a step came to what was recorded; its output aside, if it is a command.
fn held(step: &Value) -> Option<bool> {
    match is_other(step) {
        true => step.get("same").and_then(Value::as_bool),
        false => same(step, "exit_code"),
    }
}

fn is_dry_run(answer: &Value) -> bool {
    answer
        .get("dry_run")
        .and_then(Value::as_bool)
        .unwrap_or_default()
}

fn plan(steps: &[Value], style: Style) -> String {
    let mut table = table(style, &["#", "SEQ", "RECORDED EXIT", "WHAT"]);
    for (index, step) in steps.iter().enumerate() {
        table.add_row(vec![
            toned(index + 1, Tone::Plain),
            toned(text(step, "/seq"), Tone::Plain),
            toned(text(step, "/recorded_exit_code"), Tone::Plain),
            toned(first_line(string(step, "command")), Tone::Plain),
        ]);
    }
    finish(table)
}

fn outcome(steps: &[Value], style: Style) -> String {
    let headers = [
        "#",
        "SEQ",
        "RECORDED EXIT",
        "EXIT",
        "SAME EXIT",
        "SAME OUTPUT",
        "TOOK",
        "WHAT",
    ];
    let mut table = table(style, &headers);
    for (index, step) in steps.iter().enumerate() {
        let same_exit = same(step, "exit_code");
        let same_output = same_output(step);
        let took = step
            .get("duration_ms")
            .and_then(Value::as_u64)
            .map(human_millis);
        let mut what = first_line(string(step, "command"));
        if let Some(error) = error_of(step) {
            what.push_str(&format!("  [{error}]"));
        }
        table.add_row(vec![
            toned(index + 1, Tone::Plain),
            toned(text(step, "/seq"), Tone::Plain),
            toned(text(step, "/recorded_exit_code"), Tone::Plain),
            toned(text(step, "/exit_code"), Tone::Plain),
            toned(answer_word(same_exit), tone(same_exit, Tone::Bad)),
            toned(answer_word(same_output), tone(same_output, Tone::Open)),
            toned(took.unwrap_or_else(|| "-".to_owned()), Tone::Plain),
            toned(what, Tone::Plain),
        ]);
    }
    finish(table)
}

fn summary(answer: &Value, steps: &[Value]) -> String {
    let ran = steps.iter().filter(|step| held(step).is_some()).count();
    let same_exit = steps.iter().filter(|step| held(step) == Some(true)).count();
    let differing: Vec<String> = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| same_output(step) == Some(false))
        .map(|(index, _)| (index + 1).to_string())
        .collect();
    let output = if differing.is_empty() {
        "the same output everywhere".to_owned()
    } else {
        format!("other output in step {}", differing.join(", "))
    };
    let failed = steps.iter().any(|step| error_of(step).is_some());
    let stopped = match string(answer, "stopped_because") {
        "" => String::new(),
        reason => {
            let hint = if failed || ran == steps.len() {
                ""
            } else {
                " (--keep-going runs the rest)"
            };
            format!(
                "\nStopped at seq {}: {}{hint}",
                text(answer, "/stopped_at"),
                clean(reason)
            )
        }
    };
    let result = match steps.iter().any(is_other) {
        true => "exit code or result",
        false => "exit code",
    };
    let diverged = match text(answer, "/diverged_at").as_str() {
        "-" => String::new(),
        seq => format!("\nThe first that differs is seq {seq}."),
    };
    format!(
        "{} run again, {same_exit} with the recorded {result}, {output}.{diverged}{stopped}",
        count(ran, "step")
    )
}

fn not_run_again(skipped: &[Value], style: Style) -> String {
    let mut table = table(style, &["SEQ", "NOT RUN AGAIN", "WHY"]);
    for step in skipped {
        table.add_row(vec![
            toned(text(step, "/seq"), Tone::Plain),
            toned(text(step, "/kind"), Tone::Plain),
            toned(text(step, "/reason"), Tone::Plain),
        ]);
    }
    finish(table)
}

fn same(step: &Value, what: &str) -> Option<bool> {
    step.get(format!("same_{what}")).and_then(Value::as_bool)
}

/// Both streams the same; unknown when the source was recorded by digest and neither is said.
fn same_output(step: &Value) -> Option<bool> {
    if is_other(step) {
        return held(step);
    }
    same(step, "output").or_else(|| Some(same(step, "stdout")? && same(step, "stderr")?))
}

fn error_of(step: &Value) -> Option<String> {
    match step.get("error")? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        error => Some(text(error, "/message")),
    }
}

fn answer_word(same: Option<bool>) -> &'static str {
    match same {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

fn tone(same: Option<bool>, otherwise: Tone) -> Tone {
    match same {
        Some(true) => Tone::Good,
        Some(false) => otherwise,
        None => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn ran(seq: u64, exits: (i64, i64), same_stdout: bool) -> Value {
        json!({"seq": seq, "command": "make", "recorded_exit_code": exits.0, "exit_code": exits.1,
            "same_exit_code": exits.0 == exits.1, "same_stdout": same_stdout, "same_stderr": true,
            "duration_ms": 12})
    }

    #[test]
    fn steps_stand_beside_what_was_recorded() {
        let never = json!({"seq": 15, "command": "ls", "recorded_exit_code": 0});
        let answer = json!({"dry_run": false, "steps": [ran(9, (0, 0), true), ran(11, (0, 0), false), ran(13, (0, 2), true), never],
            "skipped": [{"seq": 20, "kind": "file.write", "reason": "not a command"}],
            "stopped_at": 13, "stopped_because": "exit code 2"});
        assert!(differs(&answer));
        expect![[r#"
            #  SEQ  RECORDED EXIT  EXIT  SAME EXIT  SAME OUTPUT  TOOK   WHAT
            1  9    0              0     yes        yes          12 ms  make
            2  11   0              0     yes        no           12 ms  make
            3  13   0              2     no         yes          12 ms  make
            4  15   0              -     -          -            -      ls

            3 steps run again, 2 with the recorded exit code, other output in step 2.
            Stopped at seq 13: exit code 2 (--keep-going runs the rest)

            SEQ  NOT RUN AGAIN  WHY
            20   file.write     not a command"#]]
        .assert_eq(&render(&answer, Style::default()));
    }

    #[test]
    fn other_output_alone_is_no_difference_in_outcome() {
        assert!(!differs(
            &json!({"steps": [ran(9, (0, 0), false), ran(10, (3, 3), true)]})
        ));
    }

    #[test]
    fn a_step_that_was_refused_is_a_difference() {
        let step = json!({"seq": 9, "command": "ls", "recorded_exit_code": 0, "error": {"code": "x", "message": "refused"}});
        let answer = json!({"steps": [step]});
        assert!(differs(&answer));
        assert!(render(&answer, Style::default()).contains("[refused]"));
    }

    #[test]
    fn a_dry_run_lists_the_plan() {
        let answer = json!({"dry_run": true, "steps": [{"seq": 9, "command": "make", "recorded_exit_code": 0}], "skipped": []});
        expect![[r#"
            #  SEQ  RECORDED EXIT  WHAT
            1  9    0              make"#]]
        .assert_eq(&render(&answer, Style::default()));
    }
}
