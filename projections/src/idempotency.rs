//! Which idempotency keys are claimed and which are answered.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_verify::CorrelationId;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::StreamVersion;
use serde::Deserialize;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::idempotency::IdempotencyAnswered;

/// All keys, by the name of their stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Idempotency {
    keys: BTreeMap<String, KeyState>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyState {
    /// The version of its stream up to which this is the fold.
    pub version: StreamVersion,
    /// The digest of the body that it was claimed with, hex; `None` when it is free again.
    pub body_blake3: Option<String>,
    /// The ledger number of its last claim.
    pub claimed_seq: GlobalSeq,
    /// When it was last claimed.
    pub claimed_at: DateTime<Utc>,
    /// The request that claimed it.
    pub request: CorrelationId,
    /// The stored answer.
    pub answer: Option<IdempotencyAnswered>,
    /// The request was answered, and the answer is erased.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erased: bool,
}

impl Idempotency {
    /// The key whose stream has this name.
    #[must_use]
    pub fn get(&self, stream: &str) -> Option<&KeyState> {
        self.keys.get(stream)
    }

    /// Keys that were claimed and neither answered nor released, by the name of their stream.
    pub fn unanswered(&self) -> impl Iterator<Item = (&str, &KeyState)> {
        self.keys
            .iter()
            .filter(|(_, key)| key.body_blake3.is_some() && key.answer.is_none() && !key.erased)
            .map(|(stream, key)| (stream.as_str(), key))
    }

    /// Keys whose answers are kept, by the name of their stream.
    pub fn answered(&self) -> impl Iterator<Item = (&str, &KeyState)> {
        let kept = self.keys.iter().filter(|(_, key)| key.answer.is_some());
        kept.map(|(stream, key)| (stream.as_str(), key))
    }

    /// Folds one event in. Events of other streams change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        let stream = envelope.stream.as_str();
        if !stream.starts_with("idempotency/") {
            return;
        }
        if let Event::IdempotencyClaimed(claimed) = &envelope.event {
            let key = KeyState {
                version: envelope.version,
                body_blake3: Some(claimed.body_blake3.clone()),
                claimed_seq: envelope.seq,
                claimed_at: envelope.at,
                request: envelope.request,
                answer: None,
                erased: false,
            };
            self.keys.insert(stream.to_owned(), key);
            return;
        }
        let Some(key) = self.keys.get_mut(stream) else {
            return;
        };
        key.version = envelope.version;
        match &envelope.event {
            Event::IdempotencyAnswered(answer) => key.answer = Some(answer.clone()),
            Event::IdempotencyReleased(_) => key.body_blake3 = None,
            // It cannot be given again, and what was done must not be done again either.
            Event::Redacted | Event::IdempotencyErased(_) => {
                key.answer = None;
                key.erased = true;
            }
            _ => {}
        }
    }
}
