//! A point in time on the command line: RFC 3339, or how long ago (`10m`). The second form is
//! turned into the first when it is used, with this machine's clock.

use std::str::FromStr;

use chrono::DateTime;
use chrono::SecondsFormat;
use chrono::TimeDelta;
use chrono::Utc;

use crate::duration::parse_seconds;

/// When.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A fixed time.
    At(DateTime<Utc>),
    /// This long before now.
    SecondsAgo(i64),
}

impl Moment {
    /// The moment as RFC 3339, seen from `now`.
    pub(crate) fn to_rfc3339(self, now: DateTime<Utc>) -> String {
        let at = match self {
            Self::At(at) => at,
            Self::SecondsAgo(seconds) => TimeDelta::try_seconds(seconds)
                .and_then(|ago| now.checked_sub_signed(ago))
                .unwrap_or(DateTime::<Utc>::UNIX_EPOCH),
        };
        at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(at) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self::At(at.to_utc()));
        }
        parse_seconds(text)
            .ok()
            .filter(|_| !text.is_empty())
            .and_then(|seconds| i64::try_from(seconds).ok())
            .map(Self::SecondsAgo)
            .ok_or_else(|| {
                format!("`{text}` is neither a time (2026-12-01T10:00:00Z) nor how long ago (10m)")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_an_offset_becomes_utc() {
        let moment: Moment = "2026-12-01T12:00:00.25+02:00".parse().expect("parses");
        assert_eq!(
            moment.to_rfc3339(DateTime::UNIX_EPOCH),
            "2026-12-01T10:00:00.250Z"
        );
    }

    #[test]
    fn how_long_ago_counts_back_from_now() {
        let now = DateTime::from_timestamp(1_000, 0).expect("in range");
        let moment: Moment = "10m".parse().expect("parses");
        assert_eq!(moment.to_rfc3339(now), "1970-01-01T00:06:40Z");
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in ["", "yesterday", "2026-12-01", "-5m"] {
            assert!(wrong.parse::<Moment>().is_err(), "{wrong:?} was accepted");
        }
    }
}
