//! The instant at which the ledger recorded an event.
//!
//! Nanoseconds since the Unix epoch, because that is what is hashed. Text forms exist for people:
//! six decimals in the public view, nine in an export, where no digit may be lost.

use std::fmt;

use chrono::DateTime;
use chrono::SecondsFormat;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// When the committer recorded an event, in nanoseconds since the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RecordedAt(u64);

/// A text that is not an instant in the export's own form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an instant like 2026-12-01T10:00:00.123456789Z between 1970 and 2554")]
pub struct TimeParseError {
    text: String,
}

impl RecordedAt {
    /// The instant that many nanoseconds after the Unix epoch.
    pub const fn from_unix_ns(unix_ns: u64) -> RecordedAt {
        RecordedAt(unix_ns)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn unix_ns(self) -> u64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    pub const fn unix_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// RFC 3339 in UTC with six decimals, rounded down: the form of the public view.
    pub fn to_rfc3339(self) -> String {
        self.date_time()
            .to_rfc3339_opts(SecondsFormat::Micros, true)
    }

    /// RFC 3339 in UTC with nine decimals: loses nothing.
    pub fn to_rfc3339_nanos(self) -> String {
        self.date_time().to_rfc3339_opts(SecondsFormat::Nanos, true)
    }

    /// Reads what [`RecordedAt::to_rfc3339_nanos`] writes, and nothing else.
    pub fn parse_rfc3339_nanos(text: &str) -> Result<RecordedAt, TimeParseError> {
        let refused = || TimeParseError {
            text: text.to_owned(),
        };
        let instant = DateTime::parse_from_rfc3339(text).map_err(|_| refused())?;
        let seconds = u64::try_from(instant.timestamp()).map_err(|_| refused())?;
        let nanos = u64::from(instant.timestamp_subsec_nanos());
        let unix_ns = seconds
            .checked_mul(NANOS_PER_SECOND)
            .and_then(|ns| ns.checked_add(nanos));
        let parsed = RecordedAt(unix_ns.ok_or_else(refused)?);
        // One instant has many RFC 3339 forms; an export has exactly one of them.
        if parsed.to_rfc3339_nanos() == text {
            Ok(parsed)
        } else {
            Err(refused())
        }
    }

    fn date_time(self) -> DateTime<Utc> {
        let seconds = i64::try_from(self.0 / NANOS_PER_SECOND).unwrap_or_default();
        let nanos = u32::try_from(self.0 % NANOS_PER_SECOND).unwrap_or_default();
        DateTime::from_timestamp(seconds, nanos).unwrap_or_default()
    }
}

impl fmt::Display for RecordedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_export_form_loses_no_nanosecond() {
        for unix_ns in [0, 1, 999_999_999, 1_796_119_200_123_456_789, u64::MAX] {
            let at = RecordedAt::from_unix_ns(unix_ns);
            assert_eq!(
                RecordedAt::parse_rfc3339_nanos(&at.to_rfc3339_nanos()),
                Ok(at)
            );
        }
    }

    #[test]
    fn the_public_form_has_six_decimals() {
        let at = RecordedAt::from_unix_ns(1_796_119_200_123_456_789);
        assert_eq!(at.to_rfc3339(), "2026-12-01T10:00:00.123456Z");
    }

    #[test]
    fn other_forms_of_the_same_instant_are_refused() {
        for text in [
            "2026-12-01T10:00:00Z",
            "2026-12-01T11:00:00.000000000+01:00",
            "x",
            "",
        ] {
            assert!(RecordedAt::parse_rfc3339_nanos(text).is_err());
        }
    }
}
