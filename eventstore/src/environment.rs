//! What the ledger takes from outside: time, randomness and the disk's word that bytes are safe.
//!
//! Each is a small trait, so that a test can hold the clock, repeat the randomness and let a sync
//! fail.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use fluxvm_verify::RecordedAt;

use crate::store::file_system::FileSystem;
use crate::store::file_system::RealFiles;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The instant, as well as it is known. It may go back; the ledger's times never do.
    fn now(&self) -> RecordedAt;

    /// How much time has gone by since some fixed instant. Never goes back. What the pauses between
    /// signatures are measured with.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where the ledger's time comes from"
    )]
    fn elapsed(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }
}

/// Gives random bytes.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` so that no one can guess them.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// Makes written bytes durable.
pub trait Disk: Send + Sync {
    /// Returns once the file's bytes, and its size as far as they need it, would survive a power
    /// loss.
    fn sync_data(&self, file: &File) -> io::Result<()>;

    /// The same for everything about a file or a folder.
    fn sync_all(&self, file: &File) -> io::Result<()>;
}

/// Which store lies below the ledger.
#[derive(Clone)]
pub enum StoreKind {
    /// sled, made strict. The one that is in use.
    Sled,
    /// A log in plain files, for holding the other one against it.
    Plain(Arc<dyn FileSystem>),
}

/// All of it together.
#[derive(Clone)]
pub struct Environment {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Gives salts, identifiers and the signing key.
    pub entropy: Arc<dyn Entropy>,
    /// Syncs the files of the store, of the blobs and of the key.
    pub disk: Arc<dyn Disk>,
    /// Which store the ledger lies in.
    pub store: StoreKind,
    /// The files of the archive.
    pub archive_files: Arc<dyn FileSystem>,
    /// No tree is kept and nothing is signed: for measuring what both cost. A ledger that was
    /// written so gets its tree when it is next opened in the ordinary way.
    #[doc(hidden)]
    pub without_proofs: bool,
}

impl Environment {
    /// The machine's own files as the plain store and the archive use them.
    pub fn real_files() -> Arc<dyn FileSystem> {
        Arc::new(RealFiles::new(Arc::new(SystemDisk)))
    }
}

impl Default for Environment {
    /// The machine's own clock, random source and disk.
    fn default() -> Environment {
        Environment {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            disk: Arc::new(SystemDisk),
            store: StoreKind::Sled,
            archive_files: Environment::real_files(),
            without_proofs: false,
        }
    }
}

struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where the ledger's time comes from"
    )]
    fn now(&self) -> RecordedAt {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        RecordedAt::from_unix_ns(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
    }
}

struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(|e| io::Error::other(e.to_string()))
    }
}

struct SystemDisk;

impl Disk for SystemDisk {
    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}
