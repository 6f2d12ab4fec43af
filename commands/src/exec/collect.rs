//! One command's output as it arrives: digested whole, kept up to a limit.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fluxvm_projections::OutputRecord;

use crate::limits::EXEC_OUTPUT_BYTES_MAX;
use crate::limits::EXEC_OUTPUT_BYTES_TOTAL_MAX;

/// The memory that all running commands share for their outputs.
#[derive(Clone, Default)]
pub(crate) struct OutputMemory {
    used_bytes: Arc<AtomicUsize>,
}

/// One output stream.
pub(crate) struct Collector {
    memory: OutputMemory,
    hasher: blake3::Hasher,
    kept: Vec<u8>,
    total_bytes: u64,
    /// Bytes that are kept at most.
    limit_bytes: usize,
    /// Something did not fit. From then on nothing more is kept, so that what is kept is a prefix.
    full: bool,
}

impl OutputMemory {
    fn reserve(&self, bytes: usize) -> bool {
        let add = |used: usize| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= EXEC_OUTPUT_BYTES_TOTAL_MAX)
        };
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    fn release(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Collector {
    pub(crate) fn new(memory: OutputMemory, limit_bytes: usize) -> Self {
        Self {
            memory,
            hasher: blake3::Hasher::new(),
            kept: Vec::new(),
            total_bytes: 0,
            limit_bytes: limit_bytes.min(EXEC_OUTPUT_BYTES_MAX),
            full: false,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.total_bytes += bytes.len() as u64;
        if self.full {
            return;
        }
        let room = self.limit_bytes.saturating_sub(self.kept.len());
        let (fitting, rest) = bytes.split_at(bytes.len().min(room));
        if !self.memory.reserve(fitting.len()) {
            self.cut();
            return;
        }
        self.kept.extend_from_slice(fitting);
        if !rest.is_empty() {
            self.cut();
        }
    }

    /// What is recorded and what is kept. `blob` says whether the kept bytes will be readable by digest.
    pub(crate) fn finish(mut self, blob: bool) -> (OutputRecord, Bytes) {
        // The memory is given back when the last reader of the bytes is done, not before: an answer that
        // its caller takes in slowly counts like a command that runs.
        let kept = Bytes::from_owner(Kept {
            bytes: std::mem::take(&mut self.kept),
            memory: self.memory.clone(),
        });
        let dropped_bytes = self.total_bytes.saturating_sub(kept.len() as u64);
        let digest = self.hasher.finalize();
        let kept_digest = if dropped_bytes == 0 {
            digest
        } else {
            blake3::hash(&kept)
        };
        let record = OutputRecord {
            blake3: digest.to_hex().to_string(),
            bytes: self.total_bytes,
            blob: (blob && !kept.is_empty()).then(|| kept_digest.to_hex().to_string()),
            dropped_bytes,
        };
        (record, kept)
    }

    /// Ends what is kept on the boundary of a character, so that text stays text.
    fn cut(&mut self) {
        self.full = true;
        let whole = self.kept.len() - incomplete_tail(&self.kept);
        self.memory.release(self.kept.len() - whole);
        self.kept.truncate(whole);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.memory.release(self.kept.len());
    }
}

/// Kept bytes on their way to whoever reads them.
struct Kept {
    bytes: Vec<u8>,
    memory: OutputMemory,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.release(self.bytes.len());
    }
}

/// How many bytes at the end are the beginning of a character whose rest is missing.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let starts = bytes.iter().enumerate().skip(tail).rev();
    for (index, byte) in starts {
        let needed = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        let present = bytes.len() - index;
        return if present < needed { present } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_and_has_one_digest() {
        let memory = OutputMemory::default();
        let mut collector = Collector::new(memory.clone(), EXEC_OUTPUT_BYTES_MAX);
        collector.push(b"a\n");
        collector.push(b"\xff\x00");
        let (record, kept) = collector.finish(true);
        assert_eq!(&kept[..], b"a\n\xff\x00");
        assert_eq!(
            record.blake3,
            blake3::hash(b"a\n\xff\x00").to_hex().to_string()
        );
        assert_eq!(record.blob.as_ref(), Some(&record.blake3));
        assert_eq!((record.bytes, record.dropped_bytes), (4, 0));
        assert_eq!(
            memory.used_bytes.load(Ordering::Relaxed),
            4,
            "somebody reads it"
        );
        drop(kept);
        assert_eq!(memory.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_still_digested() {
        let mut collector = Collector::new(OutputMemory::default(), EXEC_OUTPUT_BYTES_MAX);
        let chunk = "é".repeat(1024 * 1024 / 2);
        collector.push(b"x");
        for _ in 0..17 {
            collector.push(chunk.as_bytes());
        }
        let (record, kept) = collector.finish(true);
        assert_eq!(record.bytes, 17 * 1024 * 1024 + 1);
        assert_eq!(
            kept.len(),
            EXEC_OUTPUT_BYTES_MAX - 1,
            "half a character was not kept"
        );
        assert!(std::str::from_utf8(&kept).is_ok());
        assert_eq!(record.dropped_bytes + kept.len() as u64, record.bytes);
        let whole = format!("x{}", chunk.repeat(17));
        assert_eq!(
            record.blake3,
            blake3::hash(whole.as_bytes()).to_hex().to_string()
        );
        assert_eq!(record.blob, Some(blake3::hash(&kept).to_hex().to_string()));
    }

    #[test]
    fn commands_share_their_memory_and_give_it_back() {
        let memory = OutputMemory::default();
        assert!(memory.reserve(EXEC_OUTPUT_BYTES_TOTAL_MAX - 2));
        let mut collector = Collector::new(memory.clone(), EXEC_OUTPUT_BYTES_MAX);
        collector.push(b"ab");
        collector.push(b"c");
        let (record, kept) = collector.finish(true);
        assert_eq!((&kept[..], record.dropped_bytes), (&b"ab"[..], 1));
        drop(kept);
        assert_eq!(
            memory.used_bytes.load(Ordering::Relaxed),
            EXEC_OUTPUT_BYTES_TOTAL_MAX - 2
        );
    }

    #[test]
    fn only_the_beginning_of_a_character_is_incomplete() {
        for (bytes, tail) in [
            (&b""[..], 0),
            (b"a", 0),
            ("é".as_bytes(), 0),
            (b"a\xc3", 1),
            (b"\xe2\x82", 2),
            (b"\xf0\x9f\x98", 3),
            ("😀".as_bytes(), 0),
            (b"\xff", 0),
            (b"\x80\x80\x80", 0),
        ] {
            assert_eq!(incomplete_tail(bytes), tail, "{bytes:?}");
        }
    }
}
