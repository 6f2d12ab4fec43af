//! How much of the stored content is there is said, and what should be there is missed.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use bytes::Bytes;
use fluxvm_verify::FaultCode::BlobMissing;
use fluxvm_verify::FaultCode::BlobRepeated;
use fluxvm_verify::FaultCode::LineForm;
use fluxvm_verify::FaultCode::MalformedLine;
use fluxvm_verify::evidence::*;
use fluxvm_verify::*;
use support::evidence::*;
use support::*;

const SEED: u8 = 7;

fn digest(content: &str) -> EventHash {
    EventHash::from_bytes(*blake3::hash(content.as_bytes()).as_bytes())
}

/// An export of a command that names two blobs and a digest of something else.
fn with_content(blobs: &[&str], is_claimed: bool) -> Vec<String> {
    let mut forge = Forge::with_key(SEED, 0);
    let (out, err, other) = (digest("out"), digest("err"), digest("never stored"));
    let payload = format!(
        r#"{{"env":{{"blob":"{other}"}},"stderr":{{"blob":"{err}"}},"stdout":{{"blake3":"{other}","blob":"{out}"}}}}"#
    );
    forge.append("session/a", &payload);
    forge.append("session/a", &format!(r#"{{"blobs":["{out}"]}}"#));
    let mut lines = forge.evidence(SEED);
    let end = lines.pop().unwrap();
    for blob in blobs {
        let content = Bytes::copy_from_slice(blob.as_bytes());
        lines.extend(blob_parts(digest(blob), &content).map(|part| blob_line(&part)));
    }
    lines.push(end);
    if is_claimed {
        assert!(lines[0].ends_with("\"}\n"));
        lines[0] = lines[0].replace("\"}\n", "\",\"content\":true}\n");
    }
    lines
}

type Found = Vec<(FaultCode, Option<u64>)>;

fn verified(lines: &[String]) -> (Found, (u64, u64)) {
    let report = verify_with(lines, &VerifyOptions::default());
    let content = report.content;
    (codes(&report), (content.present, content.named))
}

#[test]
fn what_is_there_of_what_is_named_is_counted() {
    for is_claimed in [false, true] {
        let lines = with_content(&["out", "err"], is_claimed);
        assert_eq!(verified(&lines), (vec![], (2, 2)));
    }
    assert_eq!(verified(&with_content(&["err"], false)), (vec![], (1, 2)));
    assert_eq!(verified(&with_content(&[], false)), (vec![], (0, 2)));
    // A digest that an event refers to in another way may come along, and is not counted.
    let lines = with_content(&["out", "never stored"], false);
    assert_eq!(verified(&lines), (vec![], (1, 2)));
}

#[test]
fn a_blob_taken_out_of_an_export_that_claims_to_have_it_is_found() {
    let lines = with_content(&["err"], true);
    assert_eq!(verified(&lines), (vec![(BlobMissing, None)], (1, 2)));
}

#[test]
fn a_blob_that_is_there_twice_is_found() {
    let lines = with_content(&["out", "err", "out"], true);
    assert_eq!(verified(&lines), (vec![(BlobRepeated, None)], (2, 2)));
}

#[test]
fn the_claim_has_one_form_and_belongs_to_evidence() {
    let good = with_content(&["out", "err"], true);
    let mut off = good.clone();
    off[0] = off[0].replace("\"content\":true", "\"content\":false");
    assert_eq!(verified(&off).0[1], (LineForm, None));
    let mut plain = Forge::new().lines();
    plain[0] = plain[0].replace("\"}\n", "\",\"content\":true}\n");
    let found = codes(&verify(&plain.concat()));
    assert!(found.contains(&(MalformedLine, None)), "{found:?}");
}
