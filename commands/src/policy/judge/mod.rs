//! Rules about commands, held against a line.

use fluxvm_projections::ProcessRecord;

use crate::policy::glob::Cover;
use crate::policy::glob::Glob;
use crate::policy::pieces;
use crate::policy::shell;
use crate::policy::shell::Reading;
use crate::policy::shell::Run;
use crate::policy::text::Text;

/// What `matched` says of a line that is held because it cannot be judged.
const UNJUDGED: &str = "unjudged";

/// What the rules say of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// What no rule could be held against, for people.
    pub(crate) unjudged: Vec<String>,
    /// The commands that the line runs, for people.
    pub(crate) runs: Vec<String>,
}

/// Whether a line runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It does.
    Run,
    /// It does when as many people as this agree.
    Ask {
        /// The pattern, or `unjudged`.
        matched: String,
        /// How many.
        approvers: u32,
    },
    /// It does not.
    Refuse {
        /// The pattern that refuses it; `None` when none allows it.
        matched: Option<String>,
        /// Why, for people.
        reason: String,
    },
}

/// Judges a line by the rules of a session. Without rules everything runs.
pub(crate) fn judge(rules: Option<&ProcessRecord>, line: &str) -> Judgement {
    let Some(rules) = rules.filter(|rules| rules.has_patterns()) else {
        return Judgement {
            verdict: Verdict::Run,
            unjudged: Vec::new(),
            runs: Vec::new(),
        };
    };
    let reading = shell::read(line);
    let runs = reading.runs.iter().filter(|run| run.certain);
    let shown = runs.map(|run| Text::joined(&run.words).shown()).collect();
    let mut judge = Judge {
        rules: Rules::new(rules),
        unjudged: reading.unjudged.clone(),
    };
    let verdict = judge.verdict(&reading, line, rules.strict);
    Judgement {
        verdict,
        unjudged: judge.unjudged,
        runs: shown,
    }
}

struct Rules<'a> {
    allow: Vec<Pattern<'a>>,
    deny: Vec<Pattern<'a>>,
    ask: Vec<Pattern<'a>>,
}

struct Pattern<'a> {
    text: &'a str,
    glob: Glob,
    approvers: u32,
}

impl<'a> Rules<'a> {
    fn new(rules: &'a ProcessRecord) -> Self {
        let plain = |patterns: &'a [String]| {
            let pattern = |text: &'a String| Pattern::new(text, 0);
            patterns.iter().map(pattern).collect()
        };
        let ask =
            |rule: &'a fluxvm_projections::AskRecord| Pattern::new(&rule.pattern, rule.approvers);
        Self {
            allow: plain(&rules.allow),
            deny: plain(&rules.deny),
            ask: rules.ask.iter().map(ask).collect(),
        }
    }
}

impl<'a> Pattern<'a> {
    fn new(text: &'a str, approvers: u32) -> Self {
        Self {
            text,
            glob: Glob::new(text),
            approvers,
        }
    }
}

struct Judge<'a> {
    rules: Rules<'a>,
    unjudged: Vec<String>,
}

