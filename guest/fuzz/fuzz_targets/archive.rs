//! Any bytes, as an archive: unpacked or refused, and nothing outside the root is touched.
#![no_main]

use std::sync::LazyLock;

static FOLDER: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a folder of its own"));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    microvms_agentd::fuzzing::archive(FOLDER.path(), bytes);
});
