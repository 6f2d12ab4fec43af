//! What a ledger begins with.
//!
//! ```text
//! ledger_id   16
//! origin      u16 n, n bytes
//! created_at  u64     nanoseconds since the Unix epoch
//! vkey        u16 n, n bytes
//! ```
//!
//! All integers are big-endian. The hash of these bytes stands where the first event names its
//! predecessor, so every event hash depends on which ledger it belongs to and on which key speaks
//! for it.

use crate::EventHash;
use crate::LedgerId;
use crate::RecordedAt;
use crate::hash::genesis_hash_of_encoded;
use crate::header::Reader;
use crate::header::put_text;

/// The longest origin in bytes.
const ORIGIN_BYTES_MAX: usize = 255;
/// The longest verifier key in bytes: an origin, eight digits, a base64 key, with room to grow.
const VKEY_BYTES_MAX: usize = 4096;

/// The facts that a ledger is created with and that can never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Names the ledger.
    pub ledger_id: LedgerId,
    /// Who runs the ledger: the name under which its checkpoints are signed.
    pub origin: String,
    /// When the ledger was created.
    pub created_at: RecordedAt,
    /// The verifier key of the key that signs for this ledger, as C2SP signed notes write it.
    pub vkey: String,
}

/// Bytes that are not a genesis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenesisError {
    /// The origin is empty, too long, or holds white space, a control character or a plus sign.
    #[error("an origin is 1 to 255 bytes without white space and `+`, not {origin:?}")]
    Origin {
        /// What was given.
        origin: String,
    },
    /// The verifier key is empty, too long or not one line.
    #[error("a verifier key is one line of at most 4096 bytes, not {vkey:?}")]
    Vkey {
        /// What was given.
        vkey: String,
    },
    /// The bytes do not have the layout of a genesis.
    #[error("the bytes do not have the layout of a genesis")]
    Layout,
}

impl Genesis {
    /// Refuses an origin or a key that signed notes could not carry.
    pub fn check(&self) -> Result<(), GenesisError> {
        let origin_ok = (1..=ORIGIN_BYTES_MAX).contains(&self.origin.len())
            && !self
                .origin
                .chars()
                .any(|c| c.is_whitespace() || c.is_control() || c == '+');
        if !origin_ok {
            return Err(GenesisError::Origin {
                origin: self.origin.clone(),
            });
        }
        let vkey_ok = (1..=VKEY_BYTES_MAX).contains(&self.vkey.len())
            && !self
                .vkey
                .chars()
                .any(|c| c.is_whitespace() || c.is_control());
        if !vkey_ok {
            return Err(GenesisError::Vkey {
                vkey: self.vkey.clone(),
            });
        }
        Ok(())
    }

    /// The bytes that are stored and hashed.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(28 + self.origin.len() + self.vkey.len());
        out.extend_from_slice(self.ledger_id.as_bytes());
        put_text(&mut out, &self.origin);
        out.extend_from_slice(&self.created_at.unix_ns().to_be_bytes());
        put_text(&mut out, &self.vkey);
        out
    }

    /// Reads what [`Genesis::encode`] wrote; a byte too many or too few is refused.
    pub fn decode(bytes: &[u8]) -> Result<Genesis, GenesisError> {
        let mut reader = Reader::new(bytes);
        let genesis = read(&mut reader).filter(|_| reader.is_empty());
        let genesis = genesis.ok_or(GenesisError::Layout)?;
        genesis.check()?;
        Ok(genesis)
    }

    /// The hash that the first event names as its predecessor.
    pub fn hash(&self) -> EventHash {
        genesis_hash_of_encoded(&self.encode())
    }
}

fn read(reader: &mut Reader<'_>) -> Option<Genesis> {
    Some(Genesis {
        ledger_id: LedgerId::from_bytes(reader.array()?),
        origin: reader.text()?.to_owned(),
        created_at: RecordedAt::from_unix_ns(reader.u64()?),
        vkey: reader.text()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn genesis() -> Genesis {
        Genesis {
            ledger_id: LedgerId::from_bytes([1; 16]),
            origin: "flux.example/ledger".to_owned(),
            created_at: RecordedAt::from_unix_ns(5),
            vkey: "flux.example/ledger+00000000+AQ==".to_owned(),
        }
    }

    #[test]
    fn a_genesis_reads_back_and_nothing_shorter_or_longer_does() {
        let bytes = genesis().encode();
        assert_eq!(Genesis::decode(&bytes), Ok(genesis()));
        for cut in 0..bytes.len() {
            assert!(Genesis::decode(&bytes[..cut]).is_err());
        }
        assert!(Genesis::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn the_hash_depends_on_every_field() {
        let base = genesis().hash();
        let mut others = vec![genesis(), genesis(), genesis(), genesis()];
        others[0].ledger_id = LedgerId::from_bytes([2; 16]);
        others[1].origin.push('x');
        others[2].created_at = RecordedAt::from_unix_ns(6);
        others[3].vkey.push('x');
        for other in others {
            assert_ne!(other.hash(), base);
        }
    }

    #[test]
    fn an_origin_that_a_signed_note_could_not_carry_is_refused() {
        for origin in ["", "a b", "a+b", "a\nb"] {
            let genesis = Genesis {
                origin: origin.to_owned(),
                ..genesis()
            };
            assert!(matches!(genesis.check(), Err(GenesisError::Origin { .. })));
        }
    }
}
