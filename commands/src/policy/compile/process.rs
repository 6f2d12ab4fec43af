//! The part about commands.

use fluxvm_projections::AskRecord;
use fluxvm_projections::ProcessRecord;

use super::Enforceable;
use super::invalid;
use super::unenforceable;
use crate::error::CommandError;
use crate::limits::APPROVERS_MAX;
use crate::limits::POLICY_LIST_MAX;
use crate::limits::POLICY_PATTERN_CHARS_MAX;
use crate::request::Enforcement;
use crate::request::ProcessRequest;

/// `None` when nothing is asked for.
pub(super) fn compile(
    request: ProcessRequest,
    can: Enforceable,
) -> Result<Option<ProcessRecord>, CommandError> {
    let asked = request.ask.iter().map(|ask| &ask.pattern);
    check_list("policy.process.allow", request.allow.iter())?;
    check_list("policy.process.deny", request.deny.iter())?;
    check_list("policy.process.ask", asked.clone())?;
    let approvers = 1..=APPROVERS_MAX;
    if request
        .ask
        .iter()
        .any(|ask| !approvers.contains(&ask.approvers))
    {
        let message = format!("must be 1 to {APPROVERS_MAX}");
        return Err(invalid("policy.process.ask.approvers", message));
    }
    let programs = match request.enforce {
        true => programs(request.allow.iter().chain(asked), can)?,
        false => Vec::new(),
    };
    let ask = request.ask.into_iter().map(|ask| AskRecord {
        pattern: ask.pattern,
        approvers: ask.approvers,
    });
    let record = ProcessRecord {
        allow: request.allow,
        deny: request.deny,
        ask: ask.collect(),
        strict: request.enforcement == Enforcement::Strict,
        programs,
    };
    Ok(record.has_patterns().then_some(record))
}

fn check_list<'a>(
    field: &'static str,
    patterns: impl ExactSizeIterator<Item = &'a String>,
) -> Result<(), CommandError> {
    if patterns.len() > POLICY_LIST_MAX {
        return Err(invalid(
            field,
            format!("must hold at most {POLICY_LIST_MAX} patterns"),
        ));
    }
    for pattern in patterns {
        let length = pattern.chars().count();
        let holds = !pattern.trim().is_empty()
            && length <= POLICY_PATTERN_CHARS_MAX
            && !pattern.chars().any(char::is_control);
        if !holds {
            let message =
                format!("patterns must be 1 to {POLICY_PATTERN_CHARS_MAX} characters of one line");
            return Err(invalid(field, message));
        }
    }
    Ok(())
}

/// The first word of each pattern, each once.
fn programs<'a>(
    patterns: impl Iterator<Item = &'a String>,
    can: Enforceable,
) -> Result<Vec<String>, CommandError> {
    let field = "policy.process.enforce";
    let mut programs: Vec<String> = Vec::new();
    for pattern in patterns {
        let word = pattern.split_whitespace().next().unwrap_or_default();
        let is_path = word.starts_with('/') && !word.split('/').any(|part| part == "..");
        if word.contains('*') || (!is_path && word.contains('/')) {
            let message =
                format!("`{word}` is no program: a name or an absolute path, without `*`");
            return Err(invalid(field, message));
        }
        if !programs.iter().any(|known| known == word) {
            programs.push(word.to_owned());
        }
    }
    if programs.is_empty() {
        let message = "needs patterns in `allow` or `ask` that name the programs";
        return Err(invalid(field, message));
    }
    if !can.exec_allowlist {
        let message = "this host's kernel or engine cannot hold a sandbox to a list of programs";
        return Err(unenforceable(field, message));
    }
    Ok(programs)
}
