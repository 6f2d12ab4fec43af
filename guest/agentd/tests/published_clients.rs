//! The published clients of the protocol against this daemon: what others built is the judge.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing
)]

mod support;

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use agentd_client::protocol::IdentityPair;
use agentd_client::protocol::tunnel::NOISE_PATTERN;
use microvms_protocol as published;
use serde::de::DeserializeOwned;
use support::*;

/// The published Python package, in an environment of its own in the target folder.
fn python_with_client() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("microvms-1.3.0");
    let python = folder.join("bin/python");
    let run = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(format!("{}: {error}", program.display())),
        }
    };
    if run(&python, &["-c", "import microvms"]).is_ok() {
        return Ok(python);
    }
    let place = folder.to_str().unwrap();
    run(Path::new("python3"), &["-m", "venv", "--clear", place])?;
    let install = [
        "-m",
        "pip",
        "install",
        "-q",
        "--timeout",
        "20",
        "microvms==1.3.0",
    ];
    run(&python, &install)?;
    Ok(python)
}

#[test]
fn the_published_python_client_finds_everything_that_it_offers() {
    let python = match python_with_client() {
        Ok(python) => python,
        Err(why) => {
            eprintln!(
                "SKIPPED: the published Python client cannot be had, so it was NOT run: {why}"
            );
            return;
        }
    };
    let key = || {
        let builder = snow::Builder::new(NOISE_PATTERN.parse().unwrap());
        builder.generate_keypair().unwrap()
    };
    let text = |bytes: &[u8]| base64_simd::STANDARD.encode_to_string(bytes);
    let (own, host) = (key(), key());
    let (guest, address) = Guest::on_tcp();
    let identity = IdentityPair {
        seed: text(&own.private),
        host_public_key: text(&host.public),
    };
    guest.launch_over(address, Some(identity));
    let scratch = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published/drive.py");
    let output = Command::new(python)
        .arg("-B")
        .arg(script)
        .arg(format!("http://{address}"))
        .args([TOKEN, &text(&host.private), &text(&own.public)])
        .arg(scratch.path())
        .env("HOME", scratch.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.ends_with("all hold\n"), "{said}");
}

/// Decodes an answer as the published client would.
fn decoded<T: DeserializeOwned>(answer: &RawAnswer, status: u16) -> T {
    assert_eq!(answer.status(), status, "{}", answer.0);
    serde_json::from_str(answer.body()).unwrap_or_else(|error| panic!("{error}: {}", answer.0))
}

#[tokio::test]
async fn the_published_types_decode_every_answer() {
    let (guest, client) = Guest::start().await;
    client
        .hook(agentd_client::protocol::Hook::Suspend)
        .await
        .unwrap();
    let ask = |method: &str, path: &str, body: &str| guest.http(method, path, &bearer(), body);
    let start = r#"{"exec_id":"e","command":["cat"],"stdin":true}"#;
    let started: published::exec::StartResponse =
        decoded(&ask("POST", "/v1/exec/start", start), 200);
    assert_eq!(started.exec_id, "e");
    let running: published::exec::PollResponse = decoded(&ask("GET", "/v1/exec/e", ""), 200);
    assert!(running.result.is_none());
    let still: published::exec::ErrorBody = decoded(&ask("POST", "/v1/exec/e/ack", ""), 409);
    assert_eq!(still.error, "still_running");
    let procs: published::exec::ProcsResponse = decoded(&ask("GET", "/v1/procs", ""), 200);
    assert_eq!(procs.procs.len(), 1);
    let discovery: published::discovery::Discovery = decoded(&ask("GET", "/v1/discovery", ""), 200);
    assert_eq!(discovery.default_user, None);
    let body = r#"{"data_b64":"aGk=","signal":"eof"}"#;
    let written: published::exec::StdinResponse =
        decoded(&ask("POST", "/v1/exec/e/stdin", body), 200);
    assert_eq!((written.written, written.eof), (2, true));
    until("it ends", || {
        ask("GET", "/v1/exec/e", "").body().contains("exited")
    })
    .await;
    let ended: published::exec::PollResponse = decoded(&ask("GET", "/v1/exec/e", ""), 200);
    assert_eq!(ended.result.unwrap().stdout, "hi");
    let killed: published::exec::KillResponse = decoded(&ask("POST", "/v1/exec/e/kill", ""), 200);
    assert!(!killed.killed);
    let health: published::health::Health = decoded(&guest.http("GET", "/v1/health", "", ""), 200);
    assert_eq!(health.hooks.len(), 2);
}
