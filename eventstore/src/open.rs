//! Opening a ledger, or founding one.
//!
//! The order of founding is the order in which things depend on each other: the store's files, the
//! key, the genesis that names the key, the head file that vouches for the genesis. A crash in
//! between leaves a beginning that the next opening completes; a ledger that has a head file is
//! never founded again, and neither is one whose key is there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fluxvm_verify::Genesis;
use fluxvm_verify::KeyChain;
use fluxvm_verify::LedgerId;
use fluxvm_verify::Position;
use fluxvm_verify::SignedCheckpoint;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::Environment;
use crate::Follower;
use crate::Head;
use crate::LedgerOptions;
use crate::OpenError;
use crate::archive;
use crate::blobs::BlobStore;
use crate::checkpointer::Checkpointer;
use crate::checkpointer::Timer;
use crate::committer::Committer;
use crate::committer::QUEUE_APPENDS_MAX;
use crate::committer::Request;
use crate::head_file::HeadFile;
use crate::keys;
use crate::rebuild::Expected;
use crate::rebuild::Walk;
use crate::redact;
use crate::seal::Seals;
use crate::shared::Shared;
use crate::signing_key;
use crate::signing_key::Signer;
use crate::snapshot::Background;
use crate::snapshot::Ground;
use crate::snapshot::Snapshots;
use crate::state::State;
use crate::store;
use crate::store::Store;
use crate::store::StoreError;
use crate::tree;

/// The format of ledgers that this program writes, and the newest that it reads.
const LEDGER_FORMAT: u16 = 1;

/// What an open ledger consists of, before anyone has a handle on it.
pub(crate) struct Opened {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: mpsc::Sender<Request>,
    pub(crate) committer: Committer,
    pub(crate) checkpoints: watch::Receiver<Option<Arc<SignedCheckpoint>>>,
    /// How many events a snapshot stood in for.
    pub(crate) restored: Position,
}

pub(crate) fn open(
    options: &LedgerOptions,
    follower: Box<dyn Follower>,
    environment: Environment,
) -> Result<Opened, OpenError> {
    let key = &options.signing_key_file;
    let is_absent = store::is_absent(&options.dir, &environment);
    if is_absent && archive::is_unfinished(&options.dir) {
        let dir = options.dir.clone();
        return Err(OpenError::RebuildUnfinished { dir });
    }
    // A founding makes its mark in the folder before it makes the key.
    if is_absent && key.exists() {
        return Err(OpenError::LedgerMissing {
            dir: options.dir.clone(),
            key: key.clone(),
        });
    }
    let within = environment.clone();
    let build = |store| open_in(options, follower, environment, store);
    store::open_for(&options.dir, options.cache_bytes, &within, build)
}