impl Judge<'_> {
    fn verdict(&mut self, reading: &Reading, line: &str, strict: bool) -> Verdict {
        let mut texts: Vec<Text> = pieces::cut(line).into_iter().map(Text::literal).collect();
        texts.extend(reading.runs.iter().flat_map(shapes));
        if let Some(refused) = self.denied(&texts) {
            return refused;
        }
        if let Some(refused) = self.not_allowed(reading, line) {
            return refused;
        }
        match self.asked(&texts) {
            Some(asked) => asked,
            None if strict && !self.unjudged.is_empty() => Verdict::Ask {
                matched: UNJUDGED.to_owned(),
                approvers: 1,
            },
            None => Verdict::Run,
        }
    }

    fn denied(&mut self, texts: &[Text]) -> Option<Verdict> {
        let mut perhaps = Vec::new();
        for text in texts {
            for pattern in &self.rules.deny {
                match pattern.glob.cover(text) {
                    Cover::Always => {
                        let reason = format!("`{}` is denied by `{}`", text.shown(), pattern.text);
                        let matched = Some(pattern.text.to_owned());
                        return Some(Verdict::Refuse { matched, reason });
                    }
                    Cover::Perhaps => perhaps.push(may_be(text, "deny", pattern.text)),
                    Cover::Never => {}
                }
            }
        }
        self.note(perhaps);
        None
    }

    /// With patterns that allow, everything that runs needs one, in both readings.
    fn not_allowed(&mut self, reading: &Reading, line: &str) -> Option<Verdict> {
        if self.rules.allow.is_empty() {
            return None;
        }
        let stripped = without_documents(line, reading);
        let pieces = match reading.parsed {
            true => pieces::cut_outside_quotes(&stripped),
            false => pieces::cut(line),
        };
        let mut perhaps = Vec::new();
        let certain = reading.runs.iter().filter(|run| run.certain);
        let runs = certain.map(|run| Text::joined(&run.words));
        for text in pieces.into_iter().map(Text::literal).chain(runs) {
            let patterns = self.rules.allow.iter().chain(&self.rules.ask);
            let mut best = Cover::Never;
            for cover in patterns.map(|pattern| pattern.glob.cover(&text)) {
                best = match (best, cover) {
                    (Cover::Always, _) | (_, Cover::Always) => Cover::Always,
                    (Cover::Perhaps, _) | (_, Cover::Perhaps) => Cover::Perhaps,
                    _ => Cover::Never,
                };
            }
            match best {
                Cover::Always => {}
                Cover::Perhaps => perhaps.push(format!("`{}` may not be allowed", text.shown())),
                Cover::Never => {
                    let reason = format!("no pattern allows `{}`", text.shown());
                    let matched = None;
                    return Some(Verdict::Refuse { matched, reason });
                }
            }
        }
        self.note(perhaps);
        None
    }

    /// The pattern that wants the most people to agree.
    fn asked(&mut self, texts: &[Text]) -> Option<Verdict> {
        let mut perhaps = Vec::new();
        let mut asked: Option<(&str, u32)> = None;
        for text in texts {
            for pattern in &self.rules.ask {
                match pattern.glob.cover(text) {
                    Cover::Always if asked.is_none_or(|(_, most)| pattern.approvers > most) => {
                        asked = Some((pattern.text, pattern.approvers));
                    }
                    Cover::Perhaps => perhaps.push(may_be(text, "ask", pattern.text)),
                    Cover::Always | Cover::Never => {}
                }
            }
        }
        let verdict = asked.map(|(matched, approvers)| Verdict::Ask {
            matched: matched.to_owned(),
            approvers,
        });
        self.note(perhaps);
        verdict
    }

    fn note(&mut self, perhaps: Vec<String>) {
        for what in perhaps {
            if self.unjudged.len() < shell::UNJUDGED_MAX && !self.unjudged.contains(&what) {
                self.unjudged.push(what);
            }
        }
    }
}

/// What a pattern that refuses or asks is held against: the command, as it is when words of it come to
/// nothing, and under its bare name.
fn shapes(run: &Run) -> Vec<Text> {
    let mut shapes = vec![Text::joined(&run.words)];
    shapes.extend(Text::joined_without(&run.words));
    if let Some(name) = run.words.first().and_then(Text::behind_slash) {
        let mut words = run.words.clone();
        if let Some(first) = words.first_mut() {
            *first = name;
        }
        shapes.extend(Text::joined_without(&words));
        shapes.push(Text::joined(&words));
    }
    shapes
}

fn may_be(text: &Text, list: &str, pattern: &str) -> String {
    format!("`{}` may match {list} `{pattern}`", text.shown())
}

/// The line without the bodies of its here documents, which nobody runs as they stand.
fn without_documents(line: &str, reading: &Reading) -> String {
    let mut line = line.to_owned();
    for (body, end) in &reading.documents {
        line = line.replacen(&format!("\n{body}{end}"), "", 1);
    }
    line
}

#[cfg(test)]
mod tests;
