//! The jobs of each session, as its list shows them. They go when what the session left is removed.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_verify::EventId;
use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::exec::EnforcementRecord;
use crate::event::exec::OutputRecord;
use crate::event::jobs::JobEnd;
use crate::event::jobs::JobExited;
use crate::event::jobs::JobFailed;
use crate::event::jobs::JobStarted;
use crate::ids::JobId;
use crate::ids::SessionId;

/// Jobs of one session that are listed. When one more starts, the oldest that ended is forgotten here;
/// the ledger keeps it.
pub const JOBS_LISTED_MAX: usize = 1_000;

/// All jobs that are listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Jobs {
    by_session: BTreeMap<SessionId, Vec<Job>>,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// The ledger number of its intent.
    pub seq: u64,
    /// The event id of its intent.
    pub intent: EventId,
    /// The shell line.
    pub command: String,
    /// Its standard input can be written to.
    pub stdin: bool,
    /// Its standard input was closed.
    pub stdin_closed: bool,
    /// Bytes that its standard input took, as far as outcomes say it.
    pub stdin_bytes: u64,
    /// How long nobody may be writing to it before the job is ended, in milliseconds.
    pub stdin_lost_ms: Option<u64>,
    /// It was ended because its standard input broke off.
    pub stdin_cut: bool,
    /// Its time limit, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Bytes of each output stream that are kept.
    pub max_output_bytes: u64,
    /// Where it is in its life.
    pub state: JobState,
    /// Its exit code, once it has one.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// When it was asked for.
    pub started_at: DateTime<Utc>,
    /// When it ended, by the guest's clock; when its end was recorded where the guest did not say it.
    pub ended_at: Option<DateTime<Utc>>,
    /// The signals that were asked for while it ran, by number.
    pub signals: Vec<i32>,
    /// What it wrote to standard output, once it ended.
    pub stdout: Option<OutputRecord>,
    /// What it wrote to standard error, once it ended.
    pub stderr: Option<OutputRecord>,
    /// Why it has no exit code: a stable code and a sentence.
    pub failure: Option<(String, String)>,
    /// What the kernel held it to, once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Box<EnforcementRecord>>,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It ended by itself.
    Exited,
    /// It was ended by a signal that was asked for.
    Killed,
    /// It was ended by another signal.
    Signaled,
    /// Its time ran out.
    TimedOut,
    /// It never ran, or how it ended is not known.
    Failed,
}

impl From<JobEnd> for JobState {
    fn from(end: JobEnd) -> Self {
        match end {
            JobEnd::Exited => Self::Exited,
            JobEnd::Killed => Self::Killed,
            JobEnd::Signaled => Self::Signaled,
            JobEnd::TimedOut => Self::TimedOut,
        }
    }
}

impl JobState {
    /// The state as the API spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Killed => "killed",
            Self::Signaled => "signaled",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}

impl Jobs {
    /// Whether there is none, as before there ever was one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// The jobs of a session, oldest first.
    #[must_use]
    pub fn of(&self, session: SessionId) -> &[Job] {
        self.by_session.get(&session).map_or(&[], Vec::as_slice)
    }

    /// One job of a session.
    #[must_use]
    pub fn get(&self, session: SessionId, id: JobId) -> Option<&Job> {
        self.of(session).iter().find(|job| job.id == id)
    }

