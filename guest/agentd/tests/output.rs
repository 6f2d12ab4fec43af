//! Output: the exact bytes, to every reader that stays.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::io::Write;
use std::process::Command;
use std::process::Stdio;

use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_client::protocol::Phase;
use futures_util::future::join_all;
use support::*;

/// Memory that the daemon may use at most, whatever a command prints: the ring, two captures of
/// 8 MiB that grew by doubling, one connection's buffers, and an unoptimised program.
const MEMORY_KIB_MAX: u64 = 64 * 1024;

/// A hash of a stream, made by a program rather than here: an unoptimised hash is slow.
struct Hasher(std::process::Child);

impl Hasher {
    fn new() -> Self {
        let mut sha = Command::new("sha256sum");
        Self(
            sha.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn finish(self) -> String {
        let output = self.0.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// Prints `bytes` random bytes and, on the other stream, their hash as the source saw it.
fn random_bytes(bytes: u64) -> String {
    format!("{{ head -c {bytes} /dev/urandom | tee /dev/fd/3 | sha256sum >&2; }} 3>&1")
}

#[tokio::test]
async fn every_byte_comes_through_on_both_streams() {
    let (_guest, client) = Guest::start().await;
    let all = "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done";
    let all_bytes: Vec<u8> = (0..=255).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            r"printf '\342'; sleep 0.05; printf '\202'; sleep 0.05; printf '\254'",
            "€".into(),
        ),
        (r"printf '\303\050'", b"\xc3\x28".to_vec()),
        (
            r"printf '\001\001\001\002\002\002'",
            b"\x01\x01\x01\x02\x02\x02".to_vec(),
        ),
        (all, all_bytes),
        (r"printf 'a\n\n\nb'", b"a\n\n\nb".to_vec()),
        (r"printf 'no newline'", b"no newline".to_vec()),
        (r"printf 'a\r\nb\r\n'", b"a\r\nb\r\n".to_vec()),
        ("true", Vec::new()),
    ];
    let checks = cases
        .iter()
        .flat_map(|(text, bytes)| [(text, bytes, false), (text, bytes, true)]);
    join_all(checks.map(|(text, bytes, to_stderr)| {
        let client = &client;
        async move {
            let text = if to_stderr {
                format!("{{ {text}; }} >&2")
            } else {
                (*text).to_owned()
            };
            let request = script(&text);
            let told = run(client, &request).await;
            let (found, other) = if to_stderr {
                (told.stderr, told.stdout)
            } else {
                (told.stdout, told.stderr)
            };
            assert_eq!((&found, other.len()), (bytes, 0), "{text}");
            assert_eq!(told.exit.unwrap().offset, bytes.len() as u64);
            let outcome = client
                .poll(&request.exec_id)
                .await
                .unwrap()
                .outcome
                .unwrap();
            let polled = if to_stderr {
                outcome.stderr
            } else {
                outcome.stdout
            };
            assert_eq!(polled, String::from_utf8_lossy(bytes));
        }
    }))
    .await;
}

#[tokio::test]
async fn a_fast_reader_gets_a_hundred_mebibytes_exactly_in_bounded_memory() {
    let (guest, client) = Guest::start().await;
    let request = script(&random_bytes(100 * 1024 * 1024));
    let mut stream = client.run(&request).await.unwrap();
    let (hash, source, exit) = drain(&mut stream, |_| ()).await;
    assert_eq!(hash, source);
    assert!(exit.truncated, "the capture has a cap and says so");
    assert!(
        guest.peak_memory_kib() < MEMORY_KIB_MAX,
        "{} KiB",
        guest.peak_memory_kib()
    );
}

/// Reads to the end; returns the hash of standard output, and standard error as text.
async fn drain(
    stream: &mut ExecStream,
    mut each: impl FnMut(u64),
) -> (String, String, agentd_client::protocol::ExitEvent) {
    use agentd_client::protocol::OutputStream;
    let mut hasher = Hasher::new();
    let mut stderr = Vec::new();
    let mut expected = 0;
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ExecEvent::Output {
                offset,
                stream,
                bytes,
            } => {
                assert_eq!(offset, expected);
                expected += bytes.len() as u64;
                match stream {
                    OutputStream::Stdout => hasher.update(&bytes),
                    OutputStream::Stderr => stderr.extend_from_slice(&bytes),
                }
                each(expected);
            }
            ExecEvent::Gap { from, to } => panic!("a gap {from}..{to} for a reader that stays"),
            ExecEvent::Exit(exit) => {
                return (hasher.finish(), String::from_utf8(stderr).unwrap(), exit);
            }
        }
    }
    panic!("no exit");
}

