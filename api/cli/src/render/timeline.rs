//! A session's history as numbered steps. An intent and its outcome are one step: the outcome's
//! `op` names the intent's seq. An intent without an outcome is a step that still runs.

use std::collections::HashMap;

use chrono::DateTime;
use chrono::Utc;
use serde_json::Value;

use super::Tone;
use super::count;
use super::events::what;
use super::finish;
use super::human_bytes;
use super::number;
use super::string;
use super::table;
use super::time;
use super::toned;
use super::tree;
use super::tree::Line;
use crate::duration::human_millis;
use crate::output::Style;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    /// Seq of the step's first event, by which an outcome finds it.
    seq: Option<u64>,
    /// Seq of its last.
    ended: Option<u64>,
    at: Option<DateTime<Utc>>,
    kind: String,
    result: String,
    tone: Tone,
    took_ms: Option<u64>,
    what: String,
    failed: bool,
    /// The event that a point was taken before.
    before: Option<u64>,
    /// Of a write to a job: which job, and how many bytes it took.
    written: Option<Written>,
    /// The sessions that it made.
    children: Vec<String>,
}

/// Writes to a job that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    job: String,
    bytes: u64,
    writes: usize,
}

/// The text of `agent timeline`.
pub(crate) fn render(events: &[Value], style: Style) -> String {
    let steps = steps(events);
    if steps.is_empty() {
        return "Nothing happened yet.".to_owned();
    }
    let start = steps.iter().find_map(|step| step.at);
    let line = tree::branches(events).then(|| Line::of(events));
    let mut headings = vec!["#", "AFTER", "STEP", "RESULT", "TOOK", "WHAT"];
    if line.is_some() {
        headings.insert(1, "TREE");
    }
    let mut table = table(style, &headings);
    for (index, step) in steps.iter().enumerate() {
        let undone = line.as_ref().and_then(|line| line.undone_by(step.seq?));
        let undone = undone.and_then(|by| number_of(&steps, by));
        let what = match undone {
            Some(number) => format!("{} (undone by step {number})", step.what),
            None => step.what.clone(),
        };
        let took = step.took_ms.map(human_millis);
        let mut row = vec![
            toned(index + 1, Tone::Plain),
            toned(after(start, step.at), Tone::Plain),
            toned(&step.kind, Tone::Plain),
            toned(&step.result, step.tone),
            toned(took.unwrap_or_else(|| "-".to_owned()), Tone::Plain),
            toned(what, Tone::Plain),
        ];
        if line.is_some() {
            row.insert(
                1,
                toned(tree::mark(&step.kind, undone.is_some()), Tone::Plain),
            );
        }
        table.add_row(row);
        for child in step.children.iter().filter(|_| line.is_some()) {
            let what = format!("child {child}");
            let cells = ["", "├─▶", "", "", "", "", what.as_str()];
            table.add_row(cells.map(|text| toned(text, Tone::Plain)));
        }
    }
    format!("{}\n\n{}", finish(table), summary(&steps, start))
}

/// The number of the step that an event is the end of.
fn number_of(steps: &[Step], ended_by: u64) -> Option<usize> {
    let place = steps.iter().position(|step| step.ended == Some(ended_by));
    place.map(|index| index + 1)
}

fn summary(steps: &[Step], start: Option<DateTime<Utc>>) -> String {
    let commands: Vec<&Step> = steps
        .iter()
        .filter(|step| step.kind.starts_with("exec") || is_job(&step.kind))
        .collect();
    let failed = commands.iter().filter(|step| step.failed).count();
    let running = steps.iter().filter(|step| step.result == "running").count();
    let mut words = vec![count(steps.len(), "step"), count(commands.len(), "command")];
    if failed > 0 {
        words.push(format!("{failed} not with exit code 0"));
    }
    if running > 0 {
        words.push(format!("{running} still running"));
    }
    let from = start.map(|at| format!("; began {}", at.format("%Y-%m-%d %H:%M:%S UTC")));
    format!("{}{}", words.join(", "), from.unwrap_or_default())
}

/// Time since the first step, as `+12.345s`.
fn after(start: Option<DateTime<Utc>>, at: Option<DateTime<Utc>>) -> String {
    let (Some(start), Some(at)) = (start, at) else {
        return "-".to_owned();
    };
    let millis = (at - start).num_milliseconds().max(0);
    format!("+{}.{:03}s", millis / 1_000, millis % 1_000)
}