    /// Folds one event in. Events of other streams change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        let Some(session) = SessionId::of_stream(&envelope.stream) else {
            return;
        };
        match &envelope.event {
            Event::JobStarted(started) => self.start(session, envelope, started),
            Event::JobExited(exited) => self.change(session, exited.job, |job| {
                job.exited(exited, envelope.at);
            }),
            Event::JobFailed(failed) => self.change(session, failed.job, |job| {
                job.failed(failed, envelope.at);
            }),
            Event::JobStdinWritten(stdin) => self.change(session, stdin.job, |job| {
                job.stdin_closed |= stdin.closed;
                let counted = job.stdin_bytes.saturating_add(stdin.written);
                job.stdin_bytes = stdin.taken.unwrap_or(counted);
            }),
            Event::JobKillStarted(kill) => self.change(session, kill.job, |job| {
                if job.state == JobState::Running && !job.signals.contains(&kill.number) {
                    job.signals.push(kill.number);
                }
            }),
            Event::Redacted => self.apply_redacted(session, envelope),
            Event::SessionRedacted(redacted) => {
                if let Some(jobs) = self.by_session.get_mut(&session) {
                    jobs.retain(|job| !redacted.seqs.contains(&job.seq));
                }
                self.drop_if_empty(session);
            }
            // The last is what is left where the others are erased.
            Event::SessionDeleted(_) | Event::SessionCleanedUp(_) | Event::SessionErased(_) => {
                self.by_session.remove(&session);
            }
            _ => {}
        }
    }

    fn start(&mut self, session: SessionId, envelope: &Envelope, started: &JobStarted) {
        let jobs = self.by_session.entry(session).or_default();
        if jobs.len() >= JOBS_LISTED_MAX
            && let Some(oldest) = jobs.iter().position(|job| job.state != JobState::Running)
        {
            jobs.remove(oldest);
        }
        jobs.push(Job::new(envelope, started));
    }

    /// An erased job takes its place in the list until the event that says so takes it out, so that a
    /// rebuilt fold forgets the same others as one that saw it.
    fn apply_redacted(&mut self, session: SessionId, envelope: &Envelope) {
        if envelope.kind == "job.start" {
            let erased = JobStarted {
                job: JobId(Uuid::nil()),
                command: String::new(),
                stdin: false,
                timeout_ms: None,
                max_output_bytes: 0,
                stdin_lost_ms: None,
            };
            self.start(session, envelope, &erased);
            return;
        }
        let jobs = self.by_session.get_mut(&session).into_iter().flatten();
        if let Some(job) = jobs.filter(|job| Some(job.intent) == envelope.cause).last() {
            job.state = JobState::Exited;
            job.end(envelope.at);
        }
    }

    fn change(&mut self, session: SessionId, id: JobId, change: impl FnOnce(&mut Job)) {
        let jobs = self.by_session.get_mut(&session);
        if let Some(job) = jobs.and_then(|jobs| jobs.iter_mut().find(|job| job.id == id)) {
            change(job);
        }
    }

    /// A rebuilt fold that never saw a job has no entry for its session either.
    fn drop_if_empty(&mut self, session: SessionId) {
        if self.of(session).is_empty() {
            self.by_session.remove(&session);
        }
    }
}

impl Job {
    fn new(envelope: &Envelope, started: &JobStarted) -> Self {
        Self {
            id: started.job,
            seq: envelope.seq.get(),
            intent: envelope.id,
            command: started.command.clone(),
            stdin: started.stdin,
            stdin_closed: false,
            stdin_bytes: 0,
            stdin_lost_ms: started.stdin_lost_ms,
            stdin_cut: false,
            timeout_ms: started.timeout_ms,
            max_output_bytes: started.max_output_bytes,
            state: JobState::Running,
            exit_code: None,
            signal: None,
            started_at: envelope.at,
            ended_at: None,
            signals: Vec::new(),
            stdout: None,
            stderr: None,
            failure: None,
            enforcement: None,
        }
    }

    fn exited(&mut self, exited: &JobExited, at: DateTime<Utc>) {
        self.state = exited.state.into();
        self.exit_code = Some(exited.exit_code);
        self.signal = exited.signal;
        self.stdout = Some(exited.stdout.clone());
        self.stderr = Some(exited.stderr.clone());
        self.stdin_cut = exited.stdin_cut;
        self.enforcement.clone_from(&exited.enforcement);
        self.end(
            self.told_end(exited.ended_unix_ms)
                .map_or(at, |told| told.min(at)),
        );
    }

    /// The end as the guest's clock had it. That clock may be off: nothing ends before it starts.
    fn told_end(&self, unix_ms: Option<u64>) -> Option<DateTime<Utc>> {
        let unix_ms = i64::try_from(unix_ms?).ok()?;
        let told = DateTime::from_timestamp_millis(unix_ms)?;
        Some(told.max(self.started_at))
    }

    fn failed(&mut self, failed: &JobFailed, at: DateTime<Utc>) {
        self.state = JobState::Failed;
        self.failure = Some((failed.code.clone(), failed.reason.clone()));
        self.stdout.clone_from(&failed.stdout);
        self.stderr.clone_from(&failed.stderr);
        self.end(at);
    }

    fn end(&mut self, at: DateTime<Utc>) {
        self.ended_at = Some(at);
        self.signals = Vec::new();
        self.stdin_closed = true;
    }
}

#[cfg(test)]
mod tests {
    use fluxvm_verify::CorrelationId;
    use fluxvm_verify::GlobalSeq;
    use fluxvm_verify::StreamVersion;

    use super::*;
    use crate::event::jobs::JobKillStarted;
    use crate::event::ledger::SessionRedacted;

    const SESSION: SessionId = SessionId(Uuid::from_u128(1));

    fn envelope(seq: u64, kind: &str, cause: Option<u64>, event: Event) -> Envelope {
        let id = |seq: u64| EventId::new(Uuid::from_u128(u128::from(seq)));
        Envelope {
            seq: GlobalSeq::new(seq).unwrap(),
            stream: SESSION.stream(),
            version: StreamVersion::new(seq).unwrap(),
            id: id(seq),
            cause: cause.map(id),
            request: CorrelationId::new(Uuid::nil()),
            kind: kind.to_owned(),
            at: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
            event,
        }
    }

