//! How long the latest commits took to become durable.

use std::time::Duration;

/// How many of the latest commits are looked at.
const COMMITS_KEPT: usize = 1024;

/// The durations of the latest commits, in microseconds.
#[derive(Default)]
pub(crate) struct SyncTimes {
    micros: Vec<u64>,
    next: usize,
}

impl SyncTimes {
    pub(crate) fn note(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        match self.micros.get_mut(self.next) {
            Some(oldest) => *oldest = micros,
            None => self.micros.push(micros),
        }
        self.next = (self.next + 1) % COMMITS_KEPT;
    }

    /// The duration that `percent` of a hundred commits stay below; zero before the first commit.
    pub(crate) fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        let at = sorted.len() * percent / 100;
        sorted
            .get(at.min(sorted.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentiles_are_those_of_the_latest_commits() {
        let mut times = SyncTimes::default();
        assert_eq!(times.percentile(50), 0);
        for micros in 0..5000 {
            times.note(Duration::from_micros(micros));
        }
        assert_eq!(times.percentile(0), 5000 - 1024);
        assert_eq!(times.percentile(50), 5000 - 512);
        assert_eq!(times.percentile(100), 4999);
    }
}
