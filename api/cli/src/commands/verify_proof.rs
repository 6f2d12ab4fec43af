//! `ledger verify-proof`: what `ledger prove` and `ledger prove-consistency` wrote, checked without the
//! daemon.

use std::io::BufRead;
use std::path::Path;

use fluxvm_verify::ConsistencyProof;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::InclusionProof;
use fluxvm_verify::NoteVerdict;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::VerifierKey;
use fluxvm_verify::export::ExportLine;
use fluxvm_verify::export::LINE_BYTES_MAX;
use fluxvm_verify::export::parse_line;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::file_error;
use super::ledger::open;
use crate::args::verify::VerifyProofArgs;
use crate::compress;
use crate::error::CliError;
use crate::error::EXIT_FAILED;

/// How a proof that an event is in a ledger begins.
const INCLUSION_BEGINS: &str = "c2sp.org/tlog-proof@";

/// What a proof shows, or why it shows nothing.
type Verdict = Result<String, String>;

/// `ledger verify-proof`.
pub(super) fn run(context: &Context, args: &VerifyProofArgs) -> Result<u8, CliError> {
    let text = read(&args.file)?;
    let unreadable = |error: fluxvm_verify::ProofFileError| {
        CliError::Usage(format!("{} is not a proof: {error}", args.file.display()))
    };
    let verdict = if text.starts_with(INCLUSION_BEGINS) {
        let proof: InclusionProof = text.parse().map_err(unreadable)?;
        let hash = hash_of(args, proof.seq)?;
        inclusion(&proof, hash, &args.key)
    } else {
        let proof: ConsistencyProof = text.parse().map_err(unreadable)?;
        let Some(against) = &args.against else {
            return Err(CliError::Usage(format!(
                "the proof is of what came after {} events: pass the checkpoint of that size as --against",
                proof.from
            )));
        };
        let earlier: SignedCheckpoint = read(against)?.parse().map_err(|error| {
            CliError::Usage(format!(
                "{} is not a checkpoint: {error}",
                against.display()
            ))
        })?;
        consistency(&proof, &earlier, &args.key)
    };
    let answer = to_json(&args.file, &verdict);
    context.output.show(&answer, |_, _| match &verdict {
        Ok(shown) => format!("OK: {shown}."),
        Err(reason) => format!("BROKEN: {reason}."),
    })?;
    Ok(if verdict.is_ok() { 0 } else { EXIT_FAILED })
}

fn to_json(file: &Path, verdict: &Verdict) -> Value {
    let (shown, reason) = (verdict.as_ref().ok(), verdict.as_ref().err());
    json!({"file": file, "ok": verdict.is_ok(), "shown": shown, "reason": reason})
}

fn read(file: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(file).map_err(|error| file_error(file, error))
}

/// The hash of the event that the proof is of. The proof itself does not hold it.
fn hash_of(args: &VerifyProofArgs, seq: GlobalSeq) -> Result<EventHash, CliError> {
    match (args.hash, &args.export) {
        (Some(hash), _) => Ok(hash),
        (None, Some(export)) => hash_in(export, seq),
        (None, None) => Err(CliError::Usage(format!(
            "the proof is of event {seq}, and does not hold it: pass its hash as --hash, or a file that has \
             the event as --export"
        ))),
    }
}

fn hash_in(export: &Path, seq: GlobalSeq) -> Result<EventHash, CliError> {
    let failed = |error| file_error(export, error);
    let mut lines = compress::lines(open(export)?).map_err(failed)?;
    let mut line = Vec::new();
    let bytes_max = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    loop {
        line.clear();
        let mut bounded = std::io::Read::take(&mut lines, bytes_max);
        let read = bounded.read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            let reason = format!("{} has no event {seq}", export.display());
            return Err(CliError::Usage(reason));
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if let Ok(ExportLine::Event(event)) = parse_line(text)
            && event.header.seq == seq
        {
            if event.hash_holds() && event.payload_holds() {
                return Ok(event.hash);
            }
            let reason = format!("event {seq} in {} is not what was hashed", export.display());
            return Err(CliError::Usage(reason));
        }
    }
}

fn inclusion(proof: &InclusionProof, hash: EventHash, keys: &[VerifierKey]) -> Verdict {
    let (seq, size) = (proof.seq, proof.checkpoint.size());
    proof
        .verify(&hash)
        .map_err(|error| format!("event {seq} with this hash is not in the ledger: {error}"))?;
    let key = signer(&proof.checkpoint, keys)?;
    Ok(format!(
        "event {seq} is in the ledger of {size} events that {key} signed"
    ))
}

