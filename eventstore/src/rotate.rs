//! Handing the ledger's key on.
//!
//! The order is what makes it safe at every instant: the old key's last checkpoint, the new key in
//! a file beside the old one, the event that names it, then the new file in the old one's place.
//! Which key is the ledger's is said by its events alone, so an opening after a crash knows which
//! of two files to keep.

use std::sync::Arc;

use fluxvm_verify::Actor;
use fluxvm_verify::CommandId;
use fluxvm_verify::CorrelationId;
use fluxvm_verify::EventKind;
use fluxvm_verify::KEY_ROTATED_KIND;
use fluxvm_verify::KEY_ROTATED_SCHEMA;
use fluxvm_verify::KeyRotated;
use fluxvm_verify::LEDGER_STREAM;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::rotation_message;
use tokio::sync::oneshot;

use crate::Append;
use crate::ExpectedVersion;
use crate::NewEvent;
use crate::SignError;
use crate::StreamAppend;
use crate::committer::Committer;
use crate::group::Group;
use crate::prepare;
use crate::signing_key;
use crate::signing_key::Signer;

/// Who hands the key on, and in what connection.
#[derive(Clone, Debug)]
pub struct KeyRotation {
    /// Names this rotation: a second one of the same name returns what the first one did.
    pub command_id: CommandId,
    /// The request that it belongs to.
    pub correlation_id: CorrelationId,
    /// Who asked for it.
    pub actor: Actor,
}

/// Where the answer goes.
pub(crate) type RotateReply = oneshot::Sender<Result<Arc<RecordedEvent>, SignError>>;

impl Committer {
    /// Hands the key on and returns the event that says so.
    pub(crate) fn rotate(
        &mut self,
        rotation: KeyRotation,
    ) -> Result<Arc<RecordedEvent>, SignError> {
        if let Some(reason) = self.shared.poisoned() {
            return Err(SignError::Poisoned { reason });
        }
        let nothing = Group::new(self.head, self.last_recorded_at);
        let earlier = self.earlier_result(rotation.command_id, &nothing);
        let earlier = earlier.map_err(|e| self.harmed(&e.to_string()))?;
        if let Some(event) = earlier.and_then(|events| events.into_iter().next()) {
            return Ok(event);
        }
        let failed = |e: crate::OpenError| SignError::Key {
            reason: e.to_string(),
        };
        let path = self.key_file.clone();
        let environment = self.shared.environment.clone();
        // What an earlier rotation could not finish is finished first: its key must not be lost.
        let vkey = self.checkpointer.signer.vkey().to_string();
        signing_key::settle(&path, &vkey, &environment).map_err(failed)?;

        let seal = self.checkpoint()?;
        let origin = self.shared.genesis.origin.clone();
        let new = signing_key::create_next(&path, &origin, &environment).map_err(failed)?;
        let event = self.commit_rotation(rotation, seal.to_string(), &new)?;
        let followed = self.shared.chain_mut().follow(&event);
        followed.map_err(|e| self.harmed(&e.to_string()))?;
        let new_vkey = new.vkey().to_string();
        self.shared.snapshots.set_key(new.snapshot_key());
        self.checkpointer.signer = new;
        if let Err(e) = signing_key::settle(&path, &new_vkey, &environment) {
            // The new key lies beside the old one and the next opening puts it in its place.
            tracing::warn!(error = %e, "the new signing key is not in its place yet");
        }
        self.checkpoint()?;
        Ok(event)
    }

    fn commit_rotation(
        &mut self,
        rotation: KeyRotation,
        seal: String,
        new: &Signer,
    ) -> Result<Arc<RecordedEvent>, SignError> {
        let unwritable = |reason: String| SignError::Key { reason };
        let old = &self.checkpointer.signer;
        let new_vkey = new.vkey().to_string();
        let message = rotation_message(self.shared.genesis.ledger_id, &new_vkey);
        let payload = KeyRotated {
            checkpoint: seal,
            old_vkey: old.vkey().to_string(),
            signature: old.sign_base64(message.as_bytes()),
            new_vkey,
        };
        let kind = EventKind::parse(KEY_ROTATED_KIND).map_err(|e| unwritable(e.to_string()))?;
        let event = NewEvent::new(kind, KEY_ROTATED_SCHEMA, &payload);
        let event = event.map_err(|e| unwritable(e.to_string()))?;
        let stream = StreamName::parse(LEDGER_STREAM).map_err(|e| unwritable(e.to_string()))?;
        let append = Append {
            command_id: rotation.command_id,
            correlation_id: rotation.correlation_id,
            actor: rotation.actor,
            streams: vec![StreamAppend {
                stream,
                expected: ExpectedVersion::Any,
                events: vec![event],
                attachments: Vec::new(),
                kept: Vec::new(),
                sealed_for: None,
            }],
        };
        let prepared = prepare::prepare(append, &self.shared);
        let prepared = prepared.map_err(|e| self.harmed(&e.to_string()))?;
        let mut group = Group::new(self.head, self.last_recorded_at);
        let appended = self.admit(prepared, &mut group);
        let appended = appended.map_err(|e| self.harmed(&e.to_string()))?;
        // From this event on the old key speaks for nothing, so it must not sign for this group.
        group.is_signed_later = true;
        let durable = self.make_durable(group);
        durable.map_err(|reason| SignError::Poisoned { reason })?;
        let event = appended.into_iter().next();
        event.ok_or_else(|| unwritable("no event was written".to_owned()))
    }

    fn harmed(&self, reason: &str) -> SignError {
        self.shared.poison(reason);
        SignError::Poisoned {
            reason: reason.to_owned(),
        }
    }
}
