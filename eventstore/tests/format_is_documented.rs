//! The format is written down byte for byte, and what is written down is what the code does: the
//! document names the digest of each source file that lays bytes down, and this fails when one of
//! them differs.

use std::fs;
use std::path::Path;

/// The files under which no byte may move without a word in the document.
const SOURCES: [&str; 23] = [
    "eventstore/verify/src/canonical.rs",
    "eventstore/verify/src/checkpoint.rs",
    "eventstore/verify/src/evidence.rs",
    "eventstore/verify/src/export.rs",
    "eventstore/verify/src/genesis.rs",
    "eventstore/verify/src/hash.rs",
    "eventstore/verify/src/header.rs",
    "eventstore/verify/src/merkle/mod.rs",
    "eventstore/verify/src/merkle/proof.rs",
    "eventstore/verify/src/note.rs",
    "eventstore/verify/src/rotation.rs",
    "eventstore/verify/src/tlog_proof.rs",
    "eventstore/src/head_file.rs",
    "eventstore/src/keys.rs",
    "eventstore/src/record.rs",
    "eventstore/src/seal.rs",
    "eventstore/src/seal/files.rs",
    "eventstore/src/seal/key.rs",
    "eventstore/src/seal/note.rs",
    "eventstore/src/signing_key.rs",
    "eventstore/src/snapshot/codec.rs",
    "eventstore/src/snapshot/file.rs",
    "eventstore/src/store/log.rs",
];

#[test]
fn the_document_names_the_digest_of_each_file_that_lays_bytes_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let document = fs::read_to_string(root.join("docs/LEDGER.md")).unwrap();
    let rows = SOURCES.map(|source| {
        let text = fs::read_to_string(root.join(source)).unwrap();
        // The tests of a file lay nothing down.
        let code = text.split("#[cfg(test)]").next().unwrap();
        format!("| `{source}` | `{}` |", blake3::hash(code.as_bytes()))
    });
    let missing: Vec<_> = rows
        .iter()
        .filter(|row| !document.contains(*row))
        .cloned()
        .collect();
    assert!(
        missing.is_empty(),
        "The format may have changed. Ledgers of every release must stay readable: if bytes moved, \
         it needs a new version number and a new section in docs/LEDGER.md. Then put these rows \
         there:\n{}",
        missing.join("\n")
    );
}
