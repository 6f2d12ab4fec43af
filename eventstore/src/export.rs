//! Writing a ledger out as the JSON lines that the offline verifier reads.

use std::collections::VecDeque;
use std::sync::Arc;

use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::Scope;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use fluxvm_verify::export::ExportEnd;
use fluxvm_verify::export::event_line;
use fluxvm_verify::export::footer_line;
use fluxvm_verify::export::header_line;

use crate::ReadError;
use crate::shared::Shared;

/// How many events are read at a time.
const PAGE_EVENTS: usize = 256;

/// What an export covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportScope {
    /// Every event.
    WholeLedger,
    /// The events of one stream.
    Stream(StreamName),
}

/// The lines of an export, up to the head of this instant.
pub(crate) fn lines(
    shared: Arc<Shared>,
    scope: ExportScope,
) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, ReadError> {
    let until = shared.head().position;
    let scope = match scope {
        ExportScope::WholeLedger => Scope::WholeLedger,
        ExportScope::Stream(stream) => {
            if shared.memory().version(&stream, until).is_none() {
                return Err(ReadError::NoStream { stream });
            }
            Scope::OneStream(stream)
        }
    };
    let header = header_line(&shared.genesis, &scope);
    let events = Events {
        end: ExportEnd {
            events: 0,
            head_seq: None,
            head_hash: shared.genesis.hash(),
            checkpoint: None,
        },
        shared,
        scope,
        until,
        version: None,
        page: VecDeque::new(),
        state: State::Events,
    };
    Ok(std::iter::once(Ok(header)).chain(events))
}

enum State {
    Events,
    Done,
}

/// The lines behind the first.
struct Events {
    shared: Arc<Shared>,
    scope: Scope,
    until: Position,
    version: Option<StreamVersion>,
    page: VecDeque<Arc<RecordedEvent>>,
    end: ExportEnd,
    state: State,
}

impl Iterator for Events {
    type Item = Result<String, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if matches!(self.state, State::Done) {
            return None;
        }
        match self.next_event() {
            Ok(Some(event)) => {
                self.note(event.seq(), event.hash);
                Some(Ok(event_line(&event)))
            }
            Ok(None) => {
                self.state = State::Done;
                Some(Ok(footer_line(&self.end)))
            }
            Err(e) => {
                self.state = State::Done;
                Some(Err(e))
            }
        }
    }
}

impl Events {
    fn note(&mut self, seq: GlobalSeq, hash: EventHash) {
        self.end = ExportEnd {
            events: self.end.events + 1,
            head_seq: Some(seq),
            head_hash: hash,
            checkpoint: None,
        };
    }

    fn next_event(&mut self) -> Result<Option<Arc<RecordedEvent>>, ReadError> {
        if self.page.is_empty() {
            self.page = self.next_page()?.into();
        }
        let event = self.page.pop_front();
        let event = event.filter(|event| event.seq().position() <= self.until);
        self.version = event.as_ref().map(|event| event.header.version);
        Ok(event)
    }

    fn next_page(&self) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        match &self.scope {
            Scope::WholeLedger => {
                let after = self
                    .end
                    .head_seq
                    .map_or(Position::START, GlobalSeq::position);
                self.shared.read(after, PAGE_EVENTS)
            }
            Scope::OneStream(stream) => self.shared.read_stream(stream, self.version, PAGE_EVENTS),
        }
    }
}