/// Makes a ledger of an open store.
fn open_in(
    options: &LedgerOptions,
    mut follower: Box<dyn Follower>,
    environment: Environment,
    store: Arc<dyn Store>,
) -> Result<Opened, OpenError> {
    let disk = Arc::clone(&environment.disk);
    let blobs = BlobStore::open(&options.blobs_dir, disk)?;
    let noted = HeadFile::open(&options.dir)?;
    let genesis = match read_genesis(&*store)? {
        Some(genesis) => genesis,
        None => found(
            options,
            &*store,
            noted.as_ref().map(|(_, head)| *head),
            &environment,
        )?,
    };

    let start = Head {
        position: Position::START,
        hash: genesis.hash(),
    };
    let noted_head = noted.as_ref().map(|(_, head)| *head);
    if noted_head.is_some_and(|head| head.position == start.position && head != start) {
        return Err(OpenError::GenesisDamaged {
            reason: "it is not the one that the head file was made for".to_owned(),
        });
    }
    let seals = Seals::open(options.seal.clone(), &genesis, &*store, &environment)?;
    let blobs = blobs.with_seals(Arc::new(seals));
    let signed = tree::latest_checkpoint(&*store)?;
    let expected = Expected {
        noted: noted_head,
        signed: signed.as_ref(),
    };
    let snapshots = snapshots(options, &genesis, &environment);
    let ground = Ground {
        store: &*store,
        blobs: &blobs,
        genesis: &genesis,
        expected,
    };
    // A snapshot would keep in the open, and beyond the key, what is sealed.
    let is_sealing = blobs.seals().is_some_and(|seals| seals.are_in_use());
    let snapshot_options = options.snapshots.filter(|_| !is_sealing);
    let wanted = snapshot_options.is_some();
    let (rebuilt, restored, unusable) = rebuild(&snapshots, wanted, &ground, &mut *follower)?;
    let signer = load_key(options, &rebuilt.chain, &environment)?;
    // Only now is it certain that the ledger is this one and says what is to go.
    redact::finish_unlinking(&*store, &blobs).map_err(store_failed)?;
    if let Some(seals) = blobs.seals() {
        let destroyed = seals.finish_destroying(&*store);
        destroyed.map_err(store_failed)?;
    }
    tree::complete(&*store, &rebuilt.frontier, rebuilt.memory.leaves())?;
    let head_file = match noted {
        Some((head_file, _)) => head_file,
        None => {
            if rebuilt.head != start {
                tracing::warn!("the head file is missing: nothing vouches for the ledger's end");
            }
            HeadFile::create(&options.dir, rebuilt.head, &*environment.disk)?
        }
    };
    store.founded()?;
    snapshots.remove(&unusable);

    let (watermark, watermark_receiver) = watch::channel(rebuilt.head);
    let (queue, queue_receiver) = mpsc::channel(QUEUE_APPENDS_MAX);
    let memory = rebuilt.memory;
    let shared = Shared::new(
        genesis,
        environment,
        store,
        blobs,
        snapshots,
        memory,
        rebuilt.chain,
        watermark_receiver,
    );
    let shared = Arc::new(shared);
    let fresh = follower.fresh();
    let background = match (snapshot_options, fresh) {
        (Some(how), Some(fresh)) => {
            let started = Background::start(Arc::clone(&shared), fresh, how, restored);
            Some(started.map_err(OpenError::io(&options.dir))?)
        }
        _ => None,
    };
    let timer = Timer::start(queue.downgrade()).map_err(OpenError::io(&options.dir))?;
    let checkpointer = Checkpointer {
        signer,
        frontier: rebuilt.frontier,
        signed_at: shared.environment.clock.elapsed(),
        latest: watch::Sender::new(signed.map(Arc::new)),
        timer,
        kept: None,
        is_off: shared.environment.without_proofs,
    };
    if checkpointer.is_behind() {
        checkpointer.timer.ask();
    }
    let checkpoints = checkpointer.latest.subscribe();
    let committer = Committer {
        checkpointer,
        key_file: options.signing_key_file.clone(),
        shared: Arc::clone(&shared),
        queue: queue_receiver,
        watermark,
        follower,
        background,
        commands: rebuilt.commands,
        head_file,
        head: rebuilt.head,
        last_recorded_at: rebuilt.last_recorded_at,
        closing: Vec::new(),
    };
    Ok(Opened {
        shared,
        queue,
        committer,
        checkpoints,
        restored,
    })
}

/// The snapshots of this ledger, under the key that is there. One that cannot be read here is
/// refused later, in its place.
fn snapshots(options: &LedgerOptions, genesis: &Genesis, environment: &Environment) -> Snapshots {
    let signer = signing_key::load_signer(&options.signing_key_file);
    let key = signer.map(|signer| signer.snapshot_key());
    Snapshots::new(
        &options.dir,
        Arc::clone(&environment.disk),
        genesis.hash(),
        key.unwrap_or_default(),
    )
}

