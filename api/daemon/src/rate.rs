//! How often one actor may ask: a bucket of tokens for each, which fills at the configured rate.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use crate::limits::RATE_ACTORS_MAX;

/// The buckets of all actors.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl RateLimit {
    /// `None` when the config names no limit.
    pub(crate) fn of(per_second: Option<u32>, burst: Option<u32>) -> Option<Self> {
        let per_second = f64::from(per_second?);
        let burst = burst.map_or(per_second, f64::from);
        Some(Self {
            per_second,
            burst: burst.max(1.0),
            buckets: Mutex::default(),
        })
    }

    /// Takes one request out of the actor's bucket.
    ///
    /// # Errors
    ///
    /// How long it takes until there is one again.
    pub(crate) fn take(&self, actor: &str, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= RATE_ACTORS_MAX {
            // A bucket that is full again says nothing.
            buckets.retain(|_, bucket| self.filled(*bucket, now) < self.burst);
        }
        let full = Bucket {
            tokens: self.burst,
            at: now,
        };
        let bucket = buckets.entry(actor.to_owned()).or_insert(full);
        let tokens = self.filled(*bucket, now);
        bucket.at = now;
        if tokens >= 1.0 {
            bucket.tokens = tokens - 1.0;
            return Ok(());
        }
        bucket.tokens = tokens;
        Err(Duration::from_secs_f64((1.0 - tokens) / self.per_second))
    }

    fn filled(&self, bucket: Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.per_second).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_let_through_and_then_the_rate() {
        let limit = RateLimit::of(Some(2), Some(3)).expect("a limit");
        let start = Instant::now();
        for _ in 0..3 {
            assert!(limit.take("a", start).is_ok());
        }
        let wait = limit.take("a", start).expect_err("empty");
        assert_eq!(wait, Duration::from_millis(500));
        assert!(limit.take("b", start).is_ok(), "each actor has its own");
        assert!(limit.take("a", start + wait).is_ok());
        assert!(limit.take("a", start + wait).is_err());
        assert!(RateLimit::of(None, None).is_none());
    }
}
