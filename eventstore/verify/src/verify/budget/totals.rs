//! What was let have, added up.

use super::said::Limits;
use super::said::OnExhaust;

/// Sums over a session, or over a session and all that were forked from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    execs: u64,
    jobs: u64,
    jobs_running: u64,
    children: u64,
    /// Time of commands that ended, each at most what it had been let have: how long the kernel takes to
    /// end a process is not what was granted.
    exec_ms: u64,
    exec_reserved_ms: u64,
    job_ms: u64,
    job_reserved_ms: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost_microusd: u64,
}

/// What an event adds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Start(Run),
    /// With how long it took; `None` when it never ran or nobody knows.
    End(Run, Option<u64>),
    Children(u64),
    Usage {
        input_tokens: u64,
        output_tokens: u64,
        cost_microusd: u64,
    },
}

/// A command or a job, and the time that it was let have, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    Exec(Option<u64>),
    Job(Option<u64>),
}

/// Which limits bind a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A session's own. Decided on the very state that the event before it left.
    Own,
    /// A session's with all that came from it. What others of them reported or ended meanwhile may have
    /// come between the decision and its record, so that only what is counted or reserved binds.
    Family,
}

/// One limit, and how far it was used, in its own unit, times in milliseconds.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) limit: u64,
    pub(super) used: u64,
    /// It has to have something left when a command starts; otherwise it must not be passed.
    pub(super) needs_rest: bool,
}

impl Totals {
    pub(super) fn add(&mut self, change: Change) {
        match change {
            Change::Start(Run::Exec(reserved)) => {
                self.execs += 1;
                add(&mut self.exec_reserved_ms, reserved.unwrap_or(0));
            }
            Change::Start(Run::Job(reserved)) => {
                self.jobs += 1;
                self.jobs_running += 1;
                add(&mut self.job_reserved_ms, reserved.unwrap_or(0));
            }
            Change::End(Run::Exec(reserved), took) => {
                take(&mut self.exec_reserved_ms, reserved.unwrap_or(0));
                add(&mut self.exec_ms, settled(reserved, took));
            }
            Change::End(Run::Job(reserved), took) => {
                take(&mut self.jobs_running, 1);
                take(&mut self.job_reserved_ms, reserved.unwrap_or(0));
                add(&mut self.job_ms, settled(reserved, took));
            }
            Change::Children(count) => add(&mut self.children, count),
            Change::Usage {
                input_tokens,
                output_tokens,
                cost_microusd,
            } => {
                add(&mut self.input_tokens, input_tokens);
                add(&mut self.output_tokens, output_tokens);
                add(&mut self.cost_microusd, cost_microusd);
            }
        }
    }

    /// Every limit that there is, beside what was used of it.
    pub(super) fn measures(&self, limits: &Limits, whose: Whose) -> Vec<Measure> {
        let own = whose == Whose::Own;
        let stop = limits.on_exhaust == OnExhaust::Stop;
        let at_most = |name, limit: Option<u64>, used| {
            limit.map(|limit| Measure {
                name,
                limit,
                used,
                needs_rest: false,
            })
        };
        let with_rest = |name, limit: Option<u64>, used| {
            let measure = at_most(name, limit.filter(|_| own), used);
            measure.map(|it| Measure {
                needs_rest: true,
                ..it
            })
        };
        let time = |name, limit_seconds: Option<u64>, ended: u64, reserved: u64| {
            let limit = limit_seconds.map(|it| it.saturating_mul(1_000));
            if stop {
                at_most(name, limit, ended.saturating_add(reserved))
            } else {
                with_rest(name, limit, ended)
            }
        };
        let (ended, reserved) = (self.exec_ms, self.exec_reserved_ms);
        let all = [
            at_most("max_execs", limits.max_execs, self.execs),
            at_most("max_jobs", limits.max_jobs, self.jobs),
            at_most(
                "max_concurrent_jobs",
                limits.max_concurrent_jobs,
                self.jobs_running,
            ),
            at_most(
                "max_children",
                limits.max_children.filter(|_| own),
                self.children,
            ),
            time("max_exec_seconds", limits.max_exec_seconds, ended, reserved),
            time(
                "max_compute_seconds",
                limits.max_compute_seconds,
                ended.saturating_add(self.job_ms),
                reserved.saturating_add(self.job_reserved_ms),
            ),
            with_rest(
                "max_input_tokens",
                limits.max_input_tokens,
                self.input_tokens,
            ),
            with_rest(
                "max_output_tokens",
                limits.max_output_tokens,
                self.output_tokens,
            ),
            with_rest(
                "max_cost_microusd",
                limits.max_cost_microusd,
                self.cost_microusd,
            ),
        ];
        all.into_iter().flatten().collect()
    }
}

fn settled(reserved: Option<u64>, took: Option<u64>) -> u64 {
    let took = took.unwrap_or(0);
    reserved.map_or(took, |reserved| took.min(reserved))
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

fn take(sum: &mut u64, less: u64) {
    *sum = sum.saturating_sub(less);
}
