//! Our notes, checkpoints and proof files against independent readers of the same.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

use ed25519_dalek::Signer as _;
use ed25519_dalek::SigningKey;
use fluxvm_verify::merkle::Frontier;
use fluxvm_verify::*;

const ORIGIN: &str = "flux.example/ledger";

fn key(seed: u8) -> (SigningKey, VerifierKey) {
    let signing = SigningKey::from_bytes(&[seed; 32]);
    let public = VerifierKey::new(ORIGIN, signing.verifying_key().as_bytes()).unwrap();
    (signing, public)
}

fn signature(seed: u8, text: &str) -> NoteSignature {
    let (signing, public) = key(seed);
    NoteSignature {
        name: ORIGIN.to_owned(),
        id: public.id(),
        signature: signing.sign(text.as_bytes()).to_bytes().to_vec(),
    }
}

fn checkpoint() -> Checkpoint {
    let mut frontier = Frontier::default();
    (0..7).for_each(|n| frontier.push(&EventHash::from_bytes([n; 32]), |_, _| {}));
    Checkpoint {
        origin: ORIGIN.to_owned(),
        size: frontier.size(),
        root: frontier.root(),
    }
}

fn note(seeds: &[u8]) -> String {
    let text = checkpoint().to_string();
    let signatures = seeds.iter().map(|seed| signature(*seed, &text)).collect();
    SignedNote::new(text, signatures).to_string()
}

fn others_accept(note: &[u8], vkey: &str) -> bool {
    let verifier = signed_note::StandardVerifier::new(vkey).unwrap();
    let known = signed_note::VerifierList::new(vec![Box::new(verifier)]);
    let Ok(note) = signed_note::Note::from_bytes(note) else {
        return false;
    };
    note.verify(&known).is_ok() && tlog_tiles::Checkpoint::from_bytes(note.text()).is_ok()
}

fn we_accept(note: &[u8], key: &VerifierKey) -> bool {
    let note: Option<SignedCheckpoint> = std::str::from_utf8(note).unwrap_or("").parse().ok();
    note.is_some_and(|note| {
        note.note().verdict(key) == NoteVerdict::Signed && note.checkpoint().origin == key.name()
    })
}

#[test]
fn others_read_our_checkpoint_as_what_we_wrote() {
    let note = note(&[7]);
    assert!(others_accept(note.as_bytes(), &key(7).1.to_string()));
    let text = signed_note::Note::from_bytes(note.as_bytes()).unwrap();
    let theirs = tlog_tiles::Checkpoint::from_bytes(text.text()).unwrap();
    let ours: SignedCheckpoint = note.parse().unwrap();
    assert_eq!(theirs.origin(), ours.checkpoint().origin);
    assert_eq!(theirs.size(), ours.size().get());
    assert_eq!(&theirs.hash().0, ours.root().as_bytes());
    assert_eq!(ours.to_string(), note);
}

#[test]
fn a_flipped_bit_anywhere_in_a_note_is_refused_by_us_and_by_others() {
    let (_, public) = key(7);
    let good = note(&[7]).into_bytes();
    assert!(we_accept(&good, &public));
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!we_accept(&bad, &public), "bit {bit}");
        // The oracle is slow without optimisation; a step of 13 meets every bit of a byte.
        assert!(
            bit % 13 != 0 || !others_accept(&bad, &public.to_string()),
            "bit {bit}"
        );
    }
}

#[test]
fn signatures_of_others_are_kept_and_not_judged() {
    let parsed = SignedNote::parse(&note(&[1, 7, 2])).unwrap();
    assert_eq!(parsed.signatures().len(), 3);
    for seed in [1, 7, 2] {
        assert_eq!(parsed.verdict(&key(seed).1), NoteVerdict::Signed);
    }
    assert_eq!(parsed.verdict(&key(3).1), NoteVerdict::Unsigned);
    assert!(others_accept(
        note(&[1, 7, 2]).as_bytes(),
        &key(7).1.to_string()
    ));
}

#[test]
fn a_signature_over_another_text_is_forged_and_a_stripped_one_is_missing() {
    let text = checkpoint().to_string();
    let forged = SignedNote::new(text.clone(), vec![signature(7, "another\n")]);
    assert_eq!(forged.verdict(&key(7).1), NoteVerdict::Forged);
    let stripped = SignedNote::parse(&format!("{text}\n")).unwrap();
    assert_eq!(stripped.verdict(&key(7).1), NoteVerdict::Unsigned);
}

