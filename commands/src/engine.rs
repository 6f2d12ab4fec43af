//! The engine: everything that commands share, and its start and end.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use fluxvm_eventstore::Actor;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::LedgerOptions;
use fluxvm_eventstore::OpenError;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Event;
use fluxvm_projections::HostStarted;
use fluxvm_projections::HostStopped;
use fluxvm_projections::SandboxGone;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Backend;
use fluxvm_vmm::ExitReason;
use fluxvm_vmm::Sandbox;
use tokio::sync::Notify;
use tokio::sync::watch;
use uuid::Uuid;

use crate::answer::ExecAnswer;
use crate::answer::ReplayAnswer;
use crate::book::Book;
use crate::book::Entry;
use crate::caller::Caller;
use crate::clock::Clock;
use crate::create;
use crate::delete;
use crate::error::CommandError;
use crate::exec;
use crate::exec::OutputMemory;
use crate::expiry;
use crate::idempotency;
use crate::idempotency::ClaimedKey;
use crate::idempotency::KeyAnswer;
use crate::idempotency::KeyClaim;
use crate::jobs::LiveJobs;
use crate::jobs::SpoolFolder;
use crate::jobs::StoreRoom;
use crate::recovery;
use crate::replay;
use crate::request::CreateSession;
use crate::request::Exec;
use crate::request::Replay;
use crate::request::StdinSource;
use crate::sandboxes::Sandboxes;
use crate::space;
use crate::space::Space;
use crate::turns::Turns;
use crate::uploads::Spool;
use crate::uploads::Uploading;

/// What an engine is made of.
pub struct EngineOptions {
    /// Where the ledger is and how it is opened.
    pub ledger: LedgerOptions,
    /// Where the parts of uploads wait.
    pub uploads_dir: PathBuf,
    /// What makes sandboxes.
    pub backend: Arc<dyn Backend>,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
    /// Where outputs of jobs are kept until their session ends.
    pub jobs_dir: PathBuf,
    /// The disk that the state is on.
    pub space: Arc<dyn Space>,
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The ledger could not be opened, or does not verify.
    #[error("the ledger cannot be opened: {0}")]
    Ledger(#[from] OpenError),
    /// The ledger holds an event that this version does not understand.
    #[error("the ledger cannot be understood: {0}")]
    NotUnderstood(String),
    /// What runs on this machine could not be looked at.
    #[error("the sandboxes on this machine cannot be listed: {0}")]
    List(std::io::Error),
    /// What was captured on this machine could not be looked at.
    #[error("the snapshots on this machine cannot be listed: {0}")]
    Snapshots(std::io::Error),
    /// Recovery could not record what it found.
    #[error("recovery failed: {0}")]
    Recovery(#[from] CommandError),
}

/// Commands and queries over one ledger and one sandbox engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

/// What all commands share.
pub(crate) struct Inner {
    pub(crate) book: Book,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) space: Arc<dyn Space>,
    /// A sandbox lives that the watcher of the disk may not know of.
    pub(crate) sandbox_made: Notify,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) turns: Turns,
    pub(crate) output_memory: OutputMemory,
    pub(crate) spools: SpoolFolder,
    pub(crate) live_jobs: LiveJobs,
    pub(crate) store_room: StoreRoom,
    pub(crate) uploading: Uploading,
    /// How many events earlier daemons had recorded when this one started.
    pub(crate) inherited: Position,
    /// A session runs that the sweeper may not know of.
    pub(crate) session_made: Notify,
    stopping: watch::Sender<bool>,
}

