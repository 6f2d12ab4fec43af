//! Snapshots: what the ledger and its follower had come to at some event, so that the next opening
//! need not read everything before it.
//!
//! They are a cache and nothing else. Whatever is wrong with one (it is missing, torn, of another
//! ledger, of another version, from before an erasure, about an event that is not there) is a
//! reason to leave it out and to fold from the start, never a reason not to open. What is never
//! taken from one is trust: it names the event that it was taken at by its hash, that event has to
//! be in the store, everything behind it is read and checked as ever, and the tree and the keys
//! before it are held against what the store has. Its bytes are under a key that is derived from
//! the ledger's signing key, so that nobody without that key can make one.
//!
//! ```text
//! <ledger>/snapshots/<seq, 20 digits>.snapshot   the newest two are kept
//!
//! magic            8    "FXSNAP" 0 1
//! check            32   BLAKE3 keyed with derive_key("fluxvm ledger v1 snapshot")( signing seed ),
//!                       of all that follows
//! genesis          32   the hash of the ledger's genesis
//! seq u64 ‖ hash   40   the event that it was taken at
//! redactions       8    how many there were in the store
//! version          32   of the follower
//! bytes u64 ‖ ledger's part       see `codec`
//! bytes u64 ‖ follower's part     as the follower gave it
//! ```

mod background;
mod codec;
mod file;
mod restore;

use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;

use fluxvm_verify::EventHash;

pub(crate) use background::Background;
pub(crate) use restore::Ground;

use crate::Follower;
use crate::environment::Disk;
use crate::redact;
use crate::state::View;
use crate::store::Store;
use file::Contents;

/// The folder of the snapshots in that of the ledger.
const FOLDER: &str = "snapshots";

/// How many events come between two snapshots where nothing else is said: folding so many takes
/// well below a second.
pub const SNAPSHOT_EVENTS: u64 = 100_000;

/// How a ledger makes use of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// One is taken after so many events, and when the ledger closes.
    pub every_events: u64,
    /// Whether what an opening skipped is read and checked behind it, by one thread. A fault then
    /// poisons the ledger.
    pub checks_behind: bool,
}

impl Default for SnapshotOptions {
    fn default() -> SnapshotOptions {
        SnapshotOptions {
            every_events: SNAPSHOT_EVENTS,
            checks_behind: true,
        }
    }
}

/// The folder of a ledger's snapshots.
pub(crate) struct Snapshots {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    genesis: EventHash,
    /// What snapshots are made and checked with. Goes with the signing key.
    key: RwLock<[u8; 32]>,
}

impl Snapshots {
    pub(crate) fn new(
        ledger_dir: &Path,
        disk: Arc<dyn Disk>,
        genesis: EventHash,
        key: [u8; 32],
    ) -> Snapshots {
        Snapshots {
            dir: ledger_dir.join(FOLDER),
            disk,
            genesis,
            key: RwLock::new(key),
        }
    }