#[test]
fn what_is_not_a_note_or_not_a_checkpoint_is_refused_by_name() {
    let note = note(&[7]);
    let refuse = |text: &str| SignedNote::parse(text).unwrap_err();
    assert_eq!(refuse(""), NoteError::Layout);
    assert_eq!(refuse("text\n"), NoteError::Layout);
    assert_eq!(refuse("\n\n"), NoteError::Layout);
    assert_eq!(refuse(note.trim_end()), NoteError::Layout);
    assert_eq!(refuse(&note.replace('\n', "\r\n")), NoteError::Control);
    assert_eq!(refuse(&note.replace('\u{2014}', "-")), NoteError::Signature);
    assert_eq!(
        refuse(&note.replace("ledger ", "ledger  ")),
        NoteError::Signature
    );
    let many = format!(
        "{note}{}",
        &note[note.find('\u{2014}').unwrap()..].repeat(100)
    );
    assert_eq!(refuse(&many), NoteError::TooMany);
    assert_eq!(refuse(&"x".repeat(NOTE_BYTES_MAX + 1)), NoteError::TooLong);

    let root = checkpoint().root.to_base64();
    for text in [
        format!("{ORIGIN}\n07\n{root}\n"),
        format!("{ORIGIN}\n+7\n{root}\n"),
        format!("{ORIGIN}\n7\n{}\n", &root[1..]),
        format!("{ORIGIN}\n7\n{root}\nextension\n"),
        format!("{ORIGIN}\n7\n"),
        format!("\n7\n{root}\n"),
        format!("{ORIGIN}\n7\n{root}"),
    ] {
        assert_eq!(
            text.parse::<Checkpoint>(),
            Err(CheckpointError::Layout),
            "{text}"
        );
    }
}

#[test]
fn a_verifier_key_has_one_form_and_weak_keys_are_refused() {
    let text = key(7).1.to_string();
    assert_eq!(text.parse::<VerifierKey>().unwrap().to_string(), text);
    signed_note::StandardVerifier::new(&text).unwrap();
    for bit in 0..text.len() * 8 {
        let mut bad = text.clone().into_bytes();
        bad[bit / 8] ^= 1 << (bit % 8);
        if let Ok(bad) = String::from_utf8(bad) {
            assert!(bad.parse::<VerifierKey>().is_err(), "{bad}");
        }
    }
    let mut identity = [0; 32];
    identity[0] = 1;
    assert!(VerifierKey::new(ORIGIN, &identity).is_err());
    assert!(VerifierKey::new("a b", &[7; 32]).is_err());
}

fn proof() -> (EventHash, InclusionProof) {
    let mut stored = Vec::new();
    let mut frontier = Frontier::default();
    (0..7)
        .for_each(|n| frontier.push(&EventHash::from_bytes([n; 32]), |_, hash| stored.push(hash)));
    let seq = GlobalSeq::new(5).unwrap();
    let node = |i: u64| Ok::<_, ProofError>(stored[usize::try_from(i).unwrap()]);
    let proof = InclusionProof {
        seq,
        path: merkle::inclusion_path(seq, frontier.size(), node).unwrap(),
        checkpoint: note(&[7]).parse().unwrap(),
    };
    (EventHash::from_bytes([4; 32]), proof)
}

#[test]
fn an_inclusion_proof_file_reads_back_and_no_bit_of_it_can_change() {
    let (event, proof) = proof();
    let text = proof.to_string();
    assert!(text.starts_with("c2sp.org/tlog-proof@v1\nindex 4\n"));
    let accepts = |text: &[u8]| {
        let proof: Option<InclusionProof> = std::str::from_utf8(text).unwrap_or("").parse().ok();
        proof.is_some_and(|proof| {
            proof.verify(&event).is_ok()
                && proof.checkpoint.note().verdict(&key(7).1) == NoteVerdict::Signed
        })
    };
    assert!(accepts(text.as_bytes()));
    let path_end = text.find("\n\n").unwrap() * 8;
    for bit in (0..path_end).chain((path_end..text.len() * 8).step_by(5)) {
        let mut bad = text.clone().into_bytes();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!accepts(&bad), "bit {bit}");
    }
    let again: InclusionProof = text.parse().unwrap();
    assert_eq!((again.to_string(), again), (text, proof));
}

#[test]
fn a_consistency_proof_file_reads_back() {
    let (_, inclusion) = proof();
    let proof = ConsistencyProof {
        from: Position::new(7),
        path: Vec::new(),
        checkpoint: inclusion.checkpoint,
    };
    let text = proof.to_string();
    assert!(text.starts_with("old 7\n\nflux.example"));
    assert_eq!(text.parse::<ConsistencyProof>().unwrap(), proof);
    proof.verify(&checkpoint().root).unwrap();
    assert_eq!(proof.verify(&TreeHash::of_nothing()), Err(ProofError::Root));
    let many = format!(
        "old 7\n{}\n{}",
        format!("{}\n", checkpoint().root.to_base64()).repeat(64),
        proof.checkpoint
    );
    assert_eq!(
        many.parse::<ConsistencyProof>(),
        Err(ProofFileError::Layout)
    );
    assert_eq!(
        "new 7\n\n".parse::<ConsistencyProof>(),
        Err(ProofFileError::Kind)
    );
}
