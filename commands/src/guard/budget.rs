//! What a session may still use. Pure: it is worked out of the session's state, where what runs has its
//! time reserved until it is known how long it took.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::BudgetRecord;
use fluxvm_projections::OnExhaust;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::Sessions;

use super::CommandKind;
use crate::limits::EXEC_OUTPUT_BYTES_MAX;

/// What a command is let have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Its time, in milliseconds; `None` for a job without an end.
    pub(crate) timeout_ms: Option<u64>,
}

/// A limit that is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// The limit's name.
    pub(crate) name: &'static str,
    /// The limit.
    pub(crate) limit: u64,
    /// What was used of it, or is reserved.
    pub(crate) used: u64,
}

impl Exceeded {
    /// For people.
    pub(crate) fn sentence(&self) -> String {
        let Self { name, limit, used } = self;
        format!("the session's budget is spent: {name} is {limit}, and {used} are used or reserved")
    }
}

/// What a command that asks for this time gets.
pub(crate) fn grant(
    session: &Session,
    kind: CommandKind,
    timeout_ms: Option<u64>,
    now: DateTime<Utc>,
) -> Result<Grant, Exceeded> {
    let Some(budget) = &session.budget else {
        return Ok(Grant { timeout_ms });
    };
    let usage = &session.usage;
    let count = |name, limit: Option<u64>, used: u64| match limit {
        Some(limit) if used >= limit => Err(Exceeded { name, limit, used }),
        _ => Ok(()),
    };
    match kind {
        CommandKind::Exec => count("max_execs", budget.max_execs, usage.execs)?,
        CommandKind::Job => {
            let jobs = jobs_running(session);
            count("max_jobs", budget.max_jobs, jobs_started(session))?;
            count("max_concurrent_jobs", budget.max_concurrent_jobs, jobs)?;
        }
    }
    count(
        "max_input_tokens",
        budget.max_input_tokens,
        usage.input_tokens,
    )?;
    count(
        "max_output_tokens",
        budget.max_output_tokens,
        usage.output_tokens,
    )?;
    count(
        "max_cost_microusd",
        budget.max_cost_microusd,
        usage.cost_microusd,
    )?;
    let mut left_ms = timeout_ms;
    if kind == CommandKind::Exec {
        let used = exec_ms(session, budget, now);
        left_ms = within("max_exec_seconds", budget.max_exec_seconds, used, left_ms)?;
    }
    let used = compute_ms(session, budget, now);
    left_ms = within(
        "max_compute_seconds",
        budget.max_compute_seconds,
        used,
        left_ms,
    )?;
    Ok(Grant {
        timeout_ms: left_ms,
    })
}

/// Whether so many more children may be made.
pub(crate) fn children(session: &Session, count: usize) -> Result<(), Exceeded> {
    let limit = session.budget.as_ref().and_then(|it| it.max_children);
    let used = session.children.len() as u64;
    match limit {
        Some(limit) if used.saturating_add(count as u64) > limit => Err(Exceeded {
            name: "max_children",
            limit,
            used,
        }),
        _ => Ok(()),
    }
}

/// The first of a session's ancestors, if the session was forked.
pub(crate) fn root(sessions: &Sessions, session: &Session) -> Option<SessionId> {
    let mut oldest = session;
    while let Some(parent) = oldest
        .origin
        .as_ref()
        .and_then(|it| sessions.get(it.parent))
    {
        oldest = parent;
    }
    (oldest.id != session.id).then_some(oldest.id)
}

/// A session's whole family as one session: the first ancestor's budget, and what all of them used and
/// have in flight. Children share what is left and can never multiply it. `None` for a session that is
/// its whole family.
pub(crate) fn family(sessions: &Sessions, session: &Session) -> Option<Session> {
    session.budget.as_ref()?;
    let oldest = root(sessions, session).and_then(|id| sessions.get(id));
    let oldest = oldest.unwrap_or(session);
    if oldest.children.is_empty() {
        return None;
    }
    let mut family = oldest.clone();
    let mut next = oldest.children.clone();
    while let Some(id) = next.pop() {
        let Some(member) = sessions.get(id) else {
            continue;
        };
        let (all, own) = (&mut family.usage, &member.usage);
        all.execs = all.execs.saturating_add(own.execs);
        all.exec_ms = all.exec_ms.saturating_add(own.exec_ms);
        all.jobs = all.jobs.saturating_add(own.jobs);
        all.job_ms = all.job_ms.saturating_add(own.job_ms);
        all.input_tokens = all.input_tokens.saturating_add(own.input_tokens);
        all.output_tokens = all.output_tokens.saturating_add(own.output_tokens);
        all.cost_microusd = all.cost_microusd.saturating_add(own.cost_microusd);
        family.in_flight.extend(member.in_flight.iter().cloned());
        next.extend_from_slice(&member.children);
    }
    Some(family)
}