    /// From now on snapshots are made with this key, and others are not believed.
    pub(crate) fn set_key(&self, key: [u8; 32]) {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    fn key(&self) -> [u8; 32] {
        *self.key.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what the ledger and its follower have come to; both must be at the same durable event.
    ///
    /// Nothing is kept where the follower has no bytes, or where something is erased meanwhile.
    pub(crate) fn keep(
        &self,
        state: &View<'_>,
        follower: &dyn Follower,
        store: &dyn Store,
    ) -> io::Result<()> {
        let path = self.path(state.head.position);
        let (Some(version), false) = (follower.version(), path.exists()) else {
            return Ok(());
        };
        let Some(follower) = follower.save() else {
            return Ok(());
        };
        let contents = Contents {
            genesis: self.genesis,
            head: state.head,
            redactions: redact::epoch(store).map_err(io::Error::other)?,
            version,
            state: codec::encode(state),
            follower,
        };
        self.write(&contents)?;
        // Someone who erased something while this was on its way has not seen the file.
        let erased_since = redact::epoch(store).map_err(io::Error::other)? != contents.redactions;
        if erased_since {
            self.forget_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use fluxvm_verify::*;

    use super::*;
    use crate::Append;
    use crate::Environment;
    use crate::ExpectedVersion;
    use crate::Ledger;
    use crate::LedgerOptions;
    use crate::NewEvent;
    use crate::StreamAppend;
    use crate::blobs::BlobStore;
    use crate::keys;
    use crate::memory::Memory;
    use crate::rebuild::Expected;
    use crate::rebuild::Walk;
    use crate::signing_key;
    use crate::state::State;
    use crate::store;

    /// Counts what it has been shown, or told that it was.
    #[derive(Clone, Default)]
    struct Count(Arc<Mutex<u8>>);

    impl Follower for Count {
        fn follow(&mut self, events: &[Arc<RecordedEvent>]) {
            *self.0.lock().unwrap() += u8::try_from(events.len()).unwrap();
        }

        fn version(&self) -> Option<[u8; 32]> {
            Some([1; 32])
        }

        fn save(&self) -> Option<Vec<u8>> {
            Some(vec![*self.0.lock().unwrap()])
        }

        fn restore(&mut self, saved: &[u8]) -> bool {
            *self.0.lock().unwrap() = 100 + saved[0];
            true
        }

        fn reset(&mut self) {
            *self.0.lock().unwrap() = 0;
        }
    }

    fn append(n: u8) -> Append {
        let kind = EventKind::parse("test.done").unwrap();
        Append {
            command_id: CommandId::from_bytes([n; 16]),
            correlation_id: CorrelationId::from_bytes([n; 16]),
            actor: Actor::parse("test").unwrap(),
            streams: vec![StreamAppend {
                stream: StreamName::parse("host").unwrap(),
                expected: ExpectedVersion::Any,
                events: vec![NewEvent::new(kind, 1, &n).unwrap()],
                attachments: Vec::new(),
                kept: Vec::new(),
                sealed_for: None,
            }],
        }
    }

    /// Keeps a snapshot of two events, made with the ledger's own key, that says of their stream
    /// what is not so.
    fn keep_a_wrong_one(options: &LedgerOptions) {
        let environment = Environment::default();
        let disk = Arc::clone(&environment.disk);
        let store = store::open(&options.dir, 8 << 20, &environment).unwrap();
        let blobs = BlobStore::open(&options.blobs_dir, Arc::clone(&disk)).unwrap();
        let genesis = store.get(keys::GENESIS).unwrap().unwrap();
        let genesis = Genesis::decode(&genesis).unwrap();
        let never = AtomicBool::new(false);
        let walk = Walk {
            until: Position::new(2),
            ..Walk::everything(&*store, &blobs, &never)
        };
        let start = State::at_genesis(&genesis).unwrap();
        let mut state = walk.run(start, Expected::default(), &mut |_| {}).unwrap();
        let streams = HashMap::from([(StreamName::parse("host").unwrap(), vec![GlobalSeq::FIRST])]);
        let leaves = state.memory.leaves().to_vec();
        state.memory = Memory::restored(streams, Position::new(2), leaves);
        let key = signing_key::load_signer(&options.signing_key_file).unwrap();
        let snapshots = Snapshots::new(&options.dir, disk, genesis.hash(), key.snapshot_key());
        let count = Count::default();
        snapshots.keep(&state.view(), &count, &*store).unwrap();
    }

    #[test]
    fn where_what_lies_behind_a_snapshot_does_not_follow_from_it_the_start_is_from_zero() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = LedgerOptions {
            dir: dir.path().join("ledger"),
            blobs_dir: dir.path().join("blobs"),
            signing_key_file: dir.path().join("key"),
            origin: "flux.example".to_owned(),
            cache_bytes: 8 << 20,
            archive: None,
            seal: None,
            snapshots: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let ledger = Ledger::open(options.clone(), Box::new(|_| {})).unwrap();
        for n in 1..=3 {
            runtime.block_on(ledger.append(append(n))).unwrap();
        }
        drop(ledger);
        keep_a_wrong_one(&options);
        options.snapshots = Some(SnapshotOptions::default());
        let count = Count::default();
        let follower = Box::new(count.clone());
        let ledger = Ledger::open_following(options, follower, Environment::default()).unwrap();
        assert_eq!(ledger.restored(), Position::START);
        assert_eq!(*count.0.lock().unwrap(), 3);
        runtime.block_on(ledger.append(append(4))).unwrap();
    }
}
