//! Opening the ledger on every image, and holding it against what was answered.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use fluxvm_eventstore::*;

use super::Random;
use super::trace::Disk;
use super::trace::Image;
use super::trace::Model;
use super::trace::Op;
use crate::support::all;
use crate::support::one;
use crate::support::runtime;

/// How many images may wait for a thread: each is some megabytes.
const IMAGES_AHEAD: usize = 4;

/// What writers had been told by some point.
#[derive(Clone, Default)]
pub struct Answered {
    /// By sequence number: hash and command.
    events: BTreeMap<u64, (String, String)>,
    blobs: Vec<BlobDigest>,
    erased: Vec<usize>,
}

impl Answered {
    pub fn take(&mut self, text: &str) {
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["event", seq, hash, command] => {
                    let fact = (hash.to_owned(), command.to_owned());
                    self.events.insert(seq.parse().unwrap(), fact);
                }
                ["erased", seq] => self.erased.push(seq.parse().unwrap()),
                ["blob", digest] => self.blobs.push(digest.parse().unwrap()),
                _ => panic!("not an answer: {line}"),
            }
        }
    }

    /// Holds a ledger against what was answered by now, and against `later`, which is what was
    /// answered in the whole run: an event that was on its way may be there, and then as it was.
    pub fn check(&self, ledger: &Ledger, later: &Answered) -> Result<(), String> {
        let events = all(ledger);
        for seq in self.events.keys() {
            if *seq > events.len() as u64 {
                return Err(format!("event {seq} was answered for and is lost"));
            }
        }
        for event in &events {
            let seq = event.seq().get();
            if let Some((hash, _)) = later.events.get(&seq)
                && *hash != event.hash.to_string()
            {
                return Err(format!("event {seq} is another one than was answered"));
            }
        }
        // An append is there as a whole or not at all.
        if let Some(last) = events.last() {
            let command = last.header.command_id.to_string();
            let next = later.events.get(&(last.seq().get() + 1));
            if next.is_some_and(|(_, of)| *of == command) {
                return Err(format!("the append of event {} is torn", last.seq()));
            }
        }
        for seq in &self.erased {
            if events[seq - 1].payload != Payload::Redacted {
                return Err(format!("event {seq} was erased and is back"));
            }
        }
        for digest in &self.blobs {
            match ledger.blob(digest) {
                Ok(Some(_)) => {}
                other => return Err(format!("blob {digest} was answered for: {other:?}")),
            }
        }
        Ok(())
    }

    pub fn events(&self) -> usize {
        self.events.len()
    }
}

/// What is tried on one image.
struct Trial {
    point: usize,
    model: Model,
    image: Image,
    answered: Answered,
}

/// The outcome of an exploration.
#[derive(Default)]
pub struct Findings {
    pub images: usize,
    pub failures: Vec<String>,
}

/// What is tried at each point.
const MODELS: [Model; 5] = [
    Model::KeepAll,
    Model::DropUnsynced,
    Model::RandomPieces(4096),
    Model::RandomPieces(4096),
    Model::RandomPieces(512),
];

/// Points spread over a run, none before operation `from`, for so many images in all.
pub fn spread(ops: &[Op], from: usize, images: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let point = |_| from + random.below(ops.len() - from) + 1;
    let mut points: Vec<usize> = (0..images.div_ceil(MODELS.len())).map(point).collect();
    points.sort_unstable();
    points
}

/// Every point of a run.
pub fn every(ops: &[Op]) -> Vec<usize> {
    (1..=ops.len()).collect()
}

/// Opens an image of each model at each of the points with `open`, on all cores. Every image that
/// an answered event is missing from, that holds another one, or that does not open, is a failure.
pub fn explore<Kept>(
    what: &str,
    ops: &[Op],
    points: &[usize],
    seed: u64,
    open: impl Fn(&Image) -> Result<(Ledger, Kept), String> + Sync,
) -> Findings {
    let started = Instant::now();
    let mut whole = Answered::default();
    for op in ops {
        if let Op::Answer { text } = op {
            whole.take(text);
        }
    }
    let findings = Mutex::new(Findings::default());
    let (trials, waiting) = mpsc::sync_channel::<Trial>(IMAGES_AHEAD);
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        let (waiting, findings, whole, open) = (&waiting, &findings, &whole, &open);
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(move || {
                loop {
                    let trial = waiting.lock().unwrap().recv();
                    let Ok(trial) = trial else { return };
                    let failure = try_image(&trial, whole, open).err();
                    let mut findings = findings.lock().unwrap();
                    findings.images += 1;
                    findings.failures.extend(failure);
                }
            });
        }
        make_trials(ops, points, seed, &trials);
        drop(trials);
    });
    let findings = findings.into_inner().unwrap();
    println!(
        "crash lab, {what}: {} images at {} points of {} operations with {} events answered, \
         seed {seed}, {:.1} s: {} failures",
        findings.images,
        points.len(),
        ops.len(),
        whole.events(),
        started.elapsed().as_secs_f64(),
        findings.failures.len(),
    );
    for failure in findings.failures.iter().take(20) {
        println!("  {failure}");
    }
    findings
}

/// Plays the run and stops at the points, each time for one image of each model.
fn make_trials(ops: &[Op], points: &[usize], seed: u64, trials: &mpsc::SyncSender<Trial>) {
    let mut random = Random::new(seed);
    let mut disk = Disk::default();
    let mut answered = Answered::default();
    let mut played = 0;
    for point in points {
        for op in &ops[played..*point] {
            disk.play(op);
            if let Op::Answer { text } = op {
                answered.take(text);
            }
        }
        played = *point;
        for model in MODELS {
            let trial = Trial {
                point: *point,
                model,
                image: disk.image(model, &mut random),
                answered: answered.clone(),
            };
            // The threads are gone only after a panic, which the scope passes on.
            if trials.send(trial).is_err() {
                return;
            }
        }
    }
}

fn try_image<Kept>(
    trial: &Trial,
    whole: &Answered,
    open: impl Fn(&Image) -> Result<(Ledger, Kept), String>,
) -> Result<(), String> {
    let failure = |said: String| format!("point {}, {:?}: {said}", trial.point, trial.model);
    let (ledger, kept) = open(&trial.image).map_err(failure)?;
    let checked = trial.answered.check(&ledger, whole);
    // A ledger that came back has to be good for more than reading.
    let appended = runtime().block_on(ledger.append(one("host", 1)));
    runtime().block_on(ledger.close());
    drop(ledger);
    drop(kept);
    checked.map_err(failure)?;
    appended.map(|_| ()).map_err(|e| failure(e.to_string()))
}
