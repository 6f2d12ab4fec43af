//! A command's answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// What `POST …/exec` answered for a command that ran.
#[derive(Clone, Debug)]
pub struct Exec {
    /// Its exit code.
    pub exit_code: i64,
    /// Its exact standard output.
    pub stdout: Vec<u8>,
    /// Its exact standard error.
    pub stderr: Vec<u8>,
    /// The ledger number of its outcome.
    pub seq: u64,
    /// Everything that was answered.
    pub json: Value,
}

impl Exec {
    pub(crate) fn from_json(json: Value) -> Self {
        assert_eq!(json["result"], "exec", "{json}");
        Self {
            exit_code: json["exit_code"].as_i64().expect("an exit code"),
            stdout: stream(&json, "stdout"),
            stderr: stream(&json, "stderr"),
            seq: json["seq"].as_u64().expect("a ledger number"),
            json,
        }
    }

    /// Its standard output, which must be text.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("standard output is text")
    }

    /// Whether its time ran out.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.json["timed_out"] == true
    }

    /// How many processes it left running.
    #[must_use]
    pub fn survivors(&self) -> u64 {
        self.json["survivors"]["total"].as_u64().unwrap_or_default()
    }
}

/// The exact bytes when they were sent beside the text, else the text, which is then exact.
fn stream(json: &Value, name: &str) -> Vec<u8> {
    let text = json[name].as_str().expect("each stream is there as text");
    match &json[format!("{name}_base64")] {
        Value::Null => text.as_bytes().to_vec(),
        exact => {
            let bytes = STANDARD
                .decode(exact.as_str().expect("base64 is a text"))
                .expect("base64");
            assert_eq!(
                text,
                String::from_utf8_lossy(&bytes),
                "the text shows the exact bytes"
            );
            bytes
        }
    }
}