/// Folds events to steps, in the order in which the steps began.
fn steps(events: &[Value]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for event in events {
        let interrupted = string(event, "kind") == "lifecycle.interrupted";
        let pointer = if interrupted { "/data/seq" } else { "/data/op" };
        let intent = event.pointer(pointer).and_then(Value::as_u64);
        let open = steps
            .iter_mut()
            .rev()
            .find(|step| intent.is_some() && step.seq == intent && step.result == "running");
        match open {
            Some(step) if interrupted => {
                "interrupted".clone_into(&mut step.result);
                step.tone = Tone::Bad;
                step.failed = true;
            }
            Some(step) => {
                *step = Step {
                    seq: step.seq,
                    at: step.at,
                    ..step_of(event)
                }
            }
            None => steps.push(step_of(event)),
        }
    }
    let mut steps = fold_writes(steps);
    name_steps(&mut steps);
    steps
}

/// A run of writes to one job is one step: who pipes something into it need not page through its pieces.
fn fold_writes(steps: Vec<Step>) -> Vec<Step> {
    let mut folded: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let before = folded.last_mut().and_then(|step| step.written.as_mut());
        match (before, &step.written) {
            (Some(run), Some(one)) if run.job == one.job && step.result == "done" => {
                run.bytes += one.bytes;
                run.writes += one.writes;
                let (bytes, writes) = (human_bytes(run.bytes), run.writes);
                let closed = if step.what.ends_with(", closed") {
                    ", closed"
                } else {
                    ""
                };
                let what = format!("{bytes} to {:.8} in {writes} writes{closed}", run.job);
                if let Some(last) = folded.last_mut() {
                    last.what = what;
                }
            }
            _ => folded.push(step),
        }
    }
    folded
}

/// What a finished write came to. One that went wrong stands for itself.
fn written_by(kind: &str, data: &Value) -> Option<Written> {
    let is_fine = kind == "job.stdin" && string(data, "code").is_empty();
    is_fine.then(|| Written {
        job: string(data, "job").to_owned(),
        bytes: number(data, "written").unwrap_or_default(),
        writes: 1,
    })
}

/// What a point was taken before is one of the steps here: it is called by its number.
fn name_steps(steps: &mut [Step]) {
    let numbers: HashMap<u64, usize> = steps
        .iter()
        .enumerate()
        .filter_map(|(index, step)| Some((step.seq?, index + 1)))
        .collect();
    for step in steps {
        let number = step.before.and_then(|before| numbers.get(&before));
        if let (Some(number), Some((tag, _))) = (number, step.what.split_once(' ')) {
            step.what = format!("{tag} before step {number}");
        }
    }
}

/// Whether an event of this kind, or a step, is a job and not something that was sent to one.
fn is_job(kind: &str) -> bool {
    matches!(
        kind,
        "job" | "job.start" | "job.exit" | "job.failed" | "job.refused"
    )
}

fn step_of(event: &Value) -> Step {
    let kind = string(event, "kind");
    let data = event.get("data").unwrap_or(&Value::Null);
    let (result, tone, failed) = result_of(kind, data);
    Step {
        seq: number(event, "seq"),
        ended: number(event, "seq"),
        at: time(string(event, "at")),
        kind: match is_job(kind) {
            true => "job".to_owned(),
            false => kind.strip_suffix(".started").unwrap_or(kind).to_owned(),
        },
        result,
        tone,
        took_ms: number(data, "duration_ms"),
        what: what(event),
        failed,
        before: number(data, "before").filter(|_| kind.starts_with("rewind.point")),
        written: written_by(kind, data),
        children: tree::children(event),
    }
}

