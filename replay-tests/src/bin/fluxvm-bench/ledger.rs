//! The ledger alone, in this process: appends, and opening with full verification.

use std::fs::File;
use std::io::BufReader;
use std::io::BufWriter;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use fluxvm_eventstore::Actor;
use fluxvm_eventstore::Append;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::Content;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::Environment;
use fluxvm_eventstore::EventKind;
use fluxvm_eventstore::EvidenceOptions;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::ExportScope;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::LedgerOptions;
use fluxvm_eventstore::NewEvent;
use fluxvm_eventstore::StreamAppend;
use fluxvm_eventstore::StreamName;
use fluxvm_eventstore::nothing_required;
use fluxvm_projections::World;
use fluxvm_verify::VerifyOptions;
use fluxvm_verify::verify_export;
use serde_json::json;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::Scale;
use crate::figures::Figure;

/// Bytes of filler that make a payload about 1 KB, with what else is in it.
pub(crate) const COMMAND_BYTES: usize = 840;

pub(crate) fn measure(scale: Scale, sync: &Figure) -> Vec<Figure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let mut figures = Vec::new();
    for (writers, count) in [(1, 4_000), (16, 40_000), (64, 120_000), (256, 120_000)] {
        eprintln!("  append with {writers} writers");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ordinary = Environment::default();
        let measured = closed_loop(folder.path(), writers, scale.of(count), ordinary);
        let (samples, took) = runtime.block_on(measured);
        let name = format!("append 1 KB events, {writers} writers");
        let rate = Figure::rate(format!("{name}, together"), samples.len(), took, "events");
        figures.push(match writers {
            64 => rate.target("≥ 40000 events/s"),
            _ => rate,
        });
        figures.push(Figure::latency(name, samples).against(sync));
        if writers == 64 {
            figures.push(without_proofs(&runtime, writers, scale.of(count)));
            figures.push(rebuild(folder.path()));
            figures.push(verify(folder.path()));
        }
    }
    for per_second in [500, 2_000, 10_000] {
        eprintln!("  append at {per_second} events/s, arrivals on schedule");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let count = scale.of(per_second * 4);
        let samples = open_loop(&runtime, folder.path(), per_second, count);
        let figure = Figure::latency(
            format!("append at {per_second} events/s, from schedule"),
            samples,
        );
        let target = "p99 ≤ 2 x fdatasync + 2 ms";
        figures.push(if per_second == 2_000 {
            figure.target(target)
        } else {
            figure
        });
    }
    figures
}

pub(crate) fn options(folder: &Path) -> LedgerOptions {
    LedgerOptions {
        dir: folder.join("ledger"),
        blobs_dir: folder.join("blobs"),
        signing_key_file: folder.join("key"),
        origin: "bench".into(),
        cache_bytes: 32 * 1024 * 1024,
        archive: None,
        snapshots: None,
        seal: None,
    }
}

/// Every writer appends one event after the other to a stream of its own, each as soon as the last one is
/// durable.
async fn closed_loop(
    folder: &Path,
    writers: usize,
    count: usize,
    environment: Environment,
) -> (Vec<Duration>, Duration) {
    let ledger = Ledger::open_in(options(folder), Box::new(|_| {}), environment);
    let ledger = ledger.expect("a new ledger");
    let each = (count / writers).max(1);
    let began = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let stream = stream();
                let mut samples = Vec::with_capacity(each);
                for _ in 0..each {
                    let began = Instant::now();
                    ledger
                        .append(one_event(stream.clone()))
                        .await
                        .expect("an append");
                    samples.push(began.elapsed());
                }
                samples
            })
        })
        .collect();
    let mut samples = Vec::with_capacity(count);
    for task in tasks {
        samples.extend(task.await.expect("a writer"));
    }
    let took = began.elapsed();
    ledger.close().await;
    (samples, took)
}

