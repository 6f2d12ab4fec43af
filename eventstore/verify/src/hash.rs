//! How events are hashed and linked.
//!
//! Three BLAKE3 keys, one for each purpose, so that no header can ever be passed off as a payload
//! or a genesis:
//!
//! ```text
//! commitment = derive_key("fluxvm ledger v1 payload")( salt[32] ‖ payload bytes as stored )
//! event      = derive_key("fluxvm ledger v1 event")( prev[32] ‖ encoded header )
//! genesis    = derive_key("fluxvm ledger v1 genesis")( encoded genesis )       = prev of event 1
//! ```
//!
//! The header holds the commitment and not the payload: a payload can be erased together with its
//! salt, and the chain still verifies. The salt is what then keeps a short payload from being
//! guessed back.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use blake3::hazmat::ContextKey;
use blake3::hazmat::HasherExt as _;
use blake3::hazmat::hash_derive_key_context;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error as _;

use crate::Header;

/// The BLAKE3 context of payload commitments.
pub(crate) const PAYLOAD_CONTEXT: &str = "fluxvm ledger v1 payload";
/// The BLAKE3 context of event hashes.
pub(crate) const EVENT_CONTEXT: &str = "fluxvm ledger v1 event";
/// The BLAKE3 context of the genesis hash.
pub(crate) const GENESIS_CONTEXT: &str = "fluxvm ledger v1 genesis";

static PAYLOAD_KEY: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context(PAYLOAD_CONTEXT));
static EVENT_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(EVENT_CONTEXT));
static GENESIS_KEY: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context(GENESIS_CONTEXT));

/// The hash of an event, which the next event names as its predecessor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHash([u8; 32]);

/// A text that is not 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 64 lower-case hexadecimal digits, not {text:?}")]
pub struct HashParseError {
    text: String,
}

impl EventHash {
    /// The hash with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> EventHash {
        EventHash(bytes)
    }

    /// The thirty-two bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventHash({self})")
    }
}

impl FromStr for EventHash {
    type Err = HashParseError;

    fn from_str(text: &str) -> Result<EventHash, HashParseError> {
        parse_hex32(text)
            .map(EventHash)
            .ok_or_else(|| HashParseError {
                text: text.to_owned(),
            })
    }
}

impl Serialize for EventHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EventHash, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Thirty-two bytes from lower-case hexadecimal digits.
pub(crate) fn parse_hex32(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

/// What a header holds in place of its payload.
pub fn payload_commitment(salt: &[u8; 32], payload: &[u8]) -> [u8; 32] {
    keyed(&PAYLOAD_KEY, salt, payload)
}

/// The hash of the event with this header behind the event with the hash `prev`.
pub fn event_hash(prev: EventHash, header: &Header) -> EventHash {
    event_hash_of_encoded(prev, &header.encode())
}

/// The same as [`event_hash`] for a header that is at hand in its encoded form.
pub fn event_hash_of_encoded(prev: EventHash, encoded_header: &[u8]) -> EventHash {
    EventHash(keyed(&EVENT_KEY, &prev.0, encoded_header))
}

/// The hash of an encoded genesis.
pub(crate) fn genesis_hash_of_encoded(encoded_genesis: &[u8]) -> EventHash {
    EventHash(keyed(&GENESIS_KEY, &[], encoded_genesis))
}

fn keyed(key: &ContextKey, first: &[u8], second: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_from_context_key(key);
    hasher.update(first);
    hasher.update(second);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_keys_hash_as_the_documented_derivation() {
        let expected = blake3::derive_key(PAYLOAD_CONTEXT, b"01234567890123456789012345678901pay");
        let commitment = payload_commitment(b"01234567890123456789012345678901", b"pay");
        assert_eq!(commitment, expected);
        let expected = blake3::derive_key(GENESIS_CONTEXT, b"abc");
        assert_eq!(genesis_hash_of_encoded(b"abc").as_bytes(), &expected);
        let expected = blake3::derive_key(EVENT_CONTEXT, &[[7; 32].as_slice(), b"h"].concat());
        let prev = EventHash::from_bytes([7; 32]);
        assert_eq!(event_hash_of_encoded(prev, b"h").as_bytes(), &expected);
    }

    #[test]
    fn a_hash_has_one_text_form() {
        let hash = EventHash::from_bytes([0xab; 32]);
        assert_eq!(hash.to_string().parse::<EventHash>(), Ok(hash));
        assert!(
            hash.to_string()
                .to_uppercase()
                .parse::<EventHash>()
                .is_err()
        );
        assert!("abcd".parse::<EventHash>().is_err());
    }
}