fn result_of(kind: &str, data: &Value) -> (String, Tone, bool) {
    // What was erased took the tie between an intent and its outcome with it.
    if data.is_null() {
        return ("redacted".to_owned(), Tone::Open, false);
    }
    if let Some(code) = data.get("exit_code").and_then(Value::as_i64) {
        let tone = if code == 0 { Tone::Good } else { Tone::Bad };
        return (format!("exit {code}"), tone, code != 0);
    }
    match kind.rsplit_once('.') {
        // A daemon's own start is a whole step, not the beginning of one.
        Some(("host", _)) => (String::new(), Tone::Plain, false),
        Some((_, "started")) | Some(("job", "start")) => ("running".to_owned(), Tone::Open, false),
        Some((_, "failed" | "refused")) => {
            let code = string(data, "code");
            let word = if kind.ends_with("refused") {
                "refused"
            } else {
                "failed"
            };
            let text = if code.is_empty() {
                word.to_owned()
            } else {
                format!("{word}: {code}")
            };
            (text, Tone::Bad, true)
        }
        Some((_, "gone" | "interrupted" | "expire")) => (String::new(), Tone::Open, false),
        _ => ("done".to_owned(), Tone::Good, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::Expect;
    use expect_test::expect;
    use serde_json::json;

    fn check(events: &[Value], expected: Expect) {
        expected.assert_eq(&render(events, Style::default()));
    }

    fn event(seq: u64, second: u64, kind: &str, data: Value) -> Value {
        json!({"seq": seq, "at": format!("2026-12-01T10:00:{second:02}.250Z"), "kind": kind, "actor": "admin:a", "data": data})
    }

    #[test]
    fn a_run_of_writes_to_a_job_is_one_step() {
        let job = "5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11";
        let mut events = Vec::new();
        for nth in 0..3 {
            let (intent, last) = (10 + 2 * nth, nth == 2);
            let begun = json!({"job": job, "bytes": 1024, "close": last});
            events.push(event(intent, nth, "job.stdin.started", begun));
            let taken = json!({"op": intent, "job": job, "written": 1024, "closed": last});
            events.push(event(intent + 1, nth, "job.stdin", taken));
        }
        let failed = json!({"op": 16, "job": job, "written": 5, "code": "stdin_full"});
        events.push(event(17, 4, "job.stdin", failed));
        let steps = steps(&events);
        let told: Vec<&str> = steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(
            told,
            [
                "3.0 KiB to 5f0c6c1e in 3 writes, closed",
                "5 B to 5f0c6c1e (stdin_full)"
            ]
        );
    }

    #[test]
    fn an_intent_and_its_outcome_are_one_step() {
        check(
            &[
                event(
                    5,
                    0,
                    "session.create.started",
                    json!({"agent": "codex", "backend": "procbox"}),
                ),
                event(
                    6,
                    0,
                    "session.create",
                    json!({"op": 5, "agent": "codex", "backend": "procbox", "duration_ms": 12}),
                ),
                event(7, 1, "exec.started", json!({"command": "make"})),
                event(8, 2, "exec.started", json!({"command": "sleep 9"})),
                event(
                    9,
                    5,
                    "exec",
                    json!({"op": 7, "command": "make", "exit_code": 2, "duration_ms": 4000}),
                ),
                event(
                    10,
                    6,
                    "exec.refused",
                    json!({"command": "rm -rf /", "code": "policy", "reason": "denied"}),
                ),
            ],
            expect![[r#"
                #  AFTER    STEP            RESULT           TOOK    WHAT
                1  +0.000s  session.create  done             12 ms   codex in procbox
                2  +1.000s  exec            exit 2           4.00 s  make
                3  +2.000s  exec            running          -       sleep 9
                4  +6.000s  exec.refused    refused: policy  -       rm -rf /: denied

                4 steps, 3 commands, 2 not with exit code 0, 1 still running; began 2026-12-01 10:00:00 UTC"#]],
        );
    }

    #[test]
    fn an_outcome_whose_intent_is_not_in_view_is_a_step_of_its_own() {
        check(
            &[event(
                9,
                5,
                "exec",
                json!({"op": 7, "command": "true", "exit_code": 0, "duration_ms": 1, "readopted": true}),
            )],
            expect![[r#"
                #  AFTER    STEP  RESULT  TOOK  WHAT
                1  +0.000s  exec  exit 0  1 ms  true  [went on over a restart of the daemon]

                1 step, 1 command; began 2026-12-01 10:00:05 UTC"#]],
        );
    }

    #[test]
    fn a_point_names_the_step_that_it_was_taken_before() {
        check(
            &[
                event(7, 1, "exec.started", json!({"command": "make"})),
                event(
                    8,
                    1,
                    "rewind.point.started",
                    json!({"tag": "rw-1", "before": 7}),
                ),
                event(
                    9,
                    1,
                    "rewind.point",
                    json!({"op": 8, "tag": "rw-1", "before": 7, "duration_ms": 12}),
                ),
                event(
                    10,
                    2,
                    "exec",
                    json!({"op": 7, "command": "make", "exit_code": 0}),
                ),
                event(
                    11,
                    3,
                    "rewind.undo",
                    json!({"op": 10, "tag": "rw-1", "steps": 1}),
                ),
            ],
            expect![[r#"
                #  TREE  AFTER    STEP          RESULT  TOOK   WHAT
                1  │ ○   +0.000s  exec          exit 0  -      make (undone by step 3)
                2  ●     +0.000s  rewind.point  done    12 ms  rw-1 before step 1
                3  ◀     +2.000s  rewind.undo   done    -      to rw-1, 1 step

                3 steps, 1 command; began 2026-12-01 10:00:01 UTC"#]],
        );
    }

    #[test]
    fn what_was_undone_children_and_promotions_are_a_tree() {
        let exec = |seq, second, command: &str| {
            [
                event(seq, second, "exec.started", json!({"command": command})),
                event(
                    seq + 1,
                    second,
                    "exec",
                    json!({"op": seq, "command": command, "exit_code": 0}),
                ),
            ]
        };
        let mut events = Vec::new();
        events.extend([
            event(1, 0, "checkpoint.started", json!({"tag": "a"})),
            event(2, 0, "checkpoint", json!({"op": 1, "tag": "a"})),
        ]);
        events.extend(exec(3, 1, "rm -r src"));
        events.extend([
            event(5, 2, "restore.started", json!({"tag": "a"})),
            event(6, 2, "restore", json!({"op": 5, "tag": "a"})),
        ]);
        events.extend(exec(7, 3, "make"));
        events.push(event(
            9,
            4,
            "fork",
            json!({"op": 8, "children": ["c1", "c2"]}),
        ));
        let text = render(&events, Style::default());
        for words in [
            "2  │ ○   +1.000s  exec        exit 0  -     rm -r src (undone by step 3)",
            "3  ◀     +2.000s  restore",
            "4  ●     +3.000s  exec        exit 0  -     make",
            "   ├─▶",
            "child c2",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }

    #[test]
    fn an_erased_command_is_neither_running_nor_done() {
        let erased = |seq, kind| event(seq, 1, kind, Value::Null);
        let text = render(
            &[erased(7, "exec.started"), erased(8, "exec")],
            Style::default(),
        );
        assert!(
            text.contains("redacted") && !text.contains("running"),
            "{text}"
        );
    }

    #[test]
    fn only_what_happened_wraps_and_never_within_a_word() {
        let command =
            "cargo test --workspace --no-fail-fast > /workspace/target/report-of-the-tests.txt";
        let events = [event(
            7,
            0,
            "exec.refused",
            json!({"command": command, "code": "policy", "reason": "not now"}),
        )];
        let shown = |columns| {
            let style = Style {
                columns: Some(columns),
                ..Style::default()
            };
            render(&events, style)
        };
        assert_eq!(shown(0), shown(80));
        expect![[r#"
            #  AFTER    STEP          RESULT           TOOK  WHAT
            1  +0.000s  exec.refused  refused: policy  -     cargo test --workspace
                                                             --no-fail-fast >
                                                             /workspace/target/report-of-the-…:
                                                             not now

            1 step, 1 command, 1 not with exit code 0; began 2026-12-01 10:00:00 UTC"#]]
        .assert_eq(&shown(40));
        expect![[r#"
            #  AFTER    STEP          RESULT           TOOK  WHAT
            1  +0.000s  exec.refused  refused: policy  -     cargo test --workspace
                                                             --no-fail-fast >
                                                             /workspace/target/report-of-the-…:
                                                             not now

            1 step, 1 command, 1 not with exit code 0; began 2026-12-01 10:00:00 UTC"#]]
        .assert_eq(&shown(80));
        expect![[r#"
            #  AFTER    STEP          RESULT           TOOK  WHAT
            1  +0.000s  exec.refused  refused: policy  -     cargo test --workspace --no-fail-fast >
                                                             /workspace/target/report-of-the-…: not now

            1 step, 1 command, 1 not with exit code 0; began 2026-12-01 10:00:00 UTC"#]].assert_eq(&shown(120));
    }

    #[test]
    fn an_empty_history_says_so() {
        check(&[], expect!["Nothing happened yet."]);
    }
}
