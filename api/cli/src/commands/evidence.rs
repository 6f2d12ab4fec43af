//! What can be asked of the ledger as evidence: events, checkpoints, proofs, keys, and how it is.

use std::io::Write;
use std::path::Path;

use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::VerifierKey;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::export;
use super::file_error;
use crate::args::ledger::LedgerEventsArgs;
use crate::args::ledger::ProveArgs;
use crate::args::ledger::ProveConsistencyArgs;
use crate::client::Patience;
use crate::client::with_query;
use crate::error::CliError;
use crate::error::EXIT_FAILED;
use crate::output::note;
use crate::render;

/// A sync that takes longer than this makes every command wait; in microseconds.
const SYNC_SLOW_MICROS: u64 = 5_000;

/// `ledger events`: an event a line, whether for people or for programs.
pub(super) fn events(context: &Context, args: &LedgerEventsArgs) -> Result<u8, CliError> {
    let path = with_query(
        "/v1/ledger/events",
        &[
            ("from", args.from.map(|from| from.to_string())),
            ("stream", args.stream.clone()),
        ],
    );
    export::run(
        context,
        &context.client()?,
        &path,
        None,
        export::Form::Plain,
    )
}

/// `ledger checkpoint`.
pub(super) fn checkpoint(context: &Context, out: Option<&Path>) -> Result<u8, CliError> {
    let note = context.client()?.get_text("/v1/ledger/checkpoint")?;
    write(context, &note, out)
}

/// `ledger prove`.
pub(super) fn prove(context: &Context, args: &ProveArgs) -> Result<u8, CliError> {
    let path = format!("/v1/ledger/proof/{}", args.seq);
    let proof = context.client()?.get_text(&path)?;
    write(context, &proof, args.out.out.as_deref())
}

/// `ledger prove-consistency`.
pub(super) fn prove_consistency(
    context: &Context,
    args: &ProveConsistencyArgs,
) -> Result<u8, CliError> {
    let path = with_query(
        "/v1/ledger/consistency",
        &[
            ("from", Some(args.from.to_string())),
            ("to", args.to.map(|to| to.to_string())),
        ],
    );
    let proof = context.client()?.get_text(&path)?;
    write(context, &proof, args.out.out.as_deref())
}

/// `ledger key`.
pub(super) fn key(context: &Context) -> Result<u8, CliError> {
    let answer = context.client()?.get("/v1/ledger/key")?;
    context.output.show(&answer, render::evidence::keys)?;
    Ok(0)
}

/// `ledger rotate-key`.
pub(super) fn rotate_key(context: &Context) -> Result<u8, CliError> {
    let client = context.client()?;
    let answer = client.post("/v1/ledger/rotate-key", &json!({}), Patience::Normal)?;
    note("The key was handed on. Give the new one to whoever verifies this ledger.");
    context.output.show(&answer, render::evidence::keys)?;
    Ok(0)
}

/// `ledger doctor`: asks for a checkpoint and looks at it, and at what the daemon says of itself.
pub(super) fn doctor(context: &Context) -> Result<u8, CliError> {
    let client = context.client()?;
    let note = client.get_text("/v1/ledger/checkpoint")?;
    let keys = client.get("/v1/ledger/key")?;
    // Last, so that the checkpoint cannot be ahead of it.
    let info = client.get("/v1/ledger/info")?;
    let checks = diagnose(&info, &keys, &note);
    let is_well = checks.iter().all(|check| check.is_well != Some(false));
    let answer = json!({
        "ok": is_well,
        "checks": checks.iter().map(Check::to_json).collect::<Vec<_>>(),
    });
    context
        .output
        .show(&answer, |_, style| render::evidence::checks(&checks, style))?;
    Ok(if is_well { 0 } else { EXIT_FAILED })
}

/// One thing that was looked at.
#[derive(Debug)]
pub(crate) struct Check {
    /// What.
    pub(crate) name: &'static str,
    /// Whether it is as it should be; `None` where there is nothing that it should be.
    pub(crate) is_well: Option<bool>,
    /// What was found.
    pub(crate) found: String,
}

