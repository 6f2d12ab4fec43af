//! Time, as an argument.

use chrono::DateTime;
use chrono::Utc;

/// Where "now" comes from. Decisions take it as an argument; only effects ask a clock.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> DateTime<Utc>;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's clock"
    )]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}
