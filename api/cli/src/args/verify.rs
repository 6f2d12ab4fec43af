//! The command line of `ledger verify` and `ledger verify-proof`.

use std::path::PathBuf;

use clap::Args;
use clap::ValueHint;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::LedgerId;
use fluxvm_verify::VerifierKey;

/// What `--help` says about a verdict.
pub(crate) const VERIFY_HELP: &str = "\
A clean verdict says that no event in the file was changed, moved, dropped from the middle or slipped
in, and that the key in its first line signed for all of it.

Recommended: --key and --against. Whose key it is, the file cannot say: note down once what `fluxctl
ledger key` prints, and pass it as --key. That the end was not cut off, and that whoever kept the ledger
did not write all of it anew, can only be seen from outside: keep what `fluxctl ledger checkpoint` prints
where the ledger's keeper cannot reach it, and pass it as --against (or a head, as --known).

A file without a signed checkpoint (format 1) is refused: whoever has it can have written it anew.

Exit codes: 0 no fault, 1 faults or not proven, 2 the file cannot be read";

/// `ledger verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The JSONL file; `-` reads stdin
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The ledger that it must be of
    #[arg(long, value_name = "UUID")]
    pub(crate) ledger_id: Option<LedgerId>,
    /// An event noted down earlier, which must still have this hash (repeatable)
    #[arg(long, value_name = "SEQ:HASH", value_parser = parse_known)]
    pub(crate) known: Vec<(GlobalSeq, EventHash)>,
    /// A key that must have spoken for the ledger; recommended, because otherwise the file itself says
    /// whose signature counts
    #[arg(long, value_name = "VKEY")]
    pub(crate) key: Option<VerifierKey>,
    /// A signed checkpoint that was kept elsewhere, which the ledger must go through; recommended
    /// (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) against: Vec<PathBuf>,
    /// What `ledger prove-consistency` wrote: holds the export of one session against a checkpoint of
    /// another size (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) consistency: Vec<PathBuf>,
    /// Take a file that nobody signed; then nothing binds it to the ledger
    #[arg(long, conflicts_with = "key")]
    pub(crate) allow_unsigned: bool,
}

/// `ledger verify-proof`.
#[derive(Debug, Args)]
pub(crate) struct VerifyProofArgs {
    /// What `ledger prove` or `ledger prove-consistency` wrote
    #[arg(value_name = "PROOF", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The key that must have signed, which the proof does not hold; where it was handed on between two
    /// checkpoints, both (repeatable)
    #[arg(long, required = true, value_name = "VKEY")]
    pub(crate) key: Vec<VerifierKey>,
    /// Of an event: its hash, as `ledger events` prints it
    #[arg(long, value_name = "HASH")]
    pub(crate) hash: Option<EventHash>,
    /// Of an event: an export that has it, instead of its hash
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "hash")]
    pub(crate) export: Option<PathBuf>,
    /// Of a later state: the earlier checkpoint
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) against: Option<PathBuf>,
}

fn parse_known(text: &str) -> Result<(GlobalSeq, EventHash), String> {
    let wrong = || format!("`{text}` is not SEQ:HASH, as `fluxctl ledger info` prints the head");
    let (seq, hash) = text.split_once(':').ok_or_else(wrong)?;
    let seq = seq
        .parse()
        .ok()
        .and_then(GlobalSeq::new)
        .ok_or_else(wrong)?;
    Ok((seq, hash.parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noted_event_is_its_seq_and_its_hash() {
        let hash = "ab".repeat(32);
        assert!(parse_known(&format!("7:{hash}")).is_ok());
        for wrong in ["7", "0:", &format!("0:{hash}"), "7:abc"] {
            assert!(parse_known(wrong).is_err(), "{wrong} was accepted");
        }
    }
}