#[tokio::test]
async fn a_slow_reader_holds_the_command_back_and_gets_every_byte() {
    let (guest, client) = Guest::start().await;
    let marker = marker();
    let bytes: u64 = 24 * 1024 * 1024;
    // The name of the shell is the marker by which its progress is looked up.
    let text = format!("exec 3>&1; head -c {bytes} /dev/urandom | tee /dev/fd/3 | sha256sum >&2");
    let request = command(["sh", "-c", &text, &marker]);
    let mut stream = client.run(&request).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert!(matches!(first, ExecEvent::Output { offset: 0, .. }));
    // Nobody reads now. The command comes to stand, with most of its output unwritten.
    let head = || {
        descendants(guest.pid()).into_iter().find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "head\n")
        })
    };
    let written = |pid: i32| {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let line = io
            .lines()
            .find(|line| line.starts_with("wchar:"))
            .unwrap()
            .to_owned();
        line.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut before = u64::MAX;
    loop {
        let now = written(head().expect("the command has not ended"));
        if now == before {
            break;
        }
        before = now;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(before < bytes / 2, "{before} bytes were written to nobody");
    assert_eq!(
        client.poll(&request.exec_id).await.unwrap().phase,
        Phase::Running
    );
    // Another reader, who comes too late for the first bytes, does not change what this one gets.
    let second = client.stream(&request.exec_id, 0).await.unwrap();
    let (slow, fast) = tokio::join!(follow(stream), follow(second));
    let ExecEvent::Output { bytes: first, .. } = first else {
        unreachable!()
    };
    let whole = [&first[..], &slow.stdout].concat();
    assert_eq!(whole.len() as u64, bytes);
    assert_eq!(sha256(&whole), String::from_utf8(slow.stderr).unwrap());
    assert!(slow.gaps.is_empty());
    assert!(whole.ends_with(&fast.stdout) && !fast.stdout.is_empty());
    assert!(
        guest.peak_memory_kib() < MEMORY_KIB_MAX,
        "{} KiB",
        guest.peak_memory_kib()
    );
}

#[tokio::test]
async fn a_stalled_reader_that_leaves_lets_the_command_go_on() {
    let (_guest, client) = Guest::start().await;
    let request = command(["head", "-c", "30000000", "/dev/zero"]);
    let mut stream = client.run(&request).await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    let told = follow(client.stream(&request.exec_id, 30_000_000).await.unwrap()).await;
    assert_eq!((told.code(), told.stdout.len()), (Some(0), 0));
    assert_eq!(told.exit().offset, 30_000_000);
}

#[tokio::test]
async fn output_of_a_finished_leader_waits_for_its_slow_reader() {
    let (_guest, client) = Guest::start_with(&[("AGENTD_STREAM_BUFFER_BYTES", "1000")]).await;
    // More than the ring, the connection's buffers and the socket hold: the rest waits in the pipe.
    let mut request = tree(command(["head", "-c", "3000000", "/dev/zero"]), 10);
    request.x.as_mut().unwrap().output_linger_ms = Some(0);
    let told = run(&client, &request).await;
    assert_eq!((told.stdout.len(), told.gaps.len()), (3_000_000, 0));
    assert!(!told.exit().writers_may_be_alive);
}

#[tokio::test]
async fn one_line_of_ten_mebibytes_is_exact() {
    let (_guest, client) = Guest::start().await;
    let text = "head -c 10485760 /dev/zero | tr '\\0' x | tee /dev/fd/3 3>&1 >&2 | sha256sum";
    let text = format!("{{ {text}; }} 2>/dev/null; head -c 10485760 /dev/zero | tr '\\0' x");
    let told = run(&client, &script(&text)).await;
    let line = vec![b'x'; 10 * 1024 * 1024];
    assert!(told.stdout.ends_with(&line));
}

#[tokio::test]
async fn without_a_reader_the_command_runs_on_and_a_late_one_is_told_of_the_gap() {
    let (guest, client) = Guest::start().await;
    let total: u64 = 20 * 1024 * 1024;
    let request = command(["head", "-c", &total.to_string(), "/dev/zero"]);
    client.start(&request).await.unwrap();
    // Attached ahead of the end, this waits for the exit and holds nothing back.
    let waiting = follow(client.stream(&request.exec_id, total).await.unwrap()).await;
    assert_eq!(waiting.exit().offset, total);
    let window = 1024 * 1024;
    let late = follow(client.stream(&request.exec_id, 5).await.unwrap()).await;
    assert_eq!(late.gaps, [(5, total - window)]);
    assert_eq!(late.stdout.len() as u64, window);
    let inside = follow(
        client
            .stream(&request.exec_id, total - window)
            .await
            .unwrap(),
    )
    .await;
    assert!(inside.gaps.is_empty());
    assert_eq!(inside.stdout.len() as u64, window);
    assert!(guest.peak_memory_kib() < MEMORY_KIB_MAX);
    let outcome = client
        .poll(&request.exec_id)
        .await
        .unwrap()
        .outcome
        .unwrap();
    assert!(outcome.truncated);
    assert_eq!(outcome.stdout.len(), 8 * 1024 * 1024);
}

#[tokio::test]
async fn resuming_anywhere_gives_exactly_the_rest() {
    let (_guest, client) = Guest::start().await;
    let request = script("printf 0123456789; printf abcdef >&2; printf XYZ");
    let whole = run(&client, &request).await;
    assert_eq!(whole.exit().offset, 19);
    let total = whole.stdout.len() + whole.stderr.len();
    for offset in 0..=total + 2 {
        let at = u64::try_from(offset).unwrap();
        let told = follow(client.stream(&request.exec_id, at).await.unwrap()).await;
        let rest = told.stdout.len() + told.stderr.len();
        assert_eq!(rest, total.saturating_sub(offset));
        assert!(whole.stdout.ends_with(&told.stdout) && whole.stderr.ends_with(&told.stderr));
        assert_eq!(told.first_offset, (rest > 0).then_some(at));
        assert_eq!(told.exit(), whole.exit());
    }
}

#[tokio::test]
async fn a_chunk_is_trimmed_exactly_where_a_reader_resumes() {
    let (_guest, client) = Guest::start().await;
    let request = command(["head", "-c", "300000", "/dev/urandom"]);
    let whole = run(&client, &request).await.stdout;
    for offset in [1_usize, 16_383, 65_535, 65_536, 65_537, 131_073, 299_999] {
        let at = u64::try_from(offset).unwrap();
        let told = follow(client.stream(&request.exec_id, at).await.unwrap()).await;
        assert!(told.stdout == whole[offset..], "{offset}");
    }
}

#[tokio::test]
async fn twenty_commands_at_once_do_not_hear_each_other() {
    let (_guest, client) = Guest::start().await;
    join_all((0..20).map(|number| {
        let client = &client;
        async move {
            let text = format!(
                "i=0; while [ $i -lt 1000 ]; do echo {number}; i=$((i+1)); done; exit {number}"
            );
            let told = run(client, &script(&text)).await;
            assert_eq!(told.stdout, format!("{number}\n").repeat(1000).as_bytes());
            assert_eq!(told.code(), Some(number));
        }
    }))
    .await;
}

#[tokio::test]
async fn silence_carries_comments_and_the_stream_has_its_headers() {
    let (guest, client) = Guest::start_with(&[("AGENTD_SSE_KEEPALIVE_SECS", "1")]).await;
    let request = command(["sleep", "1.2"]);
    client.start(&request).await.unwrap();
    let path = format!("/v1/exec/{}/stream?offset=0", request.exec_id);
    let answer = guest.http("GET", &path, &bearer(), "");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert!(answer.body().contains(": keep-alive"), "{}", answer.body());
    assert!(
        answer
            .body()
            .contains("event: exit\ndata: {\"exit_code\":0,")
    );
    assert!(!answer.body().contains("\nid:") && !answer.body().contains("retry:"));
}
