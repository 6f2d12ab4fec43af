//! A [`World`] as bytes, so that a start need not fold everything again.
//!
//! The bytes are JSON and hold the state and nothing derived from it: a world that was read back is
//! equal to the one that was written, and folds on in the same way. They mean something to one version
//! of the folds only, [`FOLDS_VERSION`], and are never a record: the ledger is.

use crate::world::World;

/// Names the folds: a digest of this crate's source, taken when it is built. Whatever is changed in a
/// fold, in a state or in how an event is read, it is another one, and no snapshot that an earlier
/// version took is used. Nobody has to remember it.
pub const FOLDS_VERSION: [u8; 32] = *include_bytes!(concat!(env!("OUT_DIR"), "/folds-version"));

impl World {
    /// The state as bytes.
    ///
    /// # Errors
    ///
    /// When the state cannot be expressed in JSON, which its types rule out.
    pub fn to_snapshot(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// The state that these bytes are of.
    ///
    /// # Errors
    ///
    /// When they are not those of a state, as this version writes it.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}
