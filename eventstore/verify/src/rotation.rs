//! How the key that speaks for a ledger is handed on.
//!
//! The first key stands in the genesis. A new one is named by an event, signed with the old one:
//!
//! ```text
//! stream  ledger
//! kind    ledger.key_rotated, schema 1
//! payload {"checkpoint":"<note>","new_vkey":"…","old_vkey":"…","signature":"<base64>"}
//!
//! signature  by the old key: "fluxvm ledger v1 rotation\n" ‖ ledger id ‖ "\n" ‖ new vkey ‖ "\n"
//! checkpoint by the old key over all events before this one: the old key's last word
//! ```
//!
//! A checkpoint of a given size has exactly one key that may sign it: the one that the last
//! rotation among its events named. A newer key proves nothing about an older state, or whoever
//! gets hold of today's key could write yesterday's history anew.

use serde::Deserialize;
use serde::Serialize;

use crate::Genesis;
use crate::KeyError;
use crate::LedgerId;
use crate::NoteVerdict;
use crate::Position;
use crate::RecordedEvent;
use crate::SignedCheckpoint;
use crate::VerifierKey;

/// The stream of the ledger's own events.
pub const LEDGER_STREAM: &str = "ledger";
/// The kind of the event that hands the key on.
pub const KEY_ROTATED_KIND: &str = "ledger.key_rotated";
/// The schema of its payload.
pub const KEY_ROTATED_SCHEMA: u16 = 1;

/// The payload of the event that hands the key on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRotated {
    /// The signed checkpoint of all events before.
    pub checkpoint: String,
    /// The key from here on.
    pub new_vkey: String,
    /// The key until here.
    pub old_vkey: String,
    /// The old key's signature over the new one, base64.
    pub signature: String,
}

/// What the old key signs to name the new one.
pub fn rotation_message(ledger_id: LedgerId, new_vkey: &str) -> String {
    format!("fluxvm ledger v1 rotation\n{ledger_id}\n{new_vkey}\n")
}

/// Whether the event hands the key on. Its stream counts: other streams may hold what they like.
pub fn is_rotation(event: &RecordedEvent) -> bool {
    &*event.header.stream == LEDGER_STREAM && &*event.header.kind == KEY_ROTATED_KIND
}

/// Why a rotation is not to be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RotationError {
    /// The payload was erased, or is not that of a rotation.
    #[error("the payload cannot be read as that of a rotation")]
    Payload,
    /// It hands on a key that was not the ledger's.
    #[error("it hands on {found}, the ledger's key was {expected}")]
    OldKey {
        /// The key that it hands on.
        found: String,
        /// The key that it should.
        expected: String,
    },
    /// The new key is none, or is one for another origin.
    #[error("the new key is not one of this ledger: {0}")]
    NewKey(String),
    /// The old key did not sign it.
    #[error("the signature over the new key is not the old key's")]
    Signature,
    /// The checkpoint in it is not the old key's over all events before it.
    #[error("the checkpoint in it is not the old key's over all events before it")]
    Seal,
}

/// The keys that spoke for a ledger, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChain {
    ledger_id: LedgerId,
    origin: String,
    /// From which size on each key speaks. The first speaks from the start.
    keys: Vec<(Position, VerifierKey)>,
}

impl KeyChain {
    /// The chain that begins with the key in the genesis.
    pub fn new(genesis: &Genesis) -> Result<KeyChain, KeyError> {
        Ok(KeyChain {
            ledger_id: genesis.ledger_id,
            origin: genesis.origin.clone(),
            keys: vec![(Position::START, genesis.vkey.parse()?)],
        })
    }

    /// Follows a rotation, and returns the checkpoint in it.
    pub fn follow(&mut self, event: &RecordedEvent) -> Result<SignedCheckpoint, RotationError> {
        let payload = event.payload_bytes().ok_or(RotationError::Payload)?;
        let rotated: KeyRotated =
            serde_json::from_slice(payload).map_err(|_| RotationError::Payload)?;
        if event.header.schema != KEY_ROTATED_SCHEMA {
            return Err(RotationError::Payload);
        }
        let old = self.current().ok_or(RotationError::Payload)?;
        if rotated.old_vkey != old.to_string() {
            return Err(RotationError::OldKey {
                found: rotated.old_vkey,
                expected: old.to_string(),
            });
        }
        let new: VerifierKey = match rotated.new_vkey.parse::<VerifierKey>() {
            Ok(new) if new.name() == self.origin && new != *old => new,
            Ok(_) => return Err(RotationError::NewKey(rotated.new_vkey)),
            Err(e) => return Err(RotationError::NewKey(e.to_string())),
        };
        let message = rotation_message(self.ledger_id, &rotated.new_vkey);
        let signature = decode_base64(&rotated.signature);
        if !signature.is_some_and(|signature| old.verifies(message.as_bytes(), &signature)) {
            return Err(RotationError::Signature);
        }
        let seal: Result<SignedCheckpoint, _> = rotated.checkpoint.parse();
        let seal = seal.map_err(|_| RotationError::Seal)?;
        let holds = seal.checkpoint().origin == self.origin
            && seal.size().next_seq() == event.seq()
            && seal.note().verdict(old) == NoteVerdict::Signed;
        if !holds {
            return Err(RotationError::Seal);
        }
        self.keys.push((event.seq().position(), new));
        Ok(seal)
    }

    /// The key that speaks for a ledger of this size.
    pub fn key_at(&self, size: Position) -> Option<&VerifierKey> {
        let mut newest_first = self.keys.iter().rev();
        newest_first
            .find(|(from, _)| *from <= size)
            .map(|(_, key)| key)
    }

    /// The newest key.
    pub fn current(&self) -> Option<&VerifierKey> {
        self.keys.last().map(|(_, key)| key)
    }

    /// All keys, the oldest first, each with the size from which on it speaks.
    pub fn keys(&self) -> &[(Position, VerifierKey)] {
        &self.keys
    }

    /// The ledger's name, which all its keys and checkpoints bear.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}