impl Check {
    fn to_json(&self) -> Value {
        json!({"name": self.name, "ok": self.is_well, "found": self.found})
    }
}

fn diagnose(info: &Value, keys: &Value, note: &str) -> Vec<Check> {
    let number = |path: &str| {
        info.pointer(path)
            .and_then(Value::as_u64)
            .unwrap_or_default()
    };
    let (p50, p99) = (number("/sync_micros_p50"), number("/sync_micros_p99"));
    let position = number("/head/position");
    let vkey = keys.pointer("/vkey").and_then(Value::as_str);
    let pending = info.pointer("/erasure_pending").and_then(Value::as_bool);
    let mut checks = vec![
        Check {
            name: "sync time",
            // The median: one slow sync of a young ledger says nothing about the disk.
            is_well: Some(p50 < SYNC_SLOW_MICROS),
            found: format!("half within {p50} µs, 99 of 100 within {p99} µs"),
        },
        Check {
            name: "size",
            is_well: None,
            found: render::human_bytes(number("/bytes_on_disk")),
        },
        Check {
            name: "head",
            is_well: Some(position > 0),
            found: format!("event {position}"),
        },
        signature(vkey, note, position),
    ];
    if pending == Some(true) {
        checks.push(Check {
            name: "erasure",
            is_well: None,
            found: "erased bytes are still in the store's files: restart the daemon".to_owned(),
        });
    }
    checks
}

/// Whether the key that the daemon names signed the checkpoint that it gave.
fn signature(vkey: Option<&str>, note: &str, position: u64) -> Check {
    let bad = |found: String| Check {
        name: "key",
        is_well: Some(false),
        found,
    };
    let key = vkey.unwrap_or_default().parse::<VerifierKey>();
    let checkpoint = note.parse::<SignedCheckpoint>();
    let (key, checkpoint) = match (key, checkpoint) {
        (Ok(key), Ok(checkpoint)) => (key, checkpoint),
        (Err(e), _) => return bad(format!("the key cannot be read: {e}")),
        (_, Err(e)) => return bad(format!("the checkpoint cannot be read: {e}")),
    };
    let verdict = checkpoint.note().verdict(&key);
    if verdict != fluxvm_verify::NoteVerdict::Signed {
        return bad("the checkpoint is not signed by the ledger's key".to_owned());
    }
    if checkpoint.size().get() > position {
        return bad("the checkpoint is ahead of the ledger".to_owned());
    }
    let found = format!("{key}, signed up to event {}", checkpoint.size());
    Check {
        name: "key",
        is_well: Some(true),
        found,
    }
}

/// Signed text is written as it is: a byte more or less and it verifies no longer.
fn write(context: &Context, text: &str, out: Option<&Path>) -> Result<u8, CliError> {
    match out.filter(|out| *out != Path::new("-")) {
        None => context.output.bytes(text.as_bytes())?,
        Some(out) => {
            let failed = |error| file_error(out, error);
            let mut file = std::fs::File::create(out).map_err(failed)?;
            file.write_all(text.as_bytes()).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            note(&format!("Wrote {}.", out.display()));
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_the_ledgers_key_did_not_sign_is_found() {
        let check = signature(Some("no key"), "no note", 7);
        assert_eq!(check.is_well, Some(false));
    }

    #[test]
    fn a_slow_disk_and_an_unfinished_erasure_are_said() {
        let info = json!({"sync_micros_p50": SYNC_SLOW_MICROS, "sync_micros_p99": 20_000,
            "bytes_on_disk": 2048, "head": {"position": 7}, "erasure_pending": true});
        let checks = diagnose(&info, &json!({}), "");
        let found = |name: &str| checks.iter().find(|check| check.name == name);
        assert_eq!(found("sync time").and_then(|it| it.is_well), Some(false));
        assert!(found("erasure").is_some());
    }
}
