//! Waiting for facts of the host that announce themselves to nobody.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

/// How long a test waits for what must happen, before it says that it did not. Far above what
/// anything takes on a machine that runs other tests beside.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until there is an answer.
///
/// # Panics
///
/// When there is none within [`PATIENCE`].
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// A number of seconds that no other test sleeps: it finds one process among all of the machine, by
/// the arguments of `sleep`.
#[must_use]
pub fn marker() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("300.{:07}{next:03}", std::process::id())
}
