//! The same ledger as evidence: with proofs, keys that are handed on, and checkpoints that an
//! attacker signs with whatever key is at hand.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;
use ed25519_dalek::SigningKey;
use fluxvm_verify::evidence::*;
use fluxvm_verify::merkle::Frontier;
use fluxvm_verify::*;

use super::Forge;
use super::genesis;

pub fn vkey(seed: u8) -> VerifierKey {
    let signing = SigningKey::from_bytes(&[seed; 32]);
    VerifierKey::new("flux.example/ledger", signing.verifying_key().as_bytes()).unwrap()
}

pub fn sign(text: &str, seed: u8) -> Vec<u8> {
    let signing = SigningKey::from_bytes(&[seed; 32]);
    signing.sign(text.as_bytes()).to_bytes().to_vec()
}

pub fn note(checkpoint: &Checkpoint, seed: u8) -> String {
    let text = checkpoint.to_string();
    let signature = NoteSignature {
        name: vkey(seed).name().to_owned(),
        id: vkey(seed).id(),
        signature: sign(&text, seed),
    };
    SignedNote::new(text, vec![signature]).to_string()
}

impl Forge {
    /// A ledger whose first key is made of `seed`.
    pub fn with_key(seed: u8, events: u64) -> Forge {
        let mut forge = Forge::of_ledger(1, 0);
        forge.genesis = Genesis {
            vkey: vkey(seed).to_string(),
            ..genesis(1)
        };
        forge.grow(events);
        forge
    }

    /// Appends events on two streams by turns.
    pub fn grow(&mut self, events: u64) {
        for _ in 0..events {
            let n = self.events.len() + 1;
            let stream = ["session/a", "session/b"][n % 2];
            self.append(stream, &format!("{{\"n\":{n}}}"));
        }
    }

    pub fn head_at(&self, size: usize) -> Checkpoint {
        let mut frontier = Frontier::default();
        for event in &self.events[..size] {
            frontier.push(&event.hash, |_, _| {});
        }
        Checkpoint {
            origin: self.genesis.origin.clone(),
            size: frontier.size(),
            root: frontier.root(),
        }
    }

    pub fn note_at(&self, size: usize, seed: u8) -> String {
        note(&self.head_at(size), seed)
    }

    /// The payload with which `old` hands the key on to `new`.
    pub fn rotation(&self, old: u8, new: u8) -> KeyRotated {
        let new_vkey = vkey(new).to_string();
        let message = rotation_message(self.genesis.ledger_id, &new_vkey);
        KeyRotated {
            checkpoint: self.note_at(self.events.len(), old),
            new_vkey,
            old_vkey: vkey(old).to_string(),
            signature: BASE64.encode(sign(&message, old)),
        }
    }

    pub fn append_rotation(&mut self, rotation: &KeyRotated) {
        let payload = serde_json::to_string(rotation).unwrap();
        self.append_kind(LEDGER_STREAM, KEY_ROTATED_KIND, &payload);
    }

    pub fn rotate(&mut self, old: u8, new: u8) {
        self.append_rotation(&self.rotation(old, new));
    }

    pub fn consistency(&self, from: usize, to: usize) -> Vec<TreeHash> {
        let (mut frontier, mut stored) = (Frontier::default(), Vec::new());
        for event in &self.events {
            frontier.push(&event.hash, |_, node| stored.push(node));
        }
        let node = |at: u64| Ok::<_, ProofError>(stored[at as usize]);
        let size = |n: usize| Position::new(n as u64);
        merkle::consistency_path(size(from), size(to), node).unwrap()
    }

    /// The export as evidence, with a checkpoint of all events that `seed` signed.
    pub fn evidence(&self, seed: u8) -> Vec<String> {
        let head = self.head_at(self.events.len());
        let tree = TreeHead {
            size: head.size,
            root: head.root,
        };
        let (mut frontier, mut stored) = (Frontier::default(), Vec::new());
        for event in &self.events {
            frontier.push(&event.hash, |_, node| stored.push(node));
        }
        let mut lines = vec![export::evidence_header_line(
            &self.genesis,
            &self.scope,
            tree,
            false,
        )];
        let mut paths = Paths::default();
        let mut end = export::ExportEnd {
            events: 0,
            head_seq: None,
            head_hash: self.genesis.hash(),
            checkpoint: Some(note(&head, seed)),
        };
        for event in &self.events {
            if let Scope::OneStream(stream) = &self.scope
                && event.header.stream != *stream
                && !is_rotation(event)
            {
                continue;
            }
            end.events += 1;
            end.head_seq = Some(event.seq());
            end.head_hash = event.hash;
            lines.push(export::event_line(event));
            if self.scope != Scope::WholeLedger {
                let node = |at: u64| Ok::<_, ProofError>(stored[at as usize]);
                let path = merkle::inclusion_path(event.seq(), tree.size, node).unwrap();
                lines.push(proof_line(&ExportProof {
                    seq: event.seq(),
                    hashes: paths.shorten(path),
                }));
            }
        }
        lines.push(export::footer_line(&end));
        lines
    }

    pub fn of_stream(mut self, stream: &str) -> Forge {
        self.scope = Scope::OneStream(StreamName::parse(stream).unwrap());
        self
    }
}

pub fn verify_with(lines: &[String], options: &VerifyOptions) -> Report {
    verify_export(lines.concat().as_bytes(), options)
}

pub fn against(notes: &[String]) -> VerifyOptions {
    VerifyOptions {
        against: notes.to_vec(),
        ..VerifyOptions::default()
    }
}