/// What is left of a session's budget, as a child of it starts with. `None` when it has none.
pub(crate) fn remaining(session: &Session, now: DateTime<Utc>) -> Option<BudgetRecord> {
    let budget = session.budget.as_ref()?;
    let usage = &session.usage;
    let left = |limit: Option<u64>, used: u64| limit.map(|limit| limit.saturating_sub(used));
    let seconds = |limit: Option<u64>, used_ms: u64| left(limit, used_ms.div_ceil(1_000));
    Some(BudgetRecord {
        max_execs: left(budget.max_execs, usage.execs),
        max_exec_seconds: seconds(budget.max_exec_seconds, exec_ms(session, budget, now)),
        max_jobs: left(budget.max_jobs, jobs_started(session)),
        max_children: left(budget.max_children, session.children.len() as u64),
        max_compute_seconds: seconds(budget.max_compute_seconds, compute_ms(session, budget, now)),
        max_input_tokens: left(budget.max_input_tokens, usage.input_tokens),
        max_output_tokens: left(budget.max_output_tokens, usage.output_tokens),
        max_cost_microusd: left(budget.max_cost_microusd, usage.cost_microusd),
        ..budget.clone()
    })
}

/// Bytes of each output stream that are kept of one command.
pub(crate) fn output_bytes_max(session: &Session) -> usize {
    let limit = session
        .budget
        .as_ref()
        .and_then(|budget| budget.max_output_bytes);
    limit
        .and_then(|bytes| usize::try_from(bytes).ok())
        .map_or(EXEC_OUTPUT_BYTES_MAX, |bytes| {
            bytes.min(EXEC_OUTPUT_BYTES_MAX)
        })
}

/// The time that is left of a limit, at most what is asked for.
fn within(
    name: &'static str,
    limit_seconds: Option<u64>,
    used_ms: u64,
    asked_ms: Option<u64>,
) -> Result<Option<u64>, Exceeded> {
    let Some(limit) = limit_seconds else {
        return Ok(asked_ms);
    };
    match limit.saturating_mul(1_000).checked_sub(used_ms) {
        None | Some(0) => Err(Exceeded {
            name,
            limit,
            used: used_ms / 1_000,
        }),
        Some(left) => Ok(Some(asked_ms.map_or(left, |asked| asked.min(left)))),
    }
}

fn exec_ms(session: &Session, budget: &BudgetRecord, now: DateTime<Utc>) -> u64 {
    let open = session
        .in_flight
        .iter()
        .map(|operation| match &operation.kind {
            OperationKind::Exec { timeout_ms, .. } => match budget.on_exhaust {
                OnExhaust::Stop => *timeout_ms,
                OnExhaust::RefuseNext => elapsed_ms(operation.started_at, now),
            },
            _ => 0,
        });
    open.fold(session.usage.exec_ms, u64::saturating_add)
}

/// Commands and jobs. A job that ended counts with the time that it took.
fn compute_ms(session: &Session, budget: &BudgetRecord, now: DateTime<Utc>) -> u64 {
    let open = session
        .in_flight
        .iter()
        .map(|operation| match &operation.kind {
            OperationKind::Job { timeout_ms, .. } => match (budget.on_exhaust, timeout_ms) {
                (OnExhaust::Stop, Some(reserved)) => *reserved,
                _ => elapsed_ms(operation.started_at, now),
            },
            _ => 0,
        });
    let commands = exec_ms(session, budget, now);
    open.fold(
        commands.saturating_add(session.usage.job_ms),
        u64::saturating_add,
    )
}

fn jobs_running(session: &Session) -> u64 {
    let is_job = |operation: &&Operation| matches!(operation.kind, OperationKind::Job { .. });
    session.in_flight.iter().filter(is_job).count() as u64
}

fn jobs_started(session: &Session) -> u64 {
    session.usage.jobs
}