/// What the events come to, how many of them a snapshot stood in for, and snapshots of no use.
fn rebuild(
    snapshots: &Snapshots,
    wanted: bool,
    ground: &Ground<'_>,
    follower: &mut dyn Follower,
) -> Result<(State, Position, Vec<PathBuf>), OpenError> {
    let never = AtomicBool::new(false);
    let walk = Walk::everything(ground.store, ground.blobs, &never);
    let (restored, mut unusable) = match wanted {
        true => snapshots.restore(ground, follower),
        // What is not used is not kept either: it may hold what was erased since.
        false => (None, snapshots.files().unwrap_or_default()),
    };
    if let Some(state) = restored {
        let from = state.head.position;
        match walk.run(state, ground.expected, &mut |page| follower.follow(page)) {
            Ok(state) => return Ok((state, from, unusable)),
            Err(error) => {
                tracing::warn!(%error, "behind a snapshot the ledger does not hold: from the start");
                unusable.extend(snapshots.files().unwrap_or_default());
                follower.reset();
            }
        }
    }
    let start = State::at_genesis(ground.genesis)?;
    let state = walk.run(start, ground.expected, &mut |page| follower.follow(page))?;
    Ok((state, Position::START, unusable))
}

/// The genesis in the store; `None` where the store is empty.
fn read_genesis(store: &dyn Store) -> Result<Option<Genesis>, OpenError> {
    let damaged = |reason: &str| OpenError::GenesisDamaged {
        reason: reason.to_owned(),
    };
    let format = store.get(keys::FORMAT).map_err(store_failed)?;
    let genesis = store.get(keys::GENESIS).map_err(store_failed)?;
    let (format, genesis) = match (format, genesis) {
        (Some(format), Some(genesis)) => (format, genesis),
        (Some(format), None) => (format, Default::default()),
        (None, Some(_)) => return Err(damaged("the ledger's format is missing")),
        (None, None) => {
            return match store.records(Position::START).next() {
                Some(_) => Err(damaged("there are events and no genesis")),
                None => Ok(None),
            };
        }
    };
    let found = u16::from_be_bytes(
        format
            .as_ref()
            .try_into()
            .map_err(|_| damaged("the ledger's format is not a number"))?,
    );
    // A newer ledger may have its genesis elsewhere, so this comes before anything is read of it.
    if found > LEDGER_FORMAT {
        return Err(OpenError::UnsupportedFormat {
            found,
            supported: LEDGER_FORMAT,
        });
    }
    if found == 0 {
        return Err(damaged("the ledger's format is zero"));
    }
    let genesis = Genesis::decode(&genesis).map_err(|e| damaged(&e.to_string()))?;
    Ok(Some(genesis))
}

/// Begins a new ledger in an empty store.
fn found(
    options: &LedgerOptions,
    store: &dyn Store,
    noted: Option<Head>,
    environment: &Environment,
) -> Result<Genesis, OpenError> {
    if let Some(noted) = noted {
        // There was a ledger here: its store has lost everything.
        return Err(OpenError::TailMissing {
            recorded: noted.position,
            found: Position::START,
        });
    }
    let mut id = [0; 16];
    environment
        .entropy
        .fill(&mut id)
        .map_err(OpenError::io(&options.dir))?;
    let mut genesis = Genesis {
        ledger_id: LedgerId::new(uuid::Builder::from_random_bytes(id).into_uuid()),
        origin: options.origin.clone(),
        created_at: environment.clock.now(),
        vkey: "not-known-yet".to_owned(),
    };
    // An origin that cannot be is refused before a key is made for it.
    genesis.check()?;
    let key = &options.signing_key_file;
    genesis.vkey = match key.exists() {
        true => signing_key::load(key)?,
        false => signing_key::create(key, &options.origin, environment)?,
    };
    if !genesis.vkey.starts_with(&format!("{}+", genesis.origin)) {
        let reason = "it is a key for another origin";
        return Err(OpenError::SigningKey {
            path: key.clone(),
            reason,
        });
    }
    let format = LEDGER_FORMAT.to_be_bytes().to_vec();
    let writes = vec![
        (keys::FORMAT.to_vec(), format),
        (keys::GENESIS.to_vec(), genesis.encode()),
    ];
    store.commit(&writes).map_err(store_failed)?;
    Ok(genesis)
}

