//! What the store says of a sealed stream.

use fluxvm_verify::StreamName;

use super::SealId;
use crate::keys;
use crate::store::Write;

/// What a stream's note in the store begins with while its key is there.
const ALIVE: u8 = 0;
/// The same once its key was destroyed.
const DESTROYED: u8 = 1;

/// What the store says of a sealed stream: `y ‖ id 16` → `state 1 ‖ seq 8 ‖ check 16 ‖ stream`.
pub(super) struct Note {
    pub(super) is_destroyed: bool,
    /// The event that records the destruction; zero while the key is there.
    pub(super) seq: u64,
    pub(super) check: [u8; 16],
    pub(super) stream: StreamName,
}

impl Note {
    pub(super) fn encode(&self, id: SealId) -> Write {
        let state = match self.is_destroyed {
            true => DESTROYED,
            false => ALIVE,
        };
        let seq = self.seq.to_be_bytes();
        let value = [
            &[state],
            seq.as_slice(),
            &self.check,
            self.stream.as_str().as_bytes(),
        ];
        (keys::seal(id.as_bytes()).to_vec(), value.concat())
    }

    pub(super) fn decode(key: &[u8], value: &[u8]) -> Option<(SealId, Note)> {
        let id = *key.last_chunk::<16>().filter(|_| key.len() == 17)?;
        let (state, rest) = value.split_first()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (check, stream) = rest.split_first_chunk::<16>()?;
        let note = Note {
            is_destroyed: match *state {
                ALIVE => false,
                DESTROYED => true,
                _ => return None,
            },
            seq: u64::from_be_bytes(*seq),
            check: *check,
            stream: StreamName::parse(std::str::from_utf8(stream).ok()?).ok()?,
        };
        Some((SealId::from_bytes(id), note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_and_no_other_bytes_are_one() {
        let note = Note {
            is_destroyed: true,
            seq: 9,
            check: [5; 16],
            stream: StreamName::parse("session/a").unwrap(),
        };
        let (key, value) = note.encode(SealId::from_bytes([6; 16]));
        let (id, read) = Note::decode(&key, &value).unwrap();
        assert_eq!(
            (id, read.is_destroyed, read.seq),
            (SealId::from_bytes([6; 16]), true, 9)
        );
        assert_eq!((read.check, read.stream), (note.check, note.stream));
        for length in 0..26 {
            assert!(Note::decode(&key, &value[..length]).is_none(), "{length}");
        }
        assert!(Note::decode(&key[1..], &value).is_none());
        assert!(Note::decode(&key, &[&[2], &value[1..]].concat()).is_none());
    }
}
