//! `ledger doctor`: how the ledger is, one thing a line.

use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::VerifierKey;
use serde_json::Value;
use serde_json::json;

use super::Context;
use crate::error::CliError;
use crate::error::EXIT_FAILED;
use crate::render;

/// A sync that takes longer than this makes every command wait; in microseconds.
const SYNC_SLOW_MICROS: u64 = 5_000;

/// `ledger doctor`: asks for a checkpoint and looks at it, and at what the daemon says of itself.
pub(super) fn doctor(context: &Context) -> Result<u8, CliError> {
    let client = context.client()?;
    let note = client.get_text("/v1/ledger/checkpoint")?;
    let keys = client.get("/v1/ledger/key")?;
    // Last, so that the checkpoint cannot be ahead of it.
    let info = client.get("/v1/ledger/info?content=true")?;
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
    let mut checks = vec![
        Check {
            name: "sync time",
            // The median: one slow sync of a young ledger says nothing about the disk.
            is_well: Some(p50 < SYNC_SLOW_MICROS),
            found: match p50 < SYNC_SLOW_MICROS {
                true => format!("half within {p50} µs, 99 of 100 within {p99} µs"),
                false => format!(
                    "half within {p50} µs, 99 of 100 within {p99} µs: half should stay below \
                     {SYNC_SLOW_MICROS} µs, every command waits for a sync"
                ),
            },
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
    checks.push(content(info));
    checks.push(archive(info, position));
    checks.extend(pushes(info));
    checks.extend(erasure(info));
    checks.extend(found_destroyed(info));
    checks
}

/// Whether what events stand for is there.
fn content(info: &Value) -> Check {
    let number = |name: &str| {
        let number = info.pointer(&format!("/content/{name}"));
        number.and_then(Value::as_u64)
    };
    let (events, pieces) = (number("events"), number("pieces").unwrap_or_default());
    let missing = number("missing").unwrap_or_default();
    let looked = format!(
        "{pieces} pieces of the newest {} events",
        events.unwrap_or_default()
    );
    let found = match number("first_missing") {
        None => format!("{looked}, none missing"),
        Some(first) => format!(
            "{looked}, {missing} MISSING, the first of event {first}: put the blobs folder back, or \
             rebuild from the archive"
        ),
    };
    Check {
        name: "content",
        is_well: events.map(|_| missing == 0),
        found,
    }
}

/// The second copy: there or not, whole or not.
fn archive(info: &Value, position: u64) -> Check {
    let text = |path: &str| info.pointer(path).and_then(Value::as_str);
    let dir = text("/archive/dir").unwrap_or_default();
    let archived = info.pointer("/archive/archived").and_then(Value::as_u64);
    let (is_well, found) = match text("/archive/state") {
        None => (None, "none".to_owned()),
        Some("ok") => {
            let lag = position.saturating_sub(archived.unwrap_or_default());
            (Some(true), format!("{dir}, {lag} events behind"))
        }
        Some(_) => {
            let why = text("/archive/error").unwrap_or_default();
            let found = format!("{dir} has failed, nothing more is archived: {why}");
            (Some(false), found)
        }
    };
    Check {
        name: "archive",
        is_well,
        found,
    }
}

/// Each place that checkpoints are pushed to.
fn pushes(info: &Value) -> Vec<Check> {
    let pushes = info.pointer("/checkpoint_pushes").and_then(Value::as_array);
    let check = |push: &Value| {
        let to = push.get("to").and_then(Value::as_str).unwrap_or_default();
        let size = push.get("size").and_then(Value::as_u64);
        let error = push.get("error").and_then(Value::as_str);
        let (is_well, found) = match (size, error) {
            (_, Some(error)) => (Some(false), format!("{to}: the last push failed: {error}")),
            (Some(size), None) => (Some(true), format!("{to} has the one of {size} events")),
            (None, None) => (None, format!("{to}: none since the start")),
        };
        Check {
            name: "checkpoints",
            is_well,
            found,
        }
    };
    pushes.into_iter().flatten().map(check).collect()
}

/// Keys that nobody ordered destroyed; nothing to say where there are none.
fn found_destroyed(info: &Value) -> Option<Check> {
    let streams = info
        .pointer("/keys_found_destroyed")
        .and_then(Value::as_array)?;
    let first = streams.first().and_then(Value::as_str)?;
    Some(Check {
        name: "seal keys",
        is_well: Some(false),
        found: format!(
            "{} DESTROYED and no event ordered it, the first of {first}: what it said is lost, unless you \
             have its key",
            streams.len()
        ),
    })
}

/// Erased bytes that are still in a file.
fn erasure(info: &Value) -> Vec<Check> {
    let places = info
        .pointer("/erasure_pending_in")
        .and_then(Value::as_array);
    let places = places.into_iter().flatten().filter_map(Value::as_str);
    let has_failed = info.pointer("/archive/error").is_some_and(Value::is_string);
    let check = |place: &str| {
        let (is_well, found) = match place {
            "archive" if has_failed => (
                Some(false),
                "the archive, which has failed, holds or may hold erased bytes: repair or remove it \
                 and restart the daemon, which writes it anew",
            ),
            "archive" => (
                None,
                "the archive is being written anew without erased bytes",
            ),
            _ => (
                None,
                "erased bytes are still in the store's files: restart the daemon",
            ),
        };
        Check {
            name: "erasure",
            is_well,
            found: found.to_owned(),
        }
    };
    places.map(check).collect()
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
            "bytes_on_disk": 2048, "head": {"position": 7}, "erasure_pending": true, "erasure_pending_in": ["store", "archive"],
            "archive": {"state": "failed", "dir": "/a", "archived": 3, "error": "damaged"},
            "content": {"events": 9, "pieces": 4, "missing": 2, "first_missing": 3},
            "keys_found_destroyed": ["session/x"],
            "checkpoint_pushes": [{"to": "witness", "size": 7, "error": "refused"}]});
        let checks = diagnose(&info, &json!({}), "");
        let found = |name: &str| checks.iter().find(|check| check.name == name);
        assert_eq!(found("sync time").and_then(|it| it.is_well), Some(false));
        assert!(found("sync time").is_some_and(|it| it.found.contains("5000")));
        assert!(found("erasure").is_some());
        assert_eq!(found("seal keys").and_then(|it| it.is_well), Some(false));
        let content = found("content").map(|it| (it.is_well, it.found.contains("2 MISSING")));
        assert_eq!(content, Some((Some(false), true)));
        assert_eq!(found("archive").and_then(|it| it.is_well), Some(false));
        assert_eq!(found("checkpoints").and_then(|it| it.is_well), Some(false));
        let in_archive = checks.iter().rfind(|check| check.name == "erasure");
        assert_eq!(in_archive.and_then(|it| it.is_well), Some(false));
    }
}
