//! The channel between a request on the runtime and its work on a thread.

use std::io;
use std::io::Read;
use std::io::Write;

use bytes::Bytes;
use bytes::BytesMut;
use tokio::sync::mpsc;

use super::Fault;

/// Portions on their way in one direction.
const PORTIONS_MAX: usize = 2;

/// Bytes of a portion that the guest sends.
const PORTION_BYTES: usize = 128 * 1024;

/// A part of an upload.
#[derive(Debug)]
pub(crate) enum Portion {
    Bytes(Bytes),
    /// The body is whole.
    End,
    /// The body will not be whole.
    Broken(Fault),
}

/// Where a thread reads an upload from.
#[derive(Debug)]
pub(crate) struct Incoming {
    portions: mpsc::Receiver<Portion>,
    current: Bytes,
    /// How the body ended.
    end: Option<Result<(), Fault>>,
}

/// An upload's two ends.
pub(crate) fn incoming() -> (mpsc::Sender<Portion>, Incoming) {
    let (sender, portions) = mpsc::channel(PORTIONS_MAX);
    let incoming = Incoming {
        portions,
        current: Bytes::new(),
        end: None,
    };
    (sender, incoming)
}

impl Incoming {
    /// The next bytes; `None` at the end of a whole body.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        if !self.current.is_empty() {
            return Ok(Some(std::mem::take(&mut self.current)));
        }
        if let Some(end) = &self.end {
            return end.clone().map(|()| None);
        }
        match self.portions.blocking_recv() {
            Some(Portion::Bytes(bytes)) => return Ok(Some(bytes)),
            Some(Portion::End) => self.end = Some(Ok(())),
            Some(Portion::Broken(fault)) => self.end = Some(Err(fault)),
            // The request itself is gone.
            None => self.end = Some(Err(Fault::CutOff)),
        }
        self.next()
    }
}

/// Where a thread writes a download to.
#[derive(Debug)]
pub(crate) struct Outgoing {
    portions: mpsc::Sender<io::Result<Bytes>>,
    current: BytesMut,
}

/// A download's two ends.
pub(crate) fn outgoing() -> (Outgoing, mpsc::Receiver<io::Result<Bytes>>) {
    let (portions, receiver) = mpsc::channel(PORTIONS_MAX);
    let outgoing = Outgoing {
        portions,
        current: BytesMut::new(),
    };
    (outgoing, receiver)
}

impl Outgoing {
    /// Sends what is left. Without this call, or with an error, the peer sees a transfer that was
    /// cut off.
    pub(super) fn finish(mut self, end: io::Result<()>) {
        let end = end.and_then(|()| self.flush());
        if let Err(error) = end {
            let _ = self.portions.blocking_send(Err(error));
        }
    }

    /// Sends all that `source` has, as it comes.
    pub(super) fn copy_from(&mut self, source: &mut impl Read) -> io::Result<u64> {
        let mut copied = 0;
        loop {
            let filled = self.current.len();
            self.current.resize(PORTION_BYTES, 0);
            let read = source.read(self.current.get_mut(filled..).unwrap_or_default());
            self.current
                .truncate(filled + read.as_ref().copied().unwrap_or(0));
            match read {
                Ok(0) => return Ok(copied),
                Ok(bytes) => copied += u64::try_from(bytes).unwrap_or(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.current.len() >= PORTION_BYTES {
                self.flush()?;
            }
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PORTION_BYTES.saturating_sub(self.current.len());
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.current.extend_from_slice(taken);
        if self.current.len() >= PORTION_BYTES {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.current.is_empty() {
            return Ok(());
        }
        let portion = self.current.split().freeze();
        self.portions
            .blocking_send(Ok(portion))
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
