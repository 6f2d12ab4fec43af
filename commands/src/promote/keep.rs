//! The set of changes on its way into a guest, kept in pieces for whoever does the promotion again.

use std::io;
use std::io::Write;

use bytes::Bytes;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::KeptBlob;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::StreamName;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::limits::UPLOAD_PIECE_BYTES;

/// Where the content of a set is kept: sealed as the session is.
pub(super) struct Keeper {
    handle: Handle,
    ledger: Ledger,
    stream: StreamName,
    piece: Vec<u8>,
    kept: Vec<KeptBlob>,
    failed: bool,
}

impl Keeper {
    pub(super) fn new(ledger: Ledger, stream: StreamName) -> Self {
        Self {
            handle: Handle::current(),
            ledger,
            stream,
            piece: Vec::new(),
            kept: Vec::new(),
            failed: false,
        }
    }

    /// All of it, or nothing where a piece could not be kept. Blocks.
    pub(super) fn finish(mut self) -> Vec<KeptBlob> {
        self.put();
        match self.failed {
            true => Vec::new(),
            false => self.kept,
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.failed {
            let room = UPLOAD_PIECE_BYTES - self.piece.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == UPLOAD_PIECE_BYTES {
                self.put();
            }
        }
    }

    fn put(&mut self) {
        if self.piece.is_empty() || self.failed {
            return;
        }
        let piece = Bytes::from(std::mem::take(&mut self.piece));
        let keeping = self.ledger.keep_blob(Some(self.stream.clone()), piece);
        let kept: Result<KeptBlob, AppendError> = self.handle.block_on(keeping);
        match kept {
            Ok(blob) => self.kept.push(blob),
            Err(error) => {
                tracing::error!(%error, "what a promotion carries was not stored");
                self.failed = true;
            }
        }
    }
}

/// What is written, as portions of a request's body.
pub(super) struct Portions {
    pub(super) body: mpsc::Sender<io::Result<Bytes>>,
    pub(super) keeper: Option<Keeper>,
}

impl Write for Portions {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(keeper) = &mut self.keeper {
            keeper.take(bytes);
        }
        let portion = Bytes::copy_from_slice(bytes);
        let sent = self.body.blocking_send(Ok(portion));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