/// Events arrive on a fixed schedule, whatever the ledger does; each is timed from when it was due. A
/// thread keeps the schedule: the runtime's own timers are a millisecond coarse.
fn open_loop(runtime: &Runtime, folder: &Path, per_second: usize, count: usize) -> Vec<Duration> {
    let ledger = Ledger::open(options(folder), Box::new(|_| {})).expect("a new ledger");
    let every = Duration::from_secs_f64(1.0 / per_second as f64);
    let began = Instant::now();
    let arrive = |index: usize| {
        let due = began + every * u32::try_from(index).expect("a few seconds of events");
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let ledger = ledger.clone();
        runtime.spawn(async move {
            ledger.append(one_event(stream())).await.expect("an append");
            due.elapsed()
        })
    };
    let tasks: Vec<_> = (0..count).map(arrive).collect();
    runtime.block_on(async {
        let mut samples = Vec::with_capacity(count);
        for task in tasks {
            samples.push(task.await.expect("a writer"));
        }
        ledger.close().await;
        samples
    })
}

/// The same without the Merkle tree and without checkpoints: what they cost.
fn without_proofs(runtime: &Runtime, writers: usize, count: usize) -> Figure {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let environment = Environment {
        without_proofs: true,
        ..Environment::default()
    };
    let measured = closed_loop(folder.path(), writers, count, environment);
    let (samples, took) = runtime.block_on(measured);
    let name = format!("the same, {writers} writers, without tree and checkpoints");
    Figure::rate(name, samples.len(), took, "events")
}

/// Exports the ledger as evidence and verifies that as an auditor does.
fn verify(folder: &Path) -> Figure {
    let runtime = Runtime::new().expect("a runtime");
    let ledger = Ledger::open(options(folder), Box::new(|_| {})).expect("the ledger");
    let checkpoint = runtime.block_on(ledger.checkpoint()).expect("a checkpoint");
    let evidence = EvidenceOptions {
        scope: ExportScope::WholeLedger,
        content: Content::EventsOnly,
        required: nothing_required,
    };
    let path = folder.join("export.fluxlog");
    let mut file = BufWriter::new(File::create(&path).expect("a file"));
    for line in ledger.evidence(evidence, checkpoint).expect("an export") {
        file.write_all(line.expect("a line").as_bytes())
            .expect("space");
    }
    drop(file);
    let bytes = std::fs::metadata(&path).expect("a file").len();
    let began = Instant::now();
    let reader = BufReader::with_capacity(1 << 20, File::open(&path).expect("a file"));
    let report = verify_export(reader, &VerifyOptions::default());
    let took = began.elapsed();
    assert!(report.is_clean() && report.checkpoint.is_some());
    let megabytes = usize::try_from(bytes / 1_000_000).expect("a size");
    Figure::rate("verify an export offline", megabytes, took, "MB")
}

/// Opens the ledger again: every hash is checked and every event folded.
fn rebuild(folder: &Path) -> Figure {
    let folded = Arc::new(Mutex::new(World::default()));
    let world = Arc::clone(&folded);
    let began = Instant::now();
    let ledger = Ledger::open(
        options(folder),
        Box::new(move |events| {
            let mut world = world.lock().expect("nobody else folds");
            for event in events {
                world.apply(event).expect("an event that is known");
            }
        }),
    )
    .expect("the ledger that was just written");
    let took = began.elapsed();
    let count = usize::try_from(ledger.head().position.get()).expect("a count");
    assert_eq!(
        folded.lock().expect("nobody else folds").position,
        ledger.head().position
    );
    Figure::rate("rebuild, verified and folded", count, took, "events").target("≥ 150000 events/s")
}

fn stream() -> StreamName {
    StreamName::parse(&format!("session/{}", Uuid::new_v4())).expect("a stream name")
}

/// An intent with a command of the usual size, as a session's first event.
fn one_event(stream: StreamName) -> Append {
    let payload = json!({
        "exec_id": Uuid::new_v4(),
        "command": "x".repeat(COMMAND_BYTES),
        "timeout_ms": 30_000,
    });
    let kind = EventKind::parse("exec.started").expect("a kind");
    Append {
        command_id: CommandId::new(Uuid::new_v4()),
        correlation_id: CorrelationId::new(Uuid::new_v4()),
        actor: Actor::parse("system:bench").expect("an actor"),
        streams: vec![StreamAppend {
            stream,
            expected: ExpectedVersion::Any,
            events: vec![NewEvent::new(kind, 1, &payload).expect("a payload")],
            attachments: Vec::new(),
            kept: Vec::new(),
            sealed_for: None,
        }],
    }
}
