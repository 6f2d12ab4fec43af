//! A ledger of a million events: what it costs to open it again.
//!
//! Its events are those that a daemon would write: sessions of fifty events each, made, used for
//! twenty-four commands of a kilobyte, and left running. Its state is folded as the daemon folds it.

use std::fs;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use fluxvm_eventstore::Append;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::Environment;
use fluxvm_eventstore::EventKind;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::Follower;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::NewEvent;
use fluxvm_eventstore::SnapshotOptions;
use fluxvm_eventstore::StreamAppend;
use fluxvm_projections::Capabilities;
use fluxvm_projections::Event;
use fluxvm_projections::ExecCompleted;
use fluxvm_projections::ExecId;
use fluxvm_projections::ExecStarted;
use fluxvm_projections::FOLDS_VERSION;
use fluxvm_projections::OutputRecord;
use fluxvm_projections::PolicyRecord;
use fluxvm_projections::Recording;
use fluxvm_projections::RuntimeRecord;
use fluxvm_projections::SandboxId;
use fluxvm_projections::SessionCreateStarted;
use fluxvm_projections::SessionCreated;
use fluxvm_projections::SessionId;
use fluxvm_projections::WorkspaceMode;
use fluxvm_projections::WorkspaceRecord;
use fluxvm_projections::World;
use fluxvm_verify::EventId;
use fluxvm_verify::RecordedEvent;
use nix::fcntl::PosixFadviseAdvice;
use nix::fcntl::posix_fadvise;
use nix::sys::resource::UsageWho;
use nix::sys::resource::getrusage;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::Scale;
use crate::figures::Figure;
use crate::ledger::COMMAND_BYTES;
use crate::ledger::options;

/// How many events the ledger has.
const EVENTS: usize = 1_000_000;
/// How many commands a session runs: with its making and two events for each, fifty events.
const COMMANDS: usize = 24;
const EVENTS_OF_SESSION: usize = 2 + 2 * COMMANDS;
/// Sessions that are written at the same time.
const WRITERS: usize = 16;

pub(crate) fn measure(scale: Scale) -> Vec<Figure> {
    let sessions = scale.of(EVENTS / EVENTS_OF_SESSION);
    let events = sessions * EVENTS_OF_SESSION;
    eprintln!("  a ledger of {events} events");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = Runtime::new().expect("a runtime");
    let name = |what: &str| format!("{events} events: {what}");
    let mut figures = Vec::new();

    let (written, closed) = runtime.block_on(write(folder.path(), sessions));
    let rate = |what: &str, took| Figure::rate(name(what), events, took, "events");
    figures.push(rate("written in appends of 25", written));
    figures.push(Figure::latency(name("an orderly end"), vec![closed]));

    eprintln!("  starts from a snapshot");
    let cold = (0..3).map(|_| start(folder.path(), events, true).0);
    let cold: Vec<Duration> = cold.collect();
    let fastest = cold.iter().min().copied().unwrap_or_default();
    let start_target = "≤ 1 s";
    figures.push(Figure::latency(name("cold start from a snapshot"), cold).target(start_target));
    figures.push(rate("rebuilt with a snapshot", fastest));

    eprintln!("  a start from zero");
    let (whole, cpu) = start(folder.path(), events, false);
    figures.push(rate("rebuilt without one, verified", whole));
    let each_core = rate("rebuilt without one, a core's time", cpu);
    figures.push(each_core.target("≥ 150000 events/s a core"));
    figures
}

/// The time that all threads of this process have had.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("one's own usage");
    let [user, system] = [usage.user_time(), usage.system_time()].map(|time| {
        let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
        Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    });
    user + system
}

/// Opens the ledger with all of its state, nothing of it being in memory before: how long that takes,
/// and how much time all threads have of it.
fn start(folder: &Path, events: usize, from_snapshot: bool) -> (Duration, Duration) {
    evict(folder);
    let (began, before) = (Instant::now(), cpu_time());
    let (ledger, world) = open(folder, from_snapshot);
    let took = (began.elapsed(), cpu_time().saturating_sub(before));
    let position = usize::try_from(ledger.head().position.get()).expect("a count");
    let restored = usize::try_from(ledger.restored().get()).expect("a count");
    assert_eq!(position, events);
    assert_eq!(restored, if from_snapshot { events } else { 0 });
    let world = world.lock().expect("nobody else folds");
    assert_eq!(world.position, ledger.head().position);
    assert_eq!(world.sessions.iter().count(), events / EVENTS_OF_SESSION);
    took
}

/// Has the kernel forget the files below `dir`, as far as it heeds that.
fn evict(dir: &Path) {
    for entry in fs::read_dir(dir).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            evict(&path);
        } else {
            let file = File::open(path).expect("a file");
            file.sync_all().expect("a disk that takes it");
            let dont_need = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            posix_fadvise(file.as_fd(), 0, 0, dont_need).expect("advice is taken");
        }
    }
}

fn open(folder: &Path, from_snapshot: bool) -> (Ledger, Arc<Mutex<World>>) {
    let mut options = options(folder);
    options.cache_bytes = 128 * 1024 * 1024;
    // With a full start nothing would be kept, and the next one is to find what the last one left.
    options.snapshots = Some(SnapshotOptions {
        every_events: u64::MAX,
        checks_behind: false,
    });
    let fold = Fold::default();
    let world = Arc::clone(&fold.world);
    let follower: Box<dyn Follower> = match from_snapshot {
        true => Box::new(fold),
        false => Box::new(move |events: &[Arc<RecordedEvent>]| follow(&fold.world, events)),
    };
    let opened = Ledger::open_following(options, follower, Environment::default());
    (opened.expect("the ledger"), world)
}

