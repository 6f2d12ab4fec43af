//! The released daemon over loopback: sessions, commands and event streams.

use std::fs;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use serde_json::json;

use crate::Scale;
use crate::figures::Figure;
use crate::jobs;
use crate::peers;

/// Sessions that are kept idle to see what one costs.
const IDLE_SESSIONS: usize = 100;

pub(crate) fn measure(scale: Scale) -> Vec<Figure> {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let mut figures = Vec::new();

    eprintln!("  create to first exec");
    let create = Figure::latency("create to first exec answered", creates(api, scale.of(100)))
        .target("p50 ≤ 15 ms, p95 ≤ 40 ms");
    match peers::bubblewrap(scale.of(100)) {
        Some(peer) => figures.extend([create.against(&peer), peer]),
        None => figures.push(create),
    }

    eprintln!("  exec");
    let session = api.create();
    let shell = peers::shell(scale.of(500));
    let exec = Figure::latency("exec true over REST", execs(api, &session, scale.of(1_000)));
    figures.extend([exec.target("p50 ≤ 3 ms").against(&shell), shell]);

    eprintln!("  event streams");
    let latency = Figure::latency("append to SSE client", stream(api, &session, scale.of(300)));
    figures.push(latency.target("p99 ≤ 5 ms"));
    eprintln!("  jobs");
    figures.extend(jobs::measure(api, &session, scale));
    api.remove(&session);

    eprintln!("  idle sessions");
    figures.extend(idle(&daemon, scale.of(IDLE_SESSIONS)));
    daemon.remove_everything();
    figures
}

/// Output and jobs alone.
pub(crate) fn measure_jobs(scale: Scale) -> Vec<Figure> {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let session = daemon.api().create();
    let figures = jobs::measure(daemon.api(), &session, scale);
    daemon.remove_everything();
    figures
}

fn creates(api: &Api, count: usize) -> Vec<Duration> {
    let measured = (0..count).map(|_| {
        let began = Instant::now();
        let session = api.create();
        assert_eq!(api.exec(&session, "true").exit_code, 0);
        let took = began.elapsed();
        api.remove(&session);
        took
    });
    measured.collect()
}

fn execs(api: &Api, session: &str, count: usize) -> Vec<Duration> {
    let path = format!("/v1/agents/sessions/{session}/exec");
    let body = json!({"command": "true"});
    let measured = (0..count).map(|_| {
        let began = Instant::now();
        assert_eq!(api.post(&path, &body).expect(200)["exit_code"], 0);
        began.elapsed()
    });
    measured.collect()
}

/// From the moment that the committer stamps an event, before it is durable, to the client that reads it.
/// Both look at the same clock.
fn stream(api: &Api, session: &str, count: usize) -> Vec<Duration> {
    let mut stream = api.stream(session, "", None);
    let history = api.events(session).len();
    for _ in 0..history {
        stream.next_frame();
    }
    let mut samples = Vec::with_capacity(count * 2);
    for _ in 0..count {
        let (api, session) = (api.clone(), session.to_owned());
        let command = std::thread::spawn(move || api.exec(&session, "true"));
        for _ in 0..2 {
            let frame = stream.next_frame();
            let received = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let received = received.expect("a clock after 1970");
            let at = frame.data["at"].as_str().expect("an event has a time");
            let at = chrono::DateTime::parse_from_rfc3339(at).expect("RFC 3339");
            let at = Duration::from_micros(u64::try_from(at.timestamp_micros()).expect("a time"));
            samples.push(received.saturating_sub(at));
        }
        command.join().expect("a command");
    }
    samples
}

/// What the daemon and the guests of idle sessions hold, by proportional set size.
fn idle(daemon: &Daemon, count: usize) -> Vec<Figure> {
    let api = daemon.api();
    let before = pss_kib(i32::try_from(daemon.pid()).expect("a process id"));
    let sessions: Vec<String> = (0..count).map(|_| api.create()).collect();
    let guests: u64 = sessions
        .iter()
        .map(|session| pss_kib(daemon.guest_pid(session)))
        .sum();
    let after = pss_kib(i32::try_from(daemon.pid()).expect("a process id"));
    let execs = Figure::latency(
        format!("exec true, {count} more sessions idle"),
        sessions
            .first()
            .map(|session| execs(api, session, count))
            .unwrap_or_default(),
    );
    for session in &sessions {
        api.remove(session);
    }
    let each = (guests + after.saturating_sub(before)) as f64 / 1_024.0 / count as f64;
    let cost = Figure::mebibytes("an idle session, guest and daemon", each).target("≤ 6 MiB");
    vec![cost, execs]
}

fn pss_kib(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok())
        .unwrap_or(0)
}