fn elapsed_ms(since: DateTime<Utc>, now: DateTime<Utc>) -> u64 {
    u64::try_from((now - since).num_milliseconds()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use fluxvm_projections::ExecId;
    use uuid::Uuid;

    use super::*;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_with;

    fn with(budget: BudgetRecord, execs: u64, exec_ms: u64) -> Session {
        let mut session = session();
        session.budget = Some(budget);
        session.usage.execs = execs;
        session.usage.exec_ms = exec_ms;
        session
    }

    fn asked(session: &Session, timeout_ms: u64) -> Result<Option<u64>, &'static str> {
        let granted = grant(session, CommandKind::Exec, Some(timeout_ms), now());
        granted.map(|it| it.timeout_ms).map_err(|it| it.name)
    }

    fn seconds(max_exec_seconds: u64, on_exhaust: OnExhaust) -> BudgetRecord {
        BudgetRecord {
            max_exec_seconds: Some(max_exec_seconds),
            on_exhaust,
            ..BudgetRecord::default()
        }
    }

    #[test]
    fn without_a_budget_everything_is_granted() {
        assert_eq!(asked(&session(), 5), Ok(Some(5)));
    }

    #[test]
    fn a_count_is_spent_when_it_is_reached() {
        let budget = || BudgetRecord {
            max_execs: Some(2),
            ..BudgetRecord::default()
        };
        assert_eq!(asked(&with(budget(), 1, 0), 5), Ok(Some(5)));
        assert_eq!(asked(&with(budget(), 2, 0), 5), Err("max_execs"));
        let none = BudgetRecord {
            max_execs: Some(0),
            ..BudgetRecord::default()
        };
        assert_eq!(asked(&with(none, 0, 0), 5), Err("max_execs"));
    }

    #[test]
    fn a_command_gets_at_most_the_time_that_is_left() {
        let stop = OnExhaust::Stop;
        assert_eq!(
            asked(&with(seconds(10, stop), 1, 4_000), 30_000),
            Ok(Some(6_000))
        );
        assert_eq!(
            asked(&with(seconds(10, stop), 1, 4_000), 1_000),
            Ok(Some(1_000))
        );
        assert_eq!(
            asked(&with(seconds(10, stop), 1, 10_000), 1),
            Err("max_exec_seconds")
        );
        assert_eq!(
            asked(&with(seconds(10, stop), 1, 11_000), 1),
            Err("max_exec_seconds")
        );
    }

    #[test]
    fn what_runs_has_its_time_reserved_unless_only_the_next_is_refused() {
        let running = |on_exhaust| {
            let mut session = session_with(OperationKind::Exec {
                exec_id: ExecId(Uuid::nil()),
                command: "true".into(),
                timeout_ms: 8_000,
                stdin: false,
            });
            session.in_flight[0].started_at = now() - TimeDelta::seconds(3);
            session.budget = Some(seconds(10, on_exhaust));
            session
        };
        assert_eq!(asked(&running(OnExhaust::Stop), 30_000), Ok(Some(2_000)));
        assert_eq!(
            asked(&running(OnExhaust::RefuseNext), 30_000),
            Ok(Some(7_000))
        );
    }

    #[test]
    fn a_job_without_an_end_gets_one_where_time_is_limited() {
        let budget = BudgetRecord {
            max_compute_seconds: Some(10),
            ..BudgetRecord::default()
        };
        let granted = grant(&with(budget, 1, 4_000), CommandKind::Job, None, now());
        assert_eq!(granted.map(|it| it.timeout_ms), Ok(Some(6_000)));
        let granted = grant(&session(), CommandKind::Job, None, now());
        assert_eq!(granted.map(|it| it.timeout_ms), Ok(None));
        let none = BudgetRecord {
            max_jobs: Some(0),
            ..BudgetRecord::default()
        };
        let refused = grant(&with(none, 0, 0), CommandKind::Job, None, now());
        assert_eq!(refused.unwrap_err().name, "max_jobs");
    }

    #[test]
    fn what_is_left_is_what_a_child_starts_with() {
        let budget = BudgetRecord {
            max_execs: Some(10),
            max_output_bytes: Some(7),
            ..seconds(10, OnExhaust::Stop)
        };
        let left = remaining(&with(budget, 3, 1_200), now()).unwrap();
        assert_eq!((left.max_execs, left.max_exec_seconds), (Some(7), Some(8)));
        assert_eq!(left.max_output_bytes, Some(7));
        assert_eq!(remaining(&session(), now()), None);
    }
}
