//! Sessions as the ledger has them: what they are, what they used and what is in flight.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_verify::StreamVersion;
use serde::Deserialize;
use serde::Serialize;

use crate::checkpoints::Checkpoints;
use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::budget::BudgetRecord;
use crate::event::budget::UsageReported;
use crate::event::exec::EnforcementRecord;
use crate::event::exec::ExecStarted;
use crate::event::exec::is_zero;
use crate::event::fork::Origin;
use crate::event::is_intent;
use crate::event::jobs::JobStarted;
use crate::event::ledger::SessionErased;
use crate::event::ledger::SessionRedacted;
use crate::event::session::Capabilities;
use crate::event::session::PolicyRecord;
use crate::event::session::Recording;
use crate::event::session::RuntimeRecord;
use crate::event::session::SessionCreateStarted;
use crate::event::session::WorkspaceMode;
use crate::event::session::WorkspaceRecord;
use crate::ids::SandboxId;
use crate::ids::SessionId;
use crate::operations::Operation;
use crate::operations::OperationKind;
use crate::rewind::Rewind;

/// What stands for the agent's label once all that a session said is erased.
const ERASED_LABEL: &str = "(erased)";

/// The kinds of the events that give a session its place, which are known even when they are erased. A
/// fork begins with its creation, because its intent is its parent's.
const ASKED_FOR: [&str; 2] = ["session.create.started", "session.create"];

/// All sessions, in the order in which they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    order: Vec<SessionId>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// The version of its stream up to which this is the fold: what a decision is made on.
    pub version: StreamVersion,
    /// The label of who works in it.
    pub agent: String,
    /// The tenant that it belongs to.
    pub tenant: Option<String>,
    /// Where it is in its life.
    pub status: SessionStatus,
    /// Why it failed or is gone.
    pub status_reason: Option<String>,
    /// Bumped by everything that changes the session itself; running commands does not.
    pub revision: u64,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// When it ends by itself.
    pub expires_at: Option<DateTime<Utc>>,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// The engine of its sandbox.
    pub backend: String,
    /// Its workspace.
    pub workspace: WorkspaceRecord,
    /// Why the workspace is not what was asked for.
    pub workspace_note: Option<String>,
    /// Its machine.
    pub runtime: RuntimeRecord,
    /// Its compiled policy.
    pub policy: PolicyRecord,
    /// Whether outputs are kept.
    pub record: Recording,
    /// What its sandbox can do.
    pub capabilities: Capabilities,
    /// What the kernel held a trial command to, if its policy confines commands. Left out where it does not,
    /// so that older states keep their digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Box<EnforcementRecord>>,
    /// What it may use. Left out where there is no limit, so that older states keep their digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRecord>,
    /// What it used.
    pub usage: Usage,
    /// Intents without an outcome, in the ledger's order.
    pub in_flight: Vec<Operation>,
    /// What an ended session left was removed.
    pub cleaned_up: bool,
    /// The last operation that a crash interrupted, until another lifecycle operation completes.
    pub interrupted_op: Option<Operation>,
    /// What was done about it. Like everything below it is left out where there is none, so that older
    /// states keep their digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted_resolution: Option<String>,
    /// The name of its machine, where its sandbox's id does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Where it comes from, if it is a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The sessions that were forked from it, in order, the deleted ones too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<SessionId>,
    /// Its checkpoints.
    #[serde(default, skip_serializing_if = "Checkpoints::is_untouched")]
    pub checkpoints: Checkpoints,
    /// What it can go back to.
    #[serde(default, skip_serializing_if = "Rewind::is_untouched")]
    pub rewind: Rewind,
    /// All that it said is erased, and this is what is left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erased: bool,
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    /// Its sandbox is being made.
    Creating,
    /// It takes commands.
    Running,
    /// Its time ran out.
    Expired,
    /// Its sandbox ended without having been asked to.
    Gone,
    /// Its sandbox could not be made.
    Failed,
    /// It was deleted; the record and the ledger stay.
    Deleted,
}

/// What a session used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Commands that were started.
    pub execs: u64,
    /// Their summed time, in milliseconds.
    pub exec_ms: u64,
    /// Jobs that were started. Left out where there was none, so that older states keep their digests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jobs: u64,
    /// The summed time of the jobs that ended, in milliseconds. Left out like the number of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub job_ms: u64,
    /// Tokens that models read, as they were reported. Left out where there are none, so that older states
    /// keep their digests; so are the next two.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input_tokens: u64,
    /// Tokens that models wrote.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_tokens: u64,
    /// What they cost, in millionths of a US dollar.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_microusd: u64,
}

impl Usage {
    fn report(&mut self, used: &UsageReported) {
        self.input_tokens = self.input_tokens.saturating_add(used.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(used.output_tokens);
        self.cost_microusd = self.cost_microusd.saturating_add(used.cost_microusd);
    }
}

impl Session {
    /// The operation that holds the lifecycle slot, if one does.
    #[must_use]
    pub fn lifecycle(&self) -> Option<&Operation> {
        self.in_flight
            .iter()
            .find(|operation| operation.kind.holds_lifecycle())
    }

