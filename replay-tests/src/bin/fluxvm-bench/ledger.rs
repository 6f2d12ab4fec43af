//! The ledger alone, in this process: appends, and opening with full verification.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use fluxvm_eventstore::Actor;
use fluxvm_eventstore::Append;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::EventKind;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::LedgerOptions;
use fluxvm_eventstore::NewEvent;
use fluxvm_eventstore::StreamAppend;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::World;
use serde_json::json;
use uuid::Uuid;

use crate::Scale;
use crate::figures::Figure;

/// Bytes of filler that make a payload about 1 KB, with what else is in it.
const COMMAND_BYTES: usize = 840;

pub(crate) fn measure(scale: Scale, sync: &Figure) -> Vec<Figure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let mut figures = Vec::new();
    for (writers, count) in [(1, 4_000), (16, 40_000), (64, 120_000), (256, 120_000)] {
        eprintln!("  append with {writers} writers");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let measured = runtime.block_on(closed_loop(folder.path(), writers, scale.of(count)));
        let (samples, took) = measured;
        let name = format!("append 1 KB events, {writers} writers");
        let rate = Figure::rate(format!("{name}, together"), samples.len(), took, "events");
        figures.push(match writers {
            64 => rate.target("≥ 40000 events/s"),
            _ => rate,
        });
        figures.push(Figure::latency(name, samples).against(sync));
        if writers == 64 {
            figures.push(rebuild(folder.path()));
        }
    }
    for per_second in [500, 2_000, 10_000] {
        eprintln!("  append at {per_second} events/s, arrivals on schedule");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let count = scale.of(per_second * 4);
        let samples = runtime.block_on(open_loop(folder.path(), per_second, count));
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

fn options(folder: &Path) -> LedgerOptions {
    LedgerOptions {
        dir: folder.join("ledger"),
        blobs_dir: folder.join("blobs"),
        signing_key_file: folder.join("key"),
        origin: "bench".into(),
        cache_bytes: 32 * 1024 * 1024,
        archive: None,
        snapshots: None,
    }
}

/// Every writer appends one event after the other to a stream of its own, each as soon as the last one is
/// durable.
async fn closed_loop(folder: &Path, writers: usize, count: usize) -> (Vec<Duration>, Duration) {
    let ledger = Ledger::open(options(folder), Box::new(|_| {})).expect("a new ledger");
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

/// Events arrive on a fixed schedule, whatever the ledger does; each is timed from when it was due.
async fn open_loop(folder: &Path, per_second: usize, count: usize) -> Vec<Duration> {
    let ledger = Ledger::open(options(folder), Box::new(|_| {})).expect("a new ledger");
    let samples = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let every = Duration::from_secs_f64(1.0 / per_second as f64);
    let began = Instant::now();
    let mut tasks = Vec::with_capacity(count);
    for index in 0..count {
        let due = began + every * u32::try_from(index).expect("a few seconds of events");
        tokio::time::sleep_until(due.into()).await;
        let (ledger, samples) = (ledger.clone(), Arc::clone(&samples));
        tasks.push(tokio::spawn(async move {
            ledger.append(one_event(stream())).await.expect("an append");
            samples
                .lock()
                .expect("no writer failed")
                .push(due.elapsed());
        }));
    }
    for task in tasks {
        task.await.expect("a writer");
    }
    ledger.close().await;
    std::mem::take(&mut *samples.lock().expect("no writer failed"))
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
        }],
        attachments: Vec::new(),
    }
}
