//! Sealing: what belongs to one stream lies encrypted under a key of its own, so that it can be
//! erased everywhere at once by destroying thirty-two bytes.
//!
//! Only what lies at rest is sealed. The header's commitment is to the payload itself, so chain, tree
//! and proofs are the same whether or not an event is sealed, and an export holds opened payloads:
//! a verifier needs no key.
//!
//! ```text
//! id      = the first 16 of BLAKE3 derive_key "fluxvm ledger v1 seal id" ( ledger_id 16 ‖ stream )
//! cipher  = XChaCha20-Poly1305 under derive_key "fluxvm ledger v1 seal cipher" ( key )
//! nonce   = the first 24 of keyed BLAKE3 ( purpose 1 ‖ name 32 ),
//!           its key derive_key "fluxvm ledger v1 seal nonce" ( key )
//! AAD     = purpose 1 ‖ name 32
//! place   = keyed BLAKE3 ( digest ), its key derive_key "fluxvm ledger v1 seal place" ( key )
//! check   = the first 16 of derive_key "fluxvm ledger v1 seal check" ( key )
//! ```
//!
//! The purpose is 0 for an event, whose name is its payload commitment, and 1 for a blob, whose name
//! is the digest of its bytes. A name stands for one content, salt included, so that a nonce comes
//! back only with the very bytes that it was used for. The commitment is part of the header, and the
//! header of the hash: a sealed payload opens in its own place only.
//!
//! Which streams are sealed stands in the store, in the batch of their first event. A key that should
//! be there and is not is an error that names the stream. Only a recorded destruction erases.

mod files;
mod key;
mod note;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;

use fluxvm_verify::Genesis;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::StreamName;

use crate::AppendError;
use crate::Environment;
use crate::OpenError;
use crate::keys;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::Write;

pub(crate) use key::SealId;
pub(crate) use key::SealKey;
pub(crate) use key::TAG_BYTES;
use note::Note;

/// Where the keys of sealed streams lie, and whether new streams get one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealOptions {
    /// The folder of the keys, mode 0700. Made when the first key is.
    pub keys_dir: PathBuf,
    /// What happens to streams that begin from now on. One that is sealed stays so either way.
    pub new_streams: NewStreams,
}

/// What happens to streams that begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewStreams {
    /// They are sealed, where their appends ask for it.
    Sealed,
    /// They are not.
    Open,
}

/// What is known of a stream's key.
#[derive(Clone)]
pub(crate) enum Held {
    Alive(Arc<SealKey>),
    Destroyed,
}

struct Entry {
    held: Held,
    /// The store says that the stream is sealed.
    is_noted: bool,
}

/// All keys.
pub(crate) struct Seals {
    options: Option<SealOptions>,
    ledger_id: [u8; 16],
    environment: Environment,
    entries: RwLock<HashMap<SealId, Entry>>,
    /// The streams whose keys were destroyed, and whose events do not say so.
    found_destroyed: Vec<StreamName>,
    /// One key is made at a time, so that two writers of one new stream get the same.
    making: Mutex<()>,
}

impl Seals {
    /// The keys of all streams that the store says are sealed.
    pub(crate) fn open(
        options: Option<SealOptions>,
        genesis: &Genesis,
        store: &dyn Store,
        environment: &Environment,
    ) -> Result<Seals, OpenError> {
        let mut seals = Seals {
            options,
            ledger_id: *genesis.ledger_id.as_bytes(),
            environment: environment.clone(),
            entries: RwLock::default(),
            found_destroyed: Vec::new(),
            making: Mutex::default(),
        };
        let mut entries = HashMap::new();
        for entry in store.range(keys::SEALS.0..keys::SEALS.1) {
            let (key, value) = entry.map_err(|StoreError(reason)| OpenError::Store { reason })?;
            let (id, note) = Note::decode(&key, &value).ok_or_else(|| OpenError::Store {
                reason: "the note of a sealed stream is damaged".to_owned(),
            })?;
            let held = match note.is_destroyed {
                true => Held::Destroyed,
                false => seals.load(id, &note)?,
            };
            let is_noted = true;
            if !note.is_destroyed && matches!(held, Held::Destroyed) {
                seals.found_destroyed.push(note.stream);
            }
            entries.insert(id, Entry { held, is_noted });
        }
        seals.entries_mut().extend(entries);
        Ok(seals)
    }

    /// The streams whose keys were found to be destroyed without an event that ordered it.
    pub(crate) fn found_destroyed(&self) -> &[StreamName] {
        &self.found_destroyed
    }

    fn load(&self, id: SealId, note: &Note) -> Result<Held, OpenError> {
        let stream = &note.stream;
        let refused = |path: PathBuf, reason| OpenError::SealKey {
            stream: stream.clone(),
            path,
            reason,
        };
        let Some(options) = &self.options else {
            let reason = "this program was given no folder for such keys";
            return Err(refused(PathBuf::new(), reason));
        };
        let path = files::path(&options.keys_dir, id);
        match files::load(&path, stream).map_err(|reason| refused(path.clone(), reason))? {
            files::Found::Nothing => Err(refused(
                path,
                "it is missing, and nothing says that it was destroyed: put it back",
            )),
            files::Found::Destroyed => {
                tracing::error!(
                    %stream,
                    "its key was destroyed, and nothing in this ledger ordered that: by someone who may \
                     write to the keys' folder, or after this copy of the store was made"
                );
                Ok(Held::Destroyed)
            }
            files::Found::Key(key) => {
                let key = SealKey::new(id, &key);
                match key.check() == note.check {
                    true => Ok(Held::Alive(Arc::new(key))),
                    false => Err(refused(
                        path,
                        "it is not the one that the stream is sealed with",
                    )),
                }
            }
        }
    }