    /// Whether the session ended for good: nothing can run in it again.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(
            self.status,
            SessionStatus::Expired | SessionStatus::Deleted | SessionStatus::Failed
        )
    }

    fn new(id: SessionId, envelope: &Envelope, asked: &SessionCreateStarted) -> Self {
        Self {
            id,
            version: envelope.version,
            agent: asked.agent.clone(),
            tenant: asked.tenant.clone(),
            status: SessionStatus::Creating,
            status_reason: None,
            revision: 0,
            created_at: envelope.at,
            expires_at: asked.expires_at,
            sandbox_id: asked.sandbox_id,
            backend: asked.backend.clone(),
            workspace: asked.workspace.clone(),
            workspace_note: None,
            runtime: asked.runtime.clone(),
            policy: asked.policy.clone(),
            record: asked.record,
            capabilities: Capabilities::default(),
            enforcement: None,
            budget: asked.budget.clone(),
            usage: Usage::default(),
            in_flight: Vec::new(),
            cleaned_up: false,
            interrupted_op: None,
            interrupted_resolution: None,
            hostname: None,
            origin: None,
            children: Vec::new(),
            checkpoints: Checkpoints::default(),
            rewind: Rewind::default(),
            erased: false,
        }
    }

    /// What is left of a session when all that it said is erased: the same whether or not a fold ever
    /// saw what that was.
    fn remains(id: SessionId, envelope: &Envelope, erased: &SessionErased) -> Self {
        Self {
            id,
            version: envelope.version,
            agent: ERASED_LABEL.to_owned(),
            tenant: erased.tenant.clone(),
            status: erased.status,
            status_reason: None,
            revision: erased.revision,
            created_at: erased.created_at,
            expires_at: None,
            sandbox_id: erased.sandbox_id,
            backend: erased.backend.clone(),
            workspace: WorkspaceRecord {
                path: String::new(),
                mode: WorkspaceMode::Clone,
                git: None,
            },
            workspace_note: None,
            runtime: RuntimeRecord::default(),
            policy: PolicyRecord::default(),
            budget: None,
            record: Recording::default(),
            capabilities: Capabilities::default(),
            enforcement: None,
            usage: erased.usage,
            in_flight: Vec::new(),
            cleaned_up: true,
            interrupted_op: None,
            interrupted_resolution: None,
            hostname: None,
            origin: None,
            children: Vec::new(),
            checkpoints: Checkpoints::default(),
            rewind: Rewind::default(),
            erased: true,
        }
    }

    pub(crate) fn open(&mut self, envelope: &Envelope, kind: OperationKind) {
        let operation = Operation {
            seq: envelope.seq.get(),
            intent: envelope.id,
            kind,
            started_at: envelope.at,
        };
        self.in_flight.push(operation);
    }

    pub(crate) fn close(&mut self, envelope: &Envelope) -> Option<Operation> {
        let intent = envelope.cause?;
        let index = self
            .in_flight
            .iter()
            .position(|operation| operation.intent == intent)?;
        let operation = self.in_flight.remove(index);
        if operation.kind.holds_lifecycle() {
            self.interrupted_op = None;
            self.interrupted_resolution = None;
        }
        Some(operation)
    }

    pub(crate) fn save(&mut self) {
        self.revision += 1;
    }

    fn end(&mut self, status: SessionStatus, reason: Option<String>) {
        self.status = status;
        self.status_reason = reason;
        self.save();
    }

    fn start_exec(&mut self, envelope: &Envelope, started: &ExecStarted) {
        self.usage.execs += 1;
        self.rewind.something_new();
        let kind = OperationKind::Exec {
            exec_id: started.exec_id,
            command: started.command.clone(),
            timeout_ms: started.timeout_ms,
            stdin: started.stdin,
        };
        self.open(envelope, kind);
    }

    fn start_job(&mut self, envelope: &Envelope, started: &JobStarted) {
        self.usage.jobs += 1;
        self.rewind.something_new();
        let kind = OperationKind::Job {
            job: started.job,
            command: started.command.clone(),
            timeout_ms: started.timeout_ms,
        };
        self.open(envelope, kind);
    }

    /// Folds one event of its own stream in.
    pub fn apply(&mut self, envelope: &Envelope) {
        self.version = envelope.version;
        match &envelope.event {
            Event::SessionCreateStarted(_) => self.open(envelope, OperationKind::Create),
            Event::SessionCreated(created) => {
                self.close(envelope);
                self.capabilities = created.capabilities.clone();
                self.enforcement.clone_from(&created.enforcement);
                self.workspace_note.clone_from(&created.workspace_note);
                if let Some(forked) = &created.forked {
                    self.hostname.clone_from(&forked.origin.hostname);
                    self.origin = Some(forked.origin.clone());
                }
                self.status = SessionStatus::Running;
                self.save();
            }
            Event::SessionCreateFailed(failed) => {
                self.close(envelope);
                self.end(SessionStatus::Failed, Some(failed.reason.clone()));
            }
            Event::ExecStarted(started) => self.start_exec(envelope, started),
            Event::ExecCompleted(completed) => {
                self.close(envelope);
                self.usage.exec_ms += completed.duration_ms;
            }
            Event::JobStarted(started) => self.start_job(envelope, started),
            Event::JobStdinStarted(_) => self.open(envelope, OperationKind::JobStdin),
            Event::JobKillStarted(_) => self.open(envelope, OperationKind::JobKill),
            Event::FileWriteStarted(_) => self.open(envelope, OperationKind::FileWrite),
            Event::FileDeleteStarted(_) => self.open(envelope, OperationKind::FileDelete),
            Event::FileUploadStarted(_) => self.open(envelope, OperationKind::FileUpload),
            Event::GitCommitStarted(_) => self.open(envelope, OperationKind::GitCommit),
            Event::GitBranchStarted(_) => self.open(envelope, OperationKind::GitBranch),
            Event::ChangesStarted(_) => self.open(envelope, OperationKind::Changes),
            Event::ReplayStarted(_) => self.open(envelope, OperationKind::Replay),
            Event::SessionDeleteStarted(_) => self.open(envelope, OperationKind::Delete),
            Event::SessionDeleted(_) => {
                self.close(envelope);
                self.end(SessionStatus::Deleted, None);
            }
            Event::UsageReported(used) => self.usage.report(used),
            Event::SessionExpired(_) => self.end(SessionStatus::Expired, None),
            // A sandbox that was replaced may end whenever it likes.
            Event::SandboxGone(gone) if !self.ended() && gone.sandbox_id == self.sandbox_id => {
                self.end(SessionStatus::Gone, Some(gone.reason.clone()));
            }
            Event::SessionCleanedUp(_) => self.cleaned_up = true,
            Event::LifecycleInterrupted(interrupted) => {
                self.interrupted_op = self.close(envelope);
                self.interrupted_resolution
                    .clone_from(&interrupted.resolution);
            }
            Event::JobExited(exited) => {
                self.close(envelope);
                self.usage.job_ms += exited.duration_ms;
            }
            Event::ExecFailed(_)
            | Event::ReplayCompleted(_)
            | Event::JobFailed(_)
            | Event::JobStdinWritten(_)
            | Event::JobKilled(_)
            | Event::FileWritten(_)
            | Event::FileDeleted(_)
            | Event::FileUploaded(_)
            | Event::FileFailed(_)
            | Event::ChangesApplied(_)
            | Event::GitCommitted(_)
            | Event::GitBranched(_)
            | Event::GitFailed(_) => {
                self.close(envelope);
            }
            Event::SessionRedacted(redacted) => self.redacted(redacted),
            Event::Redacted => self.apply_redacted(envelope),
            _ => self.apply_snapshots(envelope),
        }
    }

    /// What erased events no longer say is gone from the state too, and what they added up to stays.
    /// A fold that saw them before and one that never did agree from here on.
    fn redacted(&mut self, redacted: &SessionRedacted) {
        self.usage.exec_ms = redacted.exec_ms;
        self.usage.job_ms = redacted.job_ms;
        self.rewind.erase(&redacted.seqs);
        if let Some(operation) = &mut self.interrupted_op {
            operation.erase(&redacted.seqs);
        }
    }

    /// An erased payload leaves its links: an outcome still closes its intent, and an erased intent is
    /// still one.
    fn apply_redacted(&mut self, envelope: &Envelope) {
        match envelope.kind.as_str() {
            "exec.started" => {
                self.usage.execs += 1;
                self.rewind.something_new();
            }
            "job.start" => {
                self.usage.jobs += 1;
                self.rewind.something_new();
            }
            _ => {}
        }
        if is_intent(&envelope.kind) {
            self.open(envelope, OperationKind::Erased);
        } else {
            self.close(envelope);
        }
    }
}

impl Sessions {
    /// The session with this id.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    /// All sessions, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.order.iter().filter_map(|id| self.by_id.get(id))
    }

    /// Folds one event in. Events of other streams change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        let Some(id) = SessionId::of_stream(&envelope.stream) else {
            return;
        };
        // An erased session keeps its place, so that what is left of it comes up there.
        if envelope.version == StreamVersion::FIRST && ASKED_FOR.contains(&envelope.kind.as_str()) {
            self.order.push(id);
        }
        match &envelope.event {
            Event::SessionCreateStarted(asked) if !self.by_id.contains_key(&id) => {
                self.by_id.insert(id, Session::new(id, envelope, asked));
            }
            Event::SessionErased(erased) => {
                let remains = Session::remains(id, envelope, erased);
                self.by_id.insert(id, remains);
                return;
            }
            Event::SessionCreated(created) if !self.by_id.contains_key(&id) => {
                if let Some(forked) = &created.forked {
                    let session = Session::new(id, envelope, &forked.asked);
                    self.by_id.insert(id, session);
                }
            }
            _ => {}
        }
        if let Some(session) = self.by_id.get_mut(&id) {
            session.apply(envelope);
        }
    }
}
