//! No byte of an export can change in a single bit without being noticed.

mod support;

use fluxvm_verify::*;
use proptest::prelude::*;
use support::*;

fn accepts(bytes: &[u8]) -> bool {
    verify_export(bytes, &unsigned()).is_clean()
}

#[test]
fn every_single_bit_of_a_small_export_counts() {
    let mut forge = Forge::of_ledger(1, 3);
    forge.append("host", "null");
    forge.append_kind(LEDGER_STREAM, "ledger.redacted", "{\"seqs\":[2]}");
    forge.events[1].payload = Payload::Redacted;
    let mut text = forge.text().into_bytes();
    assert!(accepts(&text));
    for bit in 0..text.len() * 8 {
        text[bit / 8] ^= 1 << (bit % 8);
        let context = String::from_utf8_lossy(&text[(bit / 8).saturating_sub(20)..][..21]);
        assert!(!accepts(&text), "bit {bit} is not covered: {context}");
        text[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_single_bit_of_an_empty_export_counts() {
    let mut text = Forge::of_ledger(1, 0).text().into_bytes();
    assert!(accepts(&text));
    for bit in 0..text.len() * 8 {
        text[bit / 8] ^= 1 << (bit % 8);
        assert!(!accepts(&text), "bit {bit} is not covered");
        text[bit / 8] ^= 1 << (bit % 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_flipped_bit_in_any_ledger_is_never_accepted(
        payloads in prop::collection::vec("[a-z\u{e9}\"\\\\ ]{0,40}", 1..6),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
        one_stream in any::<bool>(),
    ) {
        let mut forge = Forge::of_ledger(3, 0);
        for payload in &payloads {
            forge.append("session/p", &serde_json::to_string(payload).unwrap());
        }
        if one_stream {
            forge.scope = Scope::OneStream(StreamName::parse("session/p").unwrap());
        }
        let mut text = forge.text().into_bytes();
        prop_assert!(accepts(&text));
        let at = at.index(text.len());
        text[at] ^= 1 << bit;
        prop_assert!(!accepts(&text));
    }

    #[test]
    fn no_input_makes_the_verifier_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(!accepts(&bytes));
    }
}