fn consistency(
    proof: &ConsistencyProof,
    earlier: &SignedCheckpoint,
    keys: &[VerifierKey],
) -> Verdict {
    let (from, to) = (proof.from, proof.checkpoint.size());
    if earlier.size() != from {
        let size = earlier.size();
        return Err(format!(
            "the proof is of what came after {from} events, the checkpoint has {size}"
        ));
    }
    if earlier.checkpoint().origin != proof.checkpoint.checkpoint().origin {
        return Err("the two checkpoints are of two ledgers".to_owned());
    }
    proof
        .verify(&earlier.root())
        .map_err(|error| format!("the ledger of {to} events does not begin with these: {error}"))?;
    signer(earlier, keys)?;
    let key = signer(&proof.checkpoint, keys)?;
    Ok(format!(
        "the ledger of {to} events that {key} signed begins with the {from} of the checkpoint"
    ))
}

/// The key of those asked for that signed the checkpoint.
fn signer<'a>(
    checkpoint: &SignedCheckpoint,
    keys: &'a [VerifierKey],
) -> Result<&'a VerifierKey, String> {
    let signed = |key: &&VerifierKey| checkpoint.note().verdict(key) == NoteVerdict::Signed;
    let size = checkpoint.size();
    keys.iter()
        .find(signed)
        .ok_or_else(|| format!("no key that was asked for signed the checkpoint of {size} events"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fluxvm_verify::Position;
    use fluxvm_verify::ProofError;
    use fluxvm_verify::RecordedEvent;
    use fluxvm_verify::merkle;

    const EXPORT: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../eventstore/tests/golden/format-2-whole.jsonl"
    );

    /// The events of an export, its two keys, the checkpoint that the first key left, and the last one.
    fn ledger() -> (Vec<RecordedEvent>, [VerifierKey; 2], [SignedCheckpoint; 2]) {
        let text = std::fs::read_to_string(EXPORT).expect("the export");
        let lines: Vec<_> = text
            .lines()
            .map(|line| parse_line(line.as_bytes()))
            .collect();
        let mut events = Vec::new();
        let mut last = None;
        for line in lines {
            match line.expect("a line") {
                ExportLine::Event(event) => events.push(event),
                ExportLine::End(end) => last = end.checkpoint,
                _ => {}
            }
        }
        let handed_on = events
            .iter()
            .find(|event| fluxvm_verify::is_rotation(event));
        let payload = handed_on
            .and_then(RecordedEvent::payload_bytes)
            .expect("said");
        let said: fluxvm_verify::KeyRotated = serde_json::from_slice(payload).expect("a rotation");
        let keys = [said.old_vkey, said.new_vkey].map(|key| key.parse().expect("a key"));
        let notes = [said.checkpoint, last.expect("signed")];
        (
            events,
            keys,
            notes.map(|note| note.parse().expect("a checkpoint")),
        )
    }

    fn nodes(events: &[RecordedEvent]) -> Vec<fluxvm_verify::TreeHash> {
        let mut nodes = Vec::new();
        let mut frontier = merkle::Frontier::default();
        for event in events {
            frontier.push(&event.hash, |_, node| nodes.push(node));
        }
        nodes
    }

    #[test]
    fn an_event_is_proven_by_its_hash_and_the_key_that_signed() {
        let (events, [old, new], [_, last]) = ledger();
        let nodes = nodes(&events);
        let node = |at: u64| Ok::<_, ProofError>(nodes[usize::try_from(at).expect("small")]);
        let seq = events[2].header.seq;
        let proof = InclusionProof {
            seq,
            path: merkle::inclusion_path(seq, last.size(), node).expect("a path"),
            checkpoint: last,
        };
        let keys = [old.clone(), new];
        let shown = inclusion(&proof, events[2].hash, &keys).expect("it holds");
        assert!(shown.starts_with("event 3 is in the ledger of 7 events that flux.example"));
        assert!(inclusion(&proof, events[3].hash, &keys).is_err());
        assert!(
            inclusion(&proof, events[2].hash, &[old]).is_err(),
            "another key"
        );
        assert_eq!(
            hash_in(Path::new(EXPORT), seq).expect("it has it"),
            events[2].hash
        );
        let none = GlobalSeq::new(99).expect("a seq");
        assert!(hash_in(Path::new(EXPORT), none).is_err());
    }

    #[test]
    fn a_later_state_is_proven_by_the_earlier_checkpoint_and_the_keys_of_both() {
        let (events, [old, new], [earlier, last]) = ledger();
        let nodes = nodes(&events);
        let node = |at: u64| Ok::<_, ProofError>(nodes[usize::try_from(at).expect("small")]);
        let (from, to) = (earlier.size(), last.size());
        let mut proof = ConsistencyProof {
            from,
            path: merkle::consistency_path(from, to, node).expect("a path"),
            checkpoint: last.clone(),
        };
        let both = [old.clone(), new];
        let shown = consistency(&proof, &earlier, &both).expect("it holds");
        assert!(shown.contains("begins with the"), "{shown}");
        assert!(
            consistency(&proof, &earlier, &[old]).is_err(),
            "one key of two"
        );
        assert!(consistency(&proof, &last, &both).is_err(), "another size");
        proof.path.reverse();
        assert!(proof.path.len() > 1 && consistency(&proof, &earlier, &both).is_err());
        proof.from = Position::START;
        assert!(consistency(&proof, &earlier, &both).is_err());
    }
}
