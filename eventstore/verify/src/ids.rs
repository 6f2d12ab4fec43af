//! Numbers and identifiers, each a type of its own.
//!
//! A sequence number, a count of events and a version within a stream are all `u64` on disk and
//! must never be mistaken for one another, so none of them is a `u64` in a signature.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

/// The place of an event in the whole ledger. Starts at 1 and has no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GlobalSeq(NonZeroU64);

impl GlobalSeq {
    /// The first event of every ledger.
    pub const FIRST: GlobalSeq = GlobalSeq(NonZeroU64::MIN);

    /// The sequence number `seq`, or `None` for zero.
    pub const fn new(seq: u64) -> Option<GlobalSeq> {
        match NonZeroU64::new(seq) {
            Some(seq) => Some(GlobalSeq(seq)),
            None => None,
        }
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number after this one.
    pub const fn next(self) -> GlobalSeq {
        GlobalSeq(self.0.saturating_add(1))
    }

    /// The point just after this event.
    pub const fn position(self) -> Position {
        Position(self.get())
    }
}

impl fmt::Display for GlobalSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point between two events: how many events of the ledger lie before it. Zero is the start.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// Before the first event.
    pub const START: Position = Position(0);

    /// The point with `events` events before it.
    pub const fn new(events: u64) -> Position {
        Position(events)
    }

    /// How many events lie before this point.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The event just before this point; none at the start.
    pub const fn last_seq(self) -> Option<GlobalSeq> {
        GlobalSeq::new(self.0)
    }

    /// The event just after this point, whether it exists yet or not.
    pub const fn next_seq(self) -> GlobalSeq {
        match GlobalSeq::new(self.0.saturating_add(1)) {
            Some(seq) => seq,
            None => GlobalSeq::FIRST,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The place of an event within its stream. Starts at 1 and has no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamVersion(NonZeroU64);

impl StreamVersion {
    /// The version of a stream's first event.
    pub const FIRST: StreamVersion = StreamVersion(NonZeroU64::MIN);

    /// The version `version`, or `None` for zero.
    pub const fn new(version: u64) -> Option<StreamVersion> {
        match NonZeroU64::new(version) {
            Some(version) => Some(StreamVersion(version)),
            None => None,
        }
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The version after this one.
    pub const fn next(self) -> StreamVersion {
        StreamVersion(self.0.saturating_add(1))
    }

    /// The version that the next event of a stream at `current` gets.
    pub const fn after(current: Option<StreamVersion>) -> StreamVersion {
        match current {
            Some(version) => version.next(),
            None => StreamVersion::FIRST,
        }
    }
}

impl fmt::Display for StreamVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// The identifier with this UUID.
            pub const fn new(uuid: Uuid) -> $name {
                $name(uuid)
            }

            /// The UUID itself.
            pub const fn uuid(self) -> Uuid {
                self.0
            }

            /// The sixteen bytes as they are hashed and stored.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// The identifier with these sixteen bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> $name {
                $name(Uuid::from_bytes(bytes))
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> $name {
                $name(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<$name, uuid::Error> {
                Uuid::try_parse(text).map($name)
            }
        }
    };
}

uuid_id! {
    /// Names one event for ever, wherever it is copied to.
    EventId
}
uuid_id! {
    /// Names one append: the same one twice is answered with the first result and writes nothing.
    CommandId
}
uuid_id! {
    /// Ties together everything that one request of a caller set off.
    CorrelationId
}
uuid_id! {
    /// Names one ledger. It is part of the genesis, so every hash depends on it.
    LedgerId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_number_and_a_version_are_never_zero() {
        assert_eq!(GlobalSeq::new(0), None);
        assert_eq!(StreamVersion::new(0), None);
        assert!(serde_json::from_str::<GlobalSeq>("0").is_err());
        assert_eq!(serde_json::from_str::<GlobalSeq>("7").unwrap().get(), 7);
    }

    #[test]
    fn a_position_lies_between_its_last_and_its_next_event() {
        assert_eq!(Position::START.last_seq(), None);
        assert_eq!(Position::START.next_seq(), GlobalSeq::FIRST);
        let seq = GlobalSeq::new(41).unwrap();
        assert_eq!(seq.position().last_seq(), Some(seq));
        assert_eq!(seq.position().next_seq(), seq.next());
        assert_eq!(StreamVersion::after(None), StreamVersion::FIRST);
    }

    #[test]
    fn identifiers_read_back_what_they_print() {
        let id = EventId::from_bytes([7; 16]);
        assert_eq!(id.to_string().parse::<EventId>().unwrap(), id);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
    }
}
