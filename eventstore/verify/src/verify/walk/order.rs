//! What an event must hold beside its neighbours: its stream, its place, its link, its version.

use super::Walk;
use crate::GlobalSeq;
use crate::RecordedEvent;
use crate::Scope;
use crate::StreamVersion;
use crate::is_rotation;
use crate::verify::FaultCode;

impl Walk<'_> {
    /// Whether the event is of another stream and in the export for the key that it hands on.
    fn is_guest(&self, event: &RecordedEvent) -> bool {
        let is_foreign = matches!(
            &self.report.scope,
            Some(Scope::OneStream(stream)) if *stream != event.header.stream
        );
        is_foreign && self.tree_head().is_some() && is_rotation(event)
    }

    pub(super) fn check_scope(&mut self, event: &RecordedEvent) {
        if self.is_guest(event) {
            return;
        }
        if let Some(Scope::OneStream(stream)) = &self.report.scope
            && *stream != event.header.stream
        {
            let detail = format!("stream {} in an export of {stream}", event.header.stream);
            self.fault(FaultCode::StreamForeign, detail);
        }
    }

    /// Whether the event comes later in the ledger than all before it.
    pub(super) fn check_order(&mut self, event: &RecordedEvent) -> bool {
        let seq = event.header.seq;
        let expected = self
            .last
            .as_ref()
            .map_or(GlobalSeq::FIRST, |last| last.seq.next());
        if seq < expected {
            match self.take_skipped(seq.get()) {
                true => self.fault(FaultCode::SeqOrder, "it stands behind a later event"),
                false => self.fault(FaultCode::EventRepeated, "its number was there before"),
            }
            return false;
        }
        if seq > expected {
            self.skipped.insert(expected.get(), seq.get() - 1);
            if self
                .report
                .scope
                .as_ref()
                .is_none_or(|scope| *scope == Scope::WholeLedger)
            {
                self.fault(
                    FaultCode::SeqGap,
                    format!("event {expected} is missing before it"),
                );
            }
        }
        true
    }

    /// Takes `seq` out of the gaps that were passed over, if it lies in one.
    fn take_skipped(&mut self, seq: u64) -> bool {
        let gap = self
            .skipped
            .range(..=seq)
            .next_back()
            .map(|(first, last)| (*first, *last));
        let Some((first, last)) = gap.filter(|(_, last)| seq <= *last) else {
            return false;
        };
        self.skipped.remove(&first);
        if first < seq {
            self.skipped.insert(first, seq - 1);
        }
        if seq < last {
            self.skipped.insert(seq + 1, last);
        }
        true
    }

    pub(super) fn check_link(&mut self, event: &RecordedEvent) {
        if event.header.seq == GlobalSeq::FIRST {
            let genesis = self.header.as_ref().map(|header| header.genesis.hash());
            if genesis.is_some_and(|genesis| genesis != event.prev) {
                self.fault(
                    FaultCode::GenesisLink,
                    "the first event is of another ledger",
                );
            }
        }
        let Some(last) = &self.last else { return };
        let adjacent = last.seq.next() == event.header.seq;
        let linked = last.hash == event.prev;
        let backwards = event.header.recorded_at < last.recorded_at;
        if adjacent && !linked {
            self.fault(
                FaultCode::LinkBroken,
                "its predecessor is not the event before it",
            );
        }
        if backwards {
            self.fault(
                FaultCode::TimeBackwards,
                "recorded earlier than the event before it",
            );
        }
    }

    pub(super) fn check_version(&mut self, event: &RecordedEvent) {
        if self.is_guest(event) {
            return;
        }
        let version = event.header.version;
        let before = self.versions.get(&event.header.stream).copied();
        let expected = StreamVersion::after(before);
        if version < expected {
            let detail = format!("version {version} of {}", event.header.stream);
            self.fault(FaultCode::VersionRepeated, detail);
            return;
        }
        if version > expected {
            let detail = format!("version {expected} of {} is missing", event.header.stream);
            self.fault(FaultCode::VersionGap, detail);
        }
        self.versions.insert(event.header.stream.clone(), version);
    }
}
