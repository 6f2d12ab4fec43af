//! The list of what is in one layer, beside the layer's tree.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::path::LayerPath;

/// Bumped when the same text means something else.
const FORMAT: u32 = 1;
/// Room for a million paths of usual length: more is no manifest of ours.
const MANIFEST_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Everything in one layer. A layer that says something of a path has every folder above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) entries: BTreeMap<LayerPath, Entry>,
}

/// The text form.
#[derive(Serialize, Deserialize)]
struct Text<E> {
    format: u32,
    entries: E,
}

impl Manifest {
    /// Writes it. The file that is returned is not synced.
    pub(crate) fn write(&self, path: &Path) -> io::Result<File> {
        let mut file = BufWriter::new(File::create_new(path)?);
        let text = Text {
            format: FORMAT,
            entries: &self.entries,
        };
        serde_json::to_writer(&mut file, &text).map_err(io::Error::from)?;
        file.into_inner()
            .map_err(std::io::IntoInnerError::into_error)
    }

    /// Reads it back.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        if file.metadata()?.len() > MANIFEST_BYTES_MAX {
            return Err(invalid("the manifest is too large".to_owned()));
        }
        let mut text = Vec::new();
        io::Read::read_to_end(&mut BufReader::new(file), &mut text)?;
        let text: Text<BTreeMap<LayerPath, Entry>> =
            serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        if text.format != FORMAT {
            return Err(invalid("the manifest has an unknown format".to_owned()));
        }
        Ok(Self {
            entries: text.entries,
        })
    }
}
