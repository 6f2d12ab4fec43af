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

/// The published Rust crate, driven by a program of its own: what it depends on is a cloud
/// vendor's kit, which nobody else here should have to build. Building it again costs nothing.
fn rust_client() -> Result<PathBuf, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../published/Cargo.toml");
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = tmp.parent().unwrap().join("published");
    let built = Command::new(env!("CARGO"))
        .args(["build", "-q", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .output()
        .map_err(|error| error.to_string())?;
    if built.status.success() {
        return Ok(target.join("debug/published-client"));
    }
    let why = String::from_utf8_lossy(&built.stderr).into_owned();
    // Only what cannot be had may be missing: what does not compile is a failure.
    let absent = [
        "failed to download",
        "failed to get",
        "Couldn't resolve host",
    ];
    assert!(absent.iter().any(|word| why.contains(word)), "{why}");
    Err(why)
}

/// A daemon that sees the machine's files and has `/workspace` and `/usr/local/bin` to itself,
/// in a mount namespace: the clients write there.
const WITH_A_WORKSPACE: &str = r#"set -e
mount -t tmpfs none "$1"
for entry in /*; do
  if [ -L "$entry" ]; then cp -P "$entry" "$1$entry"
  elif [ -d "$entry" ] && [ "$entry" != /workspace ]; then
    mkdir "$1$entry"; mount --rbind "$entry" "$1$entry"
  fi
done
mkdir "$1/workspace"
mount -t tmpfs -o mode=755 none "$1/usr/local/bin"
exec chroot "$1" "$2""#;

/// What a published client is told of a guest, in the order of its arguments.
struct Driven {
    _guest: Guest,
    scratch: tempfile::TempDir,
    arguments: Vec<String>,
}

/// A launched guest with keys for verified tunnels, or why there can be none.
fn driven() -> Result<Driven, String> {
    let is_root = nix::unistd::geteuid().is_root();
    let namespaces: &[&str] = match is_root {
        true => &["unshare", "--mount"],
        false => &["unshare", "--user", "--map-root-user", "--mount"],
    };
    let mut trial = Command::new(namespaces[0]);
    trial.args(&namespaces[1..]);
    if !trial
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        return Err("no mount namespaces here".into());
    }
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let shell = ["sh", "-c", WITH_A_WORKSPACE, "sh", root.to_str().unwrap()];
    let starter: Vec<&str> = namespaces.iter().chain(shell.iter()).copied().collect();
    let (guest, address) = Guest::on_tcp(&starter);
    let key = || {
        let builder = snow::Builder::new(NOISE_PATTERN.parse().unwrap());
        builder.generate_keypair().unwrap()
    };
    let text = |bytes: &[u8]| base64_simd::STANDARD.encode_to_string(bytes);
    let (own, host) = (key(), key());
    let identity = IdentityPair {
        seed: text(&own.private),
        host_public_key: text(&host.public),
    };
    guest.launch_over(address, Some(identity));
    let arguments = vec![
        format!("http://{address}"),
        TOKEN.to_owned(),
        text(&host.private),
        text(&own.public),
        scratch.path().to_str().unwrap().to_owned(),
        if is_root { "root" } else { "nobody" }.to_owned(),
    ];
    Ok(Driven {
        _guest: guest,
        scratch,
        arguments,
    })
}

/// Runs a client's program against a guest of its own; it says itself what holds.
fn everything_holds(mut client: Command, driven: &Driven) {
    let output = client
        .args(&driven.arguments)
        .env("HOME", driven.scratch.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.ends_with("all hold\n"), "{said}");
}

fn skipped(client: &str, why: &str) {
    eprintln!("SKIPPED: the published {client} client cannot be had, so it was NOT run: {why}");
}

#[test]
fn the_published_python_client_finds_everything_that_it_offers() {
    match python_with_client().and_then(|python| Ok((python, driven()?))) {
        Ok((python, driven)) => {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published/drive.py");
            let mut client = Command::new(python);
            client.arg("-B").arg(script);
            everything_holds(client, &driven);
        }
        Err(why) => skipped("Python", &why),
    }
}

#[test]
fn the_published_rust_client_finds_everything_that_it_offers() {
    match rust_client().and_then(|client| Ok((client, driven()?))) {
        Ok((client, driven)) => everything_holds(Command::new(client), &driven),
        Err(why) => skipped("Rust", &why),
    }
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
