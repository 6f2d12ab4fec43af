//! What agentd costs: round trips of an exec, memory at rest, streaming.
//!
//! Prints the machine and figures. `FLUXVM_AGENTD` names the program to measure, so that the one
//! built as it ships can be; without it the bench profile's build is measured.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;
use std::time::Instant;

use agentd_client::AgentdClient;
use agentd_client::Download;
use agentd_client::ExecEvent;
use agentd_client::protocol::Phase;
use bytes::Bytes;
use futures_util::stream;
use support::*;

const ROUNDS: usize = 1000;
const STREAM_BYTES: u64 = 1 << 30;
const FILE_BYTES: usize = 256 << 20;
const SMALL_FILES: usize = 10_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cores = std::thread::available_parallelism().unwrap();
    println!(
        "machine: {cores} cores, load {}",
        std::fs::read_to_string("/proc/loadavg").unwrap().trim()
    );
    let (guest, client) = Guest::start().await;
    println!("memory at rest: {} KiB", memory_kib(guest.pid(), "VmRSS:"));
    let plain = plain_spawns();
    report("fork+exec of `true`, std", plain);
    let mut health = Vec::new();
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        client.health().await.unwrap();
        health.push(asked.elapsed());
    }
    report("health", health);
    let mut streamed = Vec::new();
    let busy_before = processor_ticks(guest.pid());
    for _ in 0..ROUNDS {
        let request = command(["/bin/true"]);
        let asked = Instant::now();
        assert_eq!(run(&client, &request).await.code(), Some(0));
        streamed.push(asked.elapsed());
        client.release(&request.exec_id).await.unwrap();
    }
    report("exec `true` by run", streamed);
    let ticks = processor_ticks(guest.pid()) - busy_before;
    println!(
        "processor time of one, all processes: {} us",
        ticks * 10_000 / ROUNDS as u64
    );
    let mut polled = Vec::new();
    for _ in 0..ROUNDS {
        polled.push(start_and_poll(&client).await);
    }
    report("exec `true` by start and poll", polled);
    for (name, source) in [("zeroes", "/dev/zero")] {
        let request = command(["head", "-c", &STREAM_BYTES.to_string(), source]);
        follow_stream(name, &client, &request).await;
        client.release(&request.exec_id).await.unwrap();
    }
    println!("memory at most: {} KiB", guest.peak_memory_kib());
    transfers(&client).await;
    println!("memory after: {} KiB", memory_kib(guest.pid(), "VmRSS:"));
}

/// Hundredths of a second that a process and its reaped descendants have used.
fn processor_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
    fields
        .skip(11)
        .take(4)
        .map(|field| field.parse::<u64>().unwrap())
        .sum()
}

async fn start_and_poll(client: &AgentdClient) -> Duration {
    let request = command(["/bin/true"]);
    let asked = Instant::now();
    client.start(&request).await.unwrap();
    while client.poll(&request.exec_id).await.unwrap().phase == Phase::Running {}
    let took = asked.elapsed();
    client.release(&request.exec_id).await.unwrap();
    took
}

async fn follow_stream(
    name: &str,
    client: &AgentdClient,
    request: &agentd_client::protocol::StartRequest,
) {
    let asked = Instant::now();
    let mut stream = client.run(request).await.unwrap();
    let mut bytes = 0_u64;
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ExecEvent::Output { bytes: piece, .. } => bytes += piece.len() as u64,
            ExecEvent::Gap { .. } => panic!("a gap"),
            ExecEvent::Exit(_) => {}
        }
    }
    assert_eq!(bytes, STREAM_BYTES);
    let seconds = asked.elapsed().as_secs_f64();
    println!(
        "stream of {name}: {:.0} MB/s",
        STREAM_BYTES as f64 / 1e6 / seconds
    );
}

/// One large file and many small ones, as a file and as archives.
async fn transfers(client: &AgentdClient) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let megabytes = |what: &str, asked: Instant| {
        let rate = FILE_BYTES as f64 / 1e6 / asked.elapsed().as_secs_f64();
        println!("{what}: {rate:.0} MB/s");
    };
    let portion = Bytes::from(vec![7; 256 * 1024]);
    let portions: Vec<_> = (0..FILE_BYTES / portion.len())
        .map(|_| Ok(portion.clone()))
        .collect();
    let asked = Instant::now();
    let content = stream::iter(portions);
    client
        .write_file(&at("t/large"), None, content)
        .await
        .unwrap();
    megabytes("file up", asked);
    let asked = Instant::now();
    drain(client.read_file(&at("t/large"), None).await.unwrap()).await;
    megabytes("file down", asked);
    let asked = Instant::now();
    let archive = drain(client.read_tree(&at("t")).await.unwrap()).await;
    megabytes("tree down", asked);
    let asked = Instant::now();
    let content = stream::iter(archive.into_iter().map(Ok));
    client.write_tree(&at("u"), content).await.unwrap();
    megabytes("tree up", asked);

    let mut small = tar::Builder::new(Vec::new());
    for number in 0..SMALL_FILES {
        let mut header = tar::Header::new_gnu();
        header.set_size(100);
        header.set_mode(0o644);
        let name = format!("d{}/f{number}", number / 100);
        small.append_data(&mut header, name, &[7; 100][..]).unwrap();
    }
    let small = Bytes::from(small.into_inner().unwrap());
    let per_second = |asked: Instant| SMALL_FILES as f64 / asked.elapsed().as_secs_f64();
    let asked = Instant::now();
    let content = stream::iter([Ok(small)]);
    client.write_tree(&at("s"), content).await.unwrap();
    println!("small files up: {:.0}/s", per_second(asked));
    let asked = Instant::now();
    drain(client.read_tree(&at("s")).await.unwrap()).await;
    println!("small files down: {:.0}/s", per_second(asked));
}

async fn drain(mut download: Download) -> Vec<Bytes> {
    let mut portions = Vec::new();
    while let Some(portion) = download.next().await {
        portions.push(portion.unwrap());
    }
    portions
}

fn plain_spawns() -> Vec<Duration> {
    let one = |_| {
        let asked = Instant::now();
        assert!(
            std::process::Command::new("/bin/true")
                .status()
                .unwrap()
                .success()
        );
        asked.elapsed()
    };
    (0..ROUNDS).map(one).collect()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{what}: n {} p50 {:?} p95 {:?} p99 {:?}",
        times.len(),
        at(50),
        at(95),
        at(99)
    );
}
