//! Checkpoints: the text in which a key says that the ledger had this many events and this root.
//!
//! ```text
//! origin "\n" size "\n" base64( root 32 ) "\n"
//! ```
//!
//! The text of a signed note, as C2SP writes checkpoints of transparency logs, with no further
//! lines: a line that some readers skip is a line that says different things to different readers.

use std::fmt;
use std::str::FromStr;

use crate::Position;
use crate::SignedNote;
use crate::TreeHash;
use crate::note::NoteError;

/// What a checkpoint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The ledger's name.
    pub origin: String,
    /// How many events the ledger had.
    pub size: Position,
    /// The root of the tree over them.
    pub root: TreeHash,
}

/// Why a text is not a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// It is not a signed note.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The note is not a checkpoint.
    #[error("a checkpoint is three lines: an origin, a size and the base64 of a root")]
    Layout,
}

impl FromStr for Checkpoint {
    type Err = CheckpointError;

    fn from_str(text: &str) -> Result<Checkpoint, CheckpointError> {
        read(text).ok_or(CheckpointError::Layout)
    }
}

fn read(text: &str) -> Option<Checkpoint> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    let (origin, size, root) = (lines.next()?, lines.next()?, lines.next()?);
    if origin.is_empty() || lines.next().is_some() {
        return None;
    }
    Some(Checkpoint {
        origin: origin.to_owned(),
        size: Position::new(parse_decimal(size)?),
        root: TreeHash::parse_base64(root)?,
    })
}

/// A number in the one way of writing it: no sign, no zero in front.
pub(crate) fn parse_decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl fmt::Display for Checkpoint {
    /// The text that is signed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (origin, size) = (&self.origin, self.size);
        write!(f, "{origin}\n{size}\n{}\n", self.root.to_base64())
    }
}

/// A checkpoint together with the note that says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCheckpoint {
    checkpoint: Checkpoint,
    note: SignedNote,
}

impl SignedCheckpoint {
    /// The checkpoint that a note says, whether or not anyone signed it.
    pub fn of_note(note: SignedNote) -> Result<SignedCheckpoint, CheckpointError> {
        let checkpoint = note.text().parse()?;
        Ok(SignedCheckpoint { checkpoint, note })
    }

    /// What it says.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The note, with its signatures.
    pub fn note(&self) -> &SignedNote {
        &self.note
    }

    /// How many events it is about.
    pub fn size(&self) -> Position {
        self.checkpoint.size
    }

    /// The root that it names.
    pub fn root(&self) -> TreeHash {
        self.checkpoint.root
    }
}

impl FromStr for SignedCheckpoint {
    type Err = CheckpointError;

    fn from_str(note: &str) -> Result<SignedCheckpoint, CheckpointError> {
        SignedCheckpoint::of_note(SignedNote::parse(note)?)
    }
}

impl fmt::Display for SignedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.note.fmt(f)
    }
}