impl Engine {
    /// Opens the ledger, folds it, and brings what really exists into line with it.
    ///
    /// # Errors
    ///
    /// [`StartError`] when the ledger cannot be opened, verified or understood, or when recovery cannot
    /// record what it found. Nothing is changed on the machine before the ledger was understood.
    pub async fn start(options: EngineOptions) -> Result<Self, StartError> {
        let ledger = options.ledger;
        let book = tokio::task::spawn_blocking(move || Book::open(ledger))
            .await
            .map_err(|error| CommandError::Internal(error.to_string()))??;
        if let Some(reason) = book.broken().borrow().clone() {
            return Err(StartError::NotUnderstood(reason));
        }
        let inner = Arc::new(Inner {
            inherited: book.ledger().head().position,
            book,
            backend: options.backend,
            clock: options.clock,
            space: options.space,
            sandbox_made: Notify::new(),
            sandboxes: Sandboxes::default(),
            turns: Turns::default(),
            output_memory: OutputMemory::default(),
            spools: SpoolFolder::new(options.jobs_dir),
            live_jobs: LiveJobs::default(),
            store_room: StoreRoom::default(),
            uploading: Uploading::new(Spool::new(options.uploads_dir)),
            session_made: Notify::new(),
            stopping: watch::Sender::new(false),
        });
        let started = Event::HostStarted(HostStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: inner.backend.name().to_owned(),
        });
        inner.append_host(started).await?;
        recovery::recover(&inner).await?;
        expiry::spawn_sweeper(&inner);
        space::spawn_watcher(&inner);
        Ok(Self { inner })
    }

    /// Records the end and closes the ledger. Sandboxes and what runs in them go on; the next start takes
    /// them up again.
    pub async fn shutdown(&self, reason: &str) {
        self.inner.stopping.send_replace(true);
        let stopped = Event::HostStopped(HostStopped {
            reason: reason.to_owned(),
        });
        if let Err(error) = self.inner.append_host(stopped).await {
            tracing::warn!(%error, "the end of this daemon could not be recorded");
        }
        self.inner.book.ledger().close().await;
    }

    /// Becomes `Some` when the ledger can no longer be written or understood. The daemon must end then:
    /// going on would mean acting without a record.
    #[must_use]
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        let (sender, receiver) = watch::channel(None);
        for mut source in [
            self.inner.book.ledger().poisoned(),
            self.inner.book.broken(),
        ] {
            let sender = sender.clone();
            tokio::spawn(async move {
                if let Ok(reason) = source.wait_for(Option::is_some).await {
                    sender.send_replace(reason.clone());
                }
            });
        }
        receiver
    }

    /// Makes a session and answers when its sandbox does.
    ///
    /// # Errors
    ///
    /// `Invalid` and `Unenforceable` before anything happened, `CreateFailed` and `WorkspaceNotReady` after
    /// everything of it was removed again, `Ledger` when nothing could be recorded.
    pub async fn create_session(
        &self,
        caller: &Caller,
        request: CreateSession,
    ) -> Result<Session, CommandError> {
        self.run(caller, move |inner, caller| async move {
            create::create(&inner, &caller, request).await
        })
        .await
    }

    /// Runs a command in a session and answers when it ended. It reads what `stdin` gives, and nothing
    /// without.
    ///
    /// # Errors
    ///
    /// `Invalid` for a bad field, `NotFound`, `NotRunning`, `Busy`, `TooMany` before anything ran,
    /// `ExecFailed` when it could not start or its end is not known, `Ledger` and `Blob` when it could not
    /// be recorded.
    pub async fn exec(
        &self,
        caller: &Caller,
        id: SessionId,
        request: Exec,
        stdin: Option<StdinSource>,
    ) -> Result<ExecAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            exec::exec(&inner, &caller, id, request, stdin).await
        })
        .await
    }

    /// Runs the recorded commands of one session again in another one.
    ///
    /// # Errors
    ///
    /// As [`Self::exec`], for the plan and for the target as a whole. What happens to a single command is
    /// in its step.
    pub async fn replay(
        &self,
        caller: &Caller,
        source: SessionId,
        request: Replay,
    ) -> Result<ReplayAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            replay::replay(&inner, &caller, source, request).await
        })
        .await
    }

    /// Deletes a session and its sandbox. Its record and its ledger stay. Deleting it again is fine.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Busy` while it is being made or deleted, `RevisionDiffers`, `RemoveFailed` when
    /// something of the sandbox is left, `Ledger`.
    pub async fn delete_session(
        &self,
        caller: &Caller,
        id: SessionId,
        if_match: Option<u64>,
    ) -> Result<(), CommandError> {
        self.run(caller, move |inner, caller| async move {
            delete::delete(&inner, &caller, id, if_match).await
        })
        .await
    }

    /// Claims an idempotency key, or answers what was answered before. The name is a digest of the
    /// caller's scope, the route and the key.
    ///
    /// # Errors
    ///
    /// `IdempotencyMismatch` for another body, `IdempotencyRunning` while the first request is unanswered.
    pub async fn claim_key(
        &self,
        caller: &Caller,
        name: &str,
        body_blake3: &str,
    ) -> Result<KeyClaim, CommandError> {
        idempotency::claim(&self.inner, caller, name, body_blake3).await
    }

    /// Stores the answer that every retry gets, before anyone gets it.
    ///
    /// # Errors
    ///
    /// `Internal` when the answer is larger than what is stored, `Blob` and `Ledger`.
    pub async fn answer_key(
        &self,
        caller: &Caller,
        key: ClaimedKey,
        answer: KeyAnswer,
    ) -> Result<(), CommandError> {
        idempotency::answer(&self.inner, caller, key, answer).await
    }

    /// Frees a key whose request failed.
    ///
    /// # Errors
    ///
    /// `Ledger`.
    pub async fn release_key(&self, caller: &Caller, key: ClaimedKey) -> Result<(), CommandError> {
        idempotency::release(&self.inner, caller, key).await
    }

    /// Runs a command as a task of its own, so that a caller that stops waiting does not stop it between
    /// its intent and its outcome.
    pub(crate) async fn run<T, F>(
        &self,
        caller: &Caller,
        command: impl FnOnce(Arc<Inner>, Caller) -> F,
    ) -> Result<T, CommandError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CommandError>> + Send + 'static,
    {
        if *self.inner.stopping.borrow() {
            return Err(CommandError::Stopping);
        }
        let task = tokio::spawn(command(Arc::clone(&self.inner), caller.clone()));
        task.await
            .unwrap_or_else(|error| Err(CommandError::Internal(error.to_string())))
    }
}

