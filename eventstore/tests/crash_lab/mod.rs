//! The crash lab: what a disk can look like after the power went, and whether the ledger survives
//! all of it.
//!
//! A run of the ledger is recorded as one list of operations: writes, syncs, names that came and
//! went, and answers to writers, in the order in which they happened. [`trace::Disk`] plays the
//! list up to a point and says what the disk may hold there; [`explore`] opens the ledger on each
//! such image and holds it against what was answered before the point.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "each test file uses its part of this, and a test may fail loudly"
)]

pub mod explore;
pub mod shim;
pub mod simulated;
pub mod trace;
pub mod workload;

/// Numbers that look random and are the same for the same seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// How many images to try: more in `make crash-lab` than in `make test`.
pub fn images(in_a_short_run: usize) -> usize {
    match std::env::var("CRASH_LAB_IMAGES") {
        Ok(number) => number.parse().unwrap(),
        Err(_) => in_a_short_run,
    }
}

/// The seed of all randomness. It is printed, and setting it plays the same images again.
pub fn seed() -> u64 {
    let seed = std::env::var("CRASH_LAB_SEED");
    seed.map_or(20_261_130, |seed| seed.parse().unwrap())
}