    /// The name of the stream's key, whether or not there is one.
    pub(crate) fn id_of(&self, stream: &StreamName) -> SealId {
        let mut hasher = blake3::Hasher::new_derive_key("fluxvm ledger v1 seal id");
        hasher.update(&self.ledger_id);
        hasher.update(stream.as_str().as_bytes());
        let hash = hasher.finalize();
        SealId::from_bytes(*hash.as_bytes().first_chunk().unwrap_or(&[0; 16]))
    }

    /// What is known of a key; `None` where the stream is not sealed.
    pub(crate) fn get(&self, id: SealId) -> Option<Held> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&id).map(|entry| entry.held.clone())
    }

    /// Whether a key for the stream would have to be read or made, which takes files.
    pub(crate) fn needs_files(&self, stream: &StreamName) -> bool {
        self.seals_new() && self.get(self.id_of(stream)).is_none()
    }

    /// Whether anything is sealed, or may be.
    pub(crate) fn are_in_use(&self) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        self.seals_new() || !entries.is_empty()
    }

    fn seals_new(&self) -> bool {
        let options = self.options.as_ref();
        options.is_some_and(|options| options.new_streams == NewStreams::Sealed)
    }

    /// The key that what belongs to `stream` is sealed with; `None` where it is not sealed. A stream
    /// that has events is never sealed from its middle on.
    pub(crate) fn key_for(
        &self,
        stream: &StreamName,
        is_new: impl Fn() -> bool,
    ) -> Result<Option<Arc<SealKey>>, AppendError> {
        let id = self.id_of(stream);
        if let Some(held) = self.get(id) {
            return alive(held, stream).map(Some);
        }
        let Some(options) = self
            .options
            .as_ref()
            .filter(|_| self.seals_new() && is_new())
        else {
            return Ok(None);
        };
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = self.get(id) {
            return alive(held, stream).map(Some);
        }
        let made = files::load_or_make(&options.keys_dir, id, stream, &self.environment);
        let key = made.map_err(|reason| AppendError::SealKey {
            reason: reason.into(),
        })?;
        let key = Arc::new(SealKey::new(id, &key));
        let entry = Entry {
            held: Held::Alive(Arc::clone(&key)),
            is_noted: false,
        };
        self.entries_mut().insert(id, entry);
        Ok(Some(key))
    }

    /// What has to be written with the first thing that is sealed with this key. The committer asks.
    pub(crate) fn note_first(&self, key: &SealKey, stream: &StreamName) -> Option<Write> {
        let mut entries = self.entries_mut();
        let entry = entries.get_mut(&key.id).filter(|entry| !entry.is_noted)?;
        entry.is_noted = true;
        let note = Note {
            is_destroyed: false,
            seq: 0,
            check: key.check(),
            stream: stream.clone(),
        };
        Some(note.encode(key.id))
    }

    /// What has to be written when the stream's key is to go, recorded by event `seq`; `None` where
    /// there is no key, or none any more.
    pub(crate) fn note_destroyed(&self, stream: &StreamName, seq: GlobalSeq) -> Option<Write> {
        let id = self.id_of(stream);
        let Some(Held::Alive(key)) = self.get(id) else {
            return None;
        };
        let note = Note {
            is_destroyed: true,
            seq: seq.get(),
            check: key.check(),
            stream: stream.clone(),
        };
        Some(note.encode(id))
    }

    /// Forgets the key and destroys its file, once it is durable that it is to go.
    pub(crate) fn destroy(&self, stream: &StreamName) -> Result<(), String> {
        let id = self.id_of(stream);
        let entry = Entry {
            held: Held::Destroyed,
            is_noted: true,
        };
        self.entries_mut().insert(id, entry);
        match &self.options {
            Some(options) => files::destroy(&options.keys_dir, id, stream, &self.environment),
            None => Ok(()),
        }
    }

    /// Destroys the files of keys that a run which ended too early had left. Called when the ledger is
    /// known to be this one.
    pub(crate) fn finish_destroying(&self, store: &dyn Store) -> Result<(), StoreError> {
        let Some(options) = &self.options else {
            return Ok(());
        };
        for entry in store.range(keys::SEALS.0..keys::SEALS.1) {
            let (key, value) = entry?;
            if let Some((id, note)) = Note::decode(&key, &value)
                && note.is_destroyed
                && !files::is_destroyed(&files::path(&options.keys_dir, id))
            {
                let destroyed =
                    files::destroy(&options.keys_dir, id, &note.stream, &self.environment);
                destroyed.map_err(StoreError)?;
            }
        }
        Ok(())
    }

    fn entries_mut(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<SealId, Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many keys the store says are destroyed.
pub(crate) fn destroyed_count(store: &dyn Store) -> Result<u64, StoreError> {
    let mut destroyed = 0;
    for entry in store.range(keys::SEALS.0..keys::SEALS.1) {
        let (key, value) = entry?;
        let note = Note::decode(&key, &value);
        destroyed += u64::from(note.is_some_and(|(_, note)| note.is_destroyed));
    }
    Ok(destroyed)
}

fn alive(held: Held, stream: &StreamName) -> Result<Arc<SealKey>, AppendError> {
    match held {
        Held::Alive(key) => Ok(key),
        Held::Destroyed => Err(AppendError::KeyDestroyed {
            stream: stream.clone(),
        }),
    }
}