    fn job(seq: u64) -> JobId {
        JobId(Uuid::from_u128(u128::from(seq)))
    }

    fn started(seq: u64) -> Envelope {
        let started = JobStarted {
            job: job(seq),
            command: "make".into(),
            stdin: true,
            timeout_ms: None,
            max_output_bytes: 1,
            stdin_lost_ms: None,
        };
        envelope(seq, "job.start", None, Event::JobStarted(started))
    }

    fn exited(seq: u64, of: u64) -> Envelope {
        let exited = JobExited {
            op: of,
            job: job(of),
            command: "make".into(),
            state: JobEnd::Killed,
            exit_code: 143,
            signal: Some(15),
            duration_ms: 1,
            ended_unix_ms: None,
            stdin_cut: false,
            stdout: OutputRecord::default(),
            stderr: OutputRecord::default(),
            gap_bytes: 0,
            survivors: None,
            readopted: false,
            enforcement: None,
        };
        envelope(seq, "job.exit", Some(of), Event::JobExited(exited))
    }

    fn folded(story: &[Envelope]) -> Jobs {
        let mut jobs = Jobs::default();
        story.iter().for_each(|envelope| jobs.apply(envelope));
        jobs
    }

    #[test]
    fn a_job_runs_until_its_outcome_and_remembers_what_it_was_sent_until_then() {
        let kill = Event::JobKillStarted(JobKillStarted {
            job: job(1),
            signal: "TERM".into(),
            number: 15,
        });
        let mut story = vec![started(1), envelope(2, "job.kill.started", None, kill)];
        let running = folded(&story);
        let found = running.get(SESSION, job(1)).unwrap();
        assert_eq!(
            (found.state, &found.signals[..]),
            (JobState::Running, &[15][..])
        );
        story.push(exited(3, 1));
        let ended = folded(&story);
        let found = ended.get(SESSION, job(1)).unwrap();
        assert_eq!(
            (found.state, found.exit_code),
            (JobState::Killed, Some(143))
        );
        assert!(found.signals.is_empty() && found.stdin_closed);
    }

    #[test]
    fn a_job_ended_when_the_guest_says_so_and_not_when_that_became_known() {
        let ended_at = |told: Option<i64>| {
            let mut outcome = exited(3, 1);
            outcome.at += chrono::TimeDelta::seconds(60);
            if let Event::JobExited(exited) = &mut outcome.event {
                exited.ended_unix_ms = told.map(|ms| u64::try_from(ms).unwrap());
            }
            let jobs = folded(&[started(1), outcome]);
            jobs.get(SESSION, job(1))
                .unwrap()
                .ended_at
                .unwrap()
                .timestamp_millis()
        };
        let start_ms = 1_800_000_000_000;
        assert_eq!(ended_at(Some(start_ms + 1_500)), start_ms + 1_500);
        assert_eq!(ended_at(None), start_ms + 60_000, "it is not known");
        assert_eq!(ended_at(Some(0)), start_ms, "not before its start");
        assert_eq!(
            ended_at(Some(start_ms * 2)),
            start_ms + 60_000,
            "nor after its record"
        );
    }

    #[test]
    fn a_fold_that_never_saw_an_erased_job_agrees_with_one_that_did() {
        let redacted = Event::SessionRedacted(SessionRedacted {
            seqs: vec![1, 2],
            exec_ms: 0,
            job_ms: 0,
        });
        let max = JOBS_LISTED_MAX as u64;
        let mut live = vec![started(1), exited(2, 1)];
        for nth in 0..max {
            live.extend([started(3 + 2 * nth), exited(4 + 2 * nth, 3 + 2 * nth)]);
        }
        live.push(envelope(3 + 2 * max, "session.redacted", None, redacted));
        for keep in [live.len(), 20] {
            let mut live = live.clone();
            live.drain(keep - 1..live.len() - 1);
            let mut again = live.clone();
            for erased in again.iter_mut().take(2) {
                erased.event = Event::Redacted;
            }
            assert_eq!(folded(&again), folded(&live));
            assert_eq!(folded(&live).get(SESSION, job(1)), None);
        }
    }

    #[test]
    fn the_oldest_that_ended_is_forgotten_and_nothing_that_runs() {
        let mut story = vec![started(1), started(2), exited(3, 2)];
        let max = JOBS_LISTED_MAX as u64;
        story.extend((4..4 + max - 1).map(started));
        let jobs = folded(&story);
        assert_eq!(jobs.of(SESSION).len(), JOBS_LISTED_MAX);
        assert!(jobs.get(SESSION, job(1)).is_some() && jobs.get(SESSION, job(2)).is_none());
    }
}