/// The key that the ledger's events name last.
fn load_key(
    options: &LedgerOptions,
    chain: &KeyChain,
    environment: &Environment,
) -> Result<Signer, OpenError> {
    let path = &options.signing_key_file;
    let expected = chain.current().map(ToString::to_string).unwrap_or_default();
    signing_key::settle(path, &expected, environment)?;
    if !path.exists() {
        let reason = "it is missing, and the ledger's events are bound to it";
        return Err(OpenError::SigningKey {
            path: path.clone(),
            reason,
        });
    }
    let signer = signing_key::load_signer(path)?;
    let found = signer.vkey().to_string();
    match found == expected {
        true => Ok(signer),
        false => Err(OpenError::SigningKeyDiffers {
            path: path.clone(),
            expected,
            found,
        }),
    }
}

fn store_failed(error: StoreError) -> OpenError {
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ledger;

    fn options(dir: &std::path::Path) -> LedgerOptions {
        LedgerOptions {
            dir: dir.join("ledger"),
            blobs_dir: dir.join("blobs"),
            signing_key_file: dir.join("key"),
            origin: "flux.example".to_owned(),
            cache_bytes: 8 * 1024 * 1024,
            archive: None,
            snapshots: None,
            seal: None,
        }
    }

    /// Founds a ledger, lets `change` at its store, and opens it again.
    fn reopen_after(change: impl FnOnce(&dyn Store)) -> Result<Ledger, OpenError> {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        drop(Ledger::open(options.clone(), Box::new(|_| {})).unwrap());
        let store = store::open(&options.dir, 8 << 20, &Environment::default()).unwrap();
        change(&*store);
        drop(store);
        Ledger::open(options, Box::new(|_| {}))
    }

    fn set(key: &'static [u8], value: Vec<u8>) -> impl FnOnce(&dyn Store) {
        move |store| store.commit(&[(key.to_vec(), value)]).unwrap()
    }

    #[test]
    fn a_ledger_that_nothing_was_done_to_opens() {
        reopen_after(|_| {}).unwrap();
    }

    #[test]
    fn a_ledger_of_a_newer_format_says_so() {
        let refused = reopen_after(set(keys::FORMAT, vec![0, 2]));
        let newer = OpenError::UnsupportedFormat {
            found: 2,
            supported: 1,
        };
        assert_eq!(refused.err().unwrap().to_string(), newer.to_string());
    }

    #[test]
    fn a_damaged_format_or_genesis_is_an_error() {
        for (key, value) in [
            (keys::FORMAT, vec![]),
            (keys::FORMAT, vec![0, 0]),
            (keys::FORMAT, vec![1]),
            (keys::GENESIS, vec![]),
            (keys::GENESIS, vec![7; 64]),
        ] {
            let refused = reopen_after(set(key, value.clone()));
            assert!(
                matches!(refused, Err(OpenError::GenesisDamaged { .. })),
                "{key:?} {value:?}"
            );
        }
    }

    #[test]
    fn the_genesis_of_another_ledger_is_an_error() {
        let refused = reopen_after(|store| {
            let mut genesis = read_genesis(store).unwrap().unwrap();
            genesis.ledger_id = LedgerId::from_bytes([9; 16]);
            set(keys::GENESIS, genesis.encode())(store);
        });
        assert!(matches!(refused, Err(OpenError::GenesisDamaged { .. })));
    }

    #[test]
    fn a_record_that_is_no_event_of_this_chain_is_named() {
        let refused = reopen_after(|store| {
            let key = keys::event(fluxvm_verify::GlobalSeq::FIRST).to_vec();
            store.commit(&[(key, vec![1, 0, 0, 9, 1, 2, 3])]).unwrap();
        });
        let Err(OpenError::Damaged { seq, .. }) = refused else {
            panic!("it opened")
        };
        assert_eq!(seq.get(), 1);
    }
}