impl Inner {
    /// Whether the engine is ending.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Appends to the host's own stream.
    pub(crate) async fn append_host(&self, event: Event) -> Result<(), CommandError> {
        let caller = system("host")?;
        let stream =
            StreamName::parse("host").map_err(|error| CommandError::Internal(error.to_string()))?;
        self.book
            .append(&caller, stream, ExpectedVersion::Any, Entry::new(event))
            .await?;
        Ok(())
    }

    /// Records the end of a sandbox that nobody ended, when it comes.
    pub(crate) fn watch_exit(self: &Arc<Self>, id: SessionId, sandbox: Arc<dyn Sandbox>) {
        self.session_made.notify_one();
        self.sandbox_made.notify_one();
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let reason = sandbox.exited().await;
            // Whoever ends a sandbox takes it out first, so that it is not ours to report.
            if inner.sandboxes.take_this(id, sandbox.id()).is_none() {
                return;
            }
            let sandbox_id = SandboxId(sandbox.id().uuid());
            if let Err(error) = inner.sandbox_gone(id, sandbox_id, describe(reason)).await {
                tracing::error!(session = %id, %error, "the end of a sandbox was not recorded");
            }
            if let Err(error) = sandbox.destroy().await {
                tracing::warn!(session = %id, %error, "a sandbox that ended was not removed");
            }
        });
    }

    /// Records that a session's sandbox ended without having been asked to.
    pub(crate) async fn sandbox_gone(
        &self,
        id: SessionId,
        sandbox_id: SandboxId,
        reason: String,
    ) -> Result<(), CommandError> {
        let caller = system("sandboxes")?;
        let gone = Entry::new(Event::SandboxGone(SandboxGone { sandbox_id, reason }));
        self.book
            .append(&caller, id.stream(), ExpectedVersion::Exists, gone)
            .await?;
        Ok(())
    }
}

/// The daemon itself, in one of its roles.
pub(crate) fn system(role: &str) -> Result<Caller, CommandError> {
    let actor = Actor::parse(&format!("system:{role}"))
        .map_err(|error| CommandError::Internal(error.to_string()))?;
    Ok(Caller {
        actor,
        tenant: None,
        request: CorrelationId::new(Uuid::now_v7()),
    })
}

fn describe(reason: ExitReason) -> String {
    match reason {
        ExitReason::Exited { code } => format!("the guest daemon exited with code {code}"),
        ExitReason::Killed { signal: 9 } => {
            "the guest daemon was killed (signal 9); a memory limit does that".to_owned()
        }
        ExitReason::Killed { signal } => format!("signal {signal} ended the guest daemon"),
        ExitReason::Unknown => "the guest daemon ended".to_owned(),
    }
}
