//! Durations as callers write them: seconds, above zero, finite.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::Error;
use serde::de::Visitor;

/// A whole number of seconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeSeconds(u64);

impl WholeSeconds {
    /// The number of seconds.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for WholeSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeSecondsVisitor).map(Self)
    }
}

struct WholeSecondsVisitor;

impl Visitor<'_> for WholeSecondsVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of seconds, 1 or more")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        if value == 0 {
            return Err(E::custom("must be a whole number of seconds, 1 or more"));
        }
        Ok(value)
    }
}

/// A time in milliseconds that came as seconds, whole or decimal, above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Milliseconds(u64);

impl Milliseconds {
    /// The number of milliseconds, at least one.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Rounds up, so that a time above zero never becomes none at all.
    fn from_duration(duration: Duration) -> Option<Self> {
        let whole = duration.as_nanos().div_ceil(1_000_000);
        u64::try_from(whole)
            .ok()
            .filter(|milliseconds| *milliseconds > 0)
            .map(Self)
    }
}

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecondsVisitor)
    }
}

struct SecondsVisitor;

const SECONDS_WANTED: &str = "a number of seconds above 0, whole or decimal";

impl Visitor<'_> for SecondsVisitor {
    type Value = Milliseconds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SECONDS_WANTED)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Milliseconds, E> {
        let milliseconds = value
            .checked_mul(1_000)
            .filter(|milliseconds| *milliseconds > 0);
        milliseconds
            .map(Milliseconds)
            .ok_or_else(|| E::custom(format!("must be {SECONDS_WANTED}")))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Milliseconds, E> {
        // A negative number, a NaN and what no duration can hold all fail the conversion.
        Duration::try_from_secs_f64(value)
            .ok()
            .and_then(Milliseconds::from_duration)
            .ok_or_else(|| E::custom(format!("must be {SECONDS_WANTED}")))
    }
}

/// An amount of US dollars, not negative, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dollars(u64);

impl Dollars {
    /// The amount in millionths of a dollar.
    #[must_use]
    pub fn microusd(self) -> u64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DollarsVisitor)
    }
}

struct DollarsVisitor;

impl Visitor<'_> for DollarsVisitor {
    type Value = Dollars;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount of dollars, 0 or more")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Dollars, E> {
        value
            .checked_mul(1_000_000)
            .map(Dollars)
            .ok_or_else(|| E::custom("is more dollars than there are"))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Dollars, E> {
        // As a time, which has the same range and never rounds to less: a microsecond for a millionth.
        let micros = Duration::try_from_secs_f64(value)
            .ok()
            .and_then(|amount| u64::try_from(amount.as_nanos().div_ceil(1_000)).ok());
        micros
            .map(Dollars)
            .ok_or_else(|| E::custom("must be an amount of dollars, 0 or more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_seconds_round_up_to_a_millisecond() {
        let read = |text: &str| serde_json::from_str::<Milliseconds>(text).map(Milliseconds::get);
        assert_eq!(read("30").expect("whole"), 30_000);
        assert_eq!(read("1.5").expect("decimal"), 1_500);
        assert_eq!(read("0.0001").expect("small"), 1);
        for wrong in [
            "0",
            "0.0",
            "-1",
            "-0.5",
            "1e18",
            "1e999",
            "\"5\"",
            "true",
            "18446744073709551615",
        ] {
            let answer = read(wrong);
            // 1e18 s fits a duration; whether a command may have that long is a rule, not a type.
            assert!(answer.is_err() || wrong == "1e18", "{wrong}: {answer:?}");
        }
    }

    #[test]
    fn whole_seconds_take_no_fraction_and_no_zero() {
        let read = |text: &str| serde_json::from_str::<WholeSeconds>(text).map(WholeSeconds::get);
        assert_eq!(read("3600").expect("whole"), 3_600);
        for wrong in [
            "0",
            "-1",
            "1e18",
            "1.5",
            "\"10\"",
            "NaN",
            "true",
            "18446744073709551616",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