/// Folds as the daemon does.
#[derive(Default)]
struct Fold {
    world: Arc<Mutex<World>>,
}

fn follow(world: &Mutex<World>, events: &[Arc<RecordedEvent>]) {
    let mut world = world.lock().expect("nobody else folds");
    for event in events {
        world.apply(event).expect("an event that is known");
    }
}

impl Follower for Fold {
    fn follow(&mut self, events: &[Arc<RecordedEvent>]) {
        follow(&self.world, events);
    }

    fn version(&self) -> Option<[u8; 32]> {
        Some(FOLDS_VERSION)
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.world
            .lock()
            .expect("nobody else folds")
            .to_snapshot()
            .ok()
    }

    fn restore(&mut self, saved: &[u8]) -> bool {
        let restored = World::from_snapshot(saved);
        restored
            .map(|world| *self.world.lock().expect("nobody else folds") = world)
            .is_ok()
    }

    fn reset(&mut self) {
        *self.world.lock().expect("nobody else folds") = World::default();
    }

    fn fresh(&self) -> Option<Box<dyn Follower>> {
        Some(Box::new(Fold::default()))
    }
}

/// Writes the sessions and closes the ledger; how long each took.
async fn write(folder: &Path, sessions: usize) -> (Duration, Duration) {
    let (ledger, _) = open(folder, true);
    let began = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let ledger = ledger.clone();
            let share = sessions / WRITERS + usize::from(writer < sessions % WRITERS);
            tokio::spawn(async move {
                for _ in 0..share {
                    session(&ledger).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    let written = began.elapsed();
    let began = Instant::now();
    ledger.close().await;
    drop(ledger);
    (written, began.elapsed())
}

/// Writes one session: what it asks for, and then what came of it.
async fn session(ledger: &Ledger) {
    let id = SessionId(Uuid::new_v4());
    let sandbox = SandboxId(Uuid::new_v4());
    let execs: Vec<ExecId> = (0..COMMANDS).map(|_| ExecId(Uuid::new_v4())).collect();
    let command = "x".repeat(COMMAND_BYTES);
    let asked = std::iter::once(asked(sandbox)).chain(execs.iter().map(|exec| {
        Event::ExecStarted(ExecStarted {
            exec_id: *exec,
            command: command.clone(),
            timeout_ms: 30_000,
            stdin: false,
        })
    }));
    let asked = append(id, asked.map(|event| (event, None)).collect());
    let intents = ledger.append(asked).await.expect("an append");
    let made = std::iter::once(made(sandbox)).chain(execs.iter().map(|exec| done(*exec, &command)));
    let causes = intents.iter().map(|intent| Some(intent.header.event_id));
    let outcomes = append(id, made.zip(causes).collect());
    ledger.append(outcomes).await.expect("an append");
}

fn asked(sandbox_id: SandboxId) -> Event {
    Event::SessionCreateStarted(SessionCreateStarted {
        agent: "bench".into(),
        tenant: None,
        sandbox_id,
        backend: "procbox".into(),
        workspace: WorkspaceRecord {
            path: "/workspace".into(),
            mode: WorkspaceMode::Clone,
            git: None,
        },
        runtime: RuntimeRecord::default(),
        policy: PolicyRecord::default(),
        record: Recording::Full,
        expires_at: None,
        budget: None,
    })
}

fn made(sandbox_id: SandboxId) -> Event {
    Event::SessionCreated(SessionCreated {
        op: 1,
        agent: "bench".into(),
        sandbox_id,
        backend: "procbox".into(),
        capabilities: Capabilities::default(),
        enforcement: None,
        workspace_note: None,
        duration_ms: 7,
        forked: None,
    })
}

fn done(exec_id: ExecId, command: &str) -> Event {
    Event::ExecCompleted(ExecCompleted {
        op: 1,
        exec_id,
        command: command.to_owned(),
        exit_code: 0,
        signal: None,
        timed_out: false,
        duration_ms: 12,
        timeout_ms: 30_000,
        stdin_bytes: None,
        stdin_cut: false,
        stdout: OutputRecord::default(),
        stderr: OutputRecord::default(),
        gap_bytes: 0,
        survivors: None,
        readopted: false,
        enforcement: None,
    })
}

fn append(id: SessionId, events: Vec<(Event, Option<EventId>)>) -> Append {
    let events = events.into_iter().map(|(event, cause)| {
        let kind = event.kind().expect("a kind");
        let kind = EventKind::parse(kind).expect("a kind");
        let payload = event.payload().expect("a payload");
        let event = NewEvent::new(kind, event.schema(), &payload).expect("a payload");
        match cause {
            Some(cause) => event.caused_by(cause),
            None => event,
        }
    });
    Append {
        command_id: CommandId::new(Uuid::new_v4()),
        correlation_id: CorrelationId::new(Uuid::new_v4()),
        actor: fluxvm_eventstore::Actor::parse("system:bench").expect("an actor"),
        streams: vec![StreamAppend {
            stream: id.stream(),
            expected: ExpectedVersion::Any,
            events: events.collect(),
            attachments: Vec::new(),
            kept: Vec::new(),
            sealed_for: None,
        }],
    }
}
