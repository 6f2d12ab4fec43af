//! The guest daemon alone, as it ships, through the client that the host uses.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use agentd_client::AgentToken;
use agentd_client::AgentdClient;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_client::UnixConnector;
use agentd_client::protocol::ExecId;
use agentd_client::protocol::ExecPolicy;
use agentd_client::protocol::ExitEvent;
use agentd_client::protocol::PortPolicy;
use agentd_client::protocol::RunHookPayload;
use agentd_client::protocol::SeccompPolicy;
use agentd_client::protocol::StartExtension;
use agentd_client::protocol::StartRequest;
use fluxvm_replay_tests::Program;
use fluxvm_replay_tests::program;
use nix::fcntl::FcntlArg;
use nix::fcntl::FdFlag;
use nix::fcntl::fcntl;
use tempfile::TempDir;

use crate::Scale;
use crate::figures::Figure;
use crate::guest_files;
use crate::peers;

/// Commands that are run and acknowledged before memory is looked at.
const ACKNOWLEDGED: usize = 1_500;

/// Megabytes of the stream that is checked byte by byte.
const STREAMED_MEGABYTES: usize = 200;

/// Bytes of the block that the streamed file repeats: a prime, so that no frame, buffer or page is
/// ever at the same place in it.
const BLOCK_BYTES: usize = 65_521;

/// A guest daemon behind a socket that it inherits, in a folder of its own. It is not the first
/// process of anything, so that it touches nothing of the machine's.
pub(crate) struct Guest {
    child: Child,
    pub(crate) client: AgentdClient,
    pub(crate) folder: TempDir,
}

impl Guest {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("agentd");
        let listener = UnixListener::bind(&socket).expect("a socket");
        fcntl(&listener, FcntlArg::F_SETFD(FdFlag::empty())).expect("an inheritable socket");
        let child = Command::new(program(Program::Agentd))
            .env("AGENTD_LISTEN_FD", listener.as_raw_fd().to_string())
            .env("AGENTD_REPAIR_IDENTITY", "false")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the guest daemon");
        let token = AgentToken::new("token-of-the-bench");
        let client = AgentdClient::new(Arc::new(UnixConnector::new(socket)), token.clone());
        let launched = client.run_hook(&RunHookPayload::new(token)).await;
        launched.expect("a launch");
        Self {
            child,
            client,
            folder,
        }
    }

    /// A field of its status, in MiB.
    fn mebibytes(&self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("a running guest daemon");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<f64>().ok());
        kib.expect("a number of KiB") / 1_024.0
    }

    /// What it and everybody it has reaped used of a processor so far.
    fn processor(&self) -> Duration {
        const TICK: Duration = Duration::from_millis(10);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("a running guest daemon");
        let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
        let times = fields.split_ascii_whitespace().skip(11).take(4);
        let ticks = times.map(|ticks| ticks.parse::<u32>().expect("a number"));
        TICK * ticks.sum::<u32>()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn measure(scale: Scale) -> Vec<Figure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let guest = Guest::start().await;
        let at_rest = guest.mebibytes("VmRSS:");
        let mut figures = vec![Figure::mebibytes("guest at rest", at_rest).target("≤ 4 MiB")];
        eprintln!("  commands");
        figures.extend(commands(&guest, scale).await);
        eprintln!("  output, trees");
        figures.push(output(&guest, scale).await);
        figures.extend(guest_files::measure(&guest, scale).await);
        figures
    })
}

/// The first commands of a daemon, then what it holds when all of them are acknowledged.
async fn commands(guest: &Guest, scale: Scale) -> Vec<Figure> {
    let rounds = scale.of(ACKNOWLEDGED / 3);
    let began = guest.processor();
    let by_stream = streamed(guest, "streamed", rounds, None).await;
    let spent = (guest.processor() - began) / u32::try_from(rounds).expect("some rounds");
    let by_poll = polled(guest, rounds).await;
    let confined = streamed(guest, "confined", rounds, Some(whole_policy())).await;
    let held = guest.mebibytes("VmRSS:");
    let peer = peers::program(rounds);
    let of_guest = |name: &str, samples| Figure::latency(name, samples).against(&peer);
    vec![
        of_guest("guest: true, start to exit by stream", by_stream).target("p50 ≤ 1 ms"),
        of_guest("guest: true, start to exit by poll", by_poll).target("p50 ≤ 1 ms"),
        of_guest("guest: true under a whole policy", confined),
        Figure::latency("guest: processor time of one true", vec![spent]),
        Figure::mebibytes("guest after all are acknowledged", held).target("≤ 8 MiB"),
        deadlines(guest, scale.of(20)).await,
        peer,
    ]
}

/// From the start to the exit event of a stream that is attached from the first byte.
async fn streamed(
    guest: &Guest,
    name: &str,
    rounds: usize,
    policy: Option<ExecPolicy>,
) -> Vec<Duration> {
    let mut samples = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let mut request = StartRequest::new(id(name, round), ["/bin/true"]);
        request.x = policy.clone().map(|confine| StartExtension {
            confine: Some(Box::new(confine)),
            ..StartExtension::default()
        });
        let began = Instant::now();
        let stream = guest.client.run(&request).await.expect("a start");
        let exit = follow(stream, |_, _| {}).await;
        samples.push(began.elapsed());
        assert_eq!(exit.exit_code, Some(0));
        let released = guest.client.release(&request.exec_id).await;
        released.expect("an acknowledgement");
    }
    samples
}

/// From the start to the poll that has the result, asked for without a pause.
async fn polled(guest: &Guest, rounds: usize) -> Vec<Duration> {
    let mut samples = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let request = StartRequest::new(id("polled", round), ["/bin/true"]);
        let began = Instant::now();
        guest.client.start(&request).await.expect("a start");
        loop {
            let state = guest.client.poll(&request.exec_id).await;
            if state.expect("a state").outcome.is_some() {
                break;
            }
        }
        samples.push(began.elapsed());
        let released = guest.client.release(&request.exec_id).await;
        released.expect("an acknowledgement");
    }
    samples
}

/// How long a command with half a second takes to be told of as timed out, when it obeys.
async fn deadlines(guest: &Guest, rounds: usize) -> Figure {
    let mut samples = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let mut request = StartRequest::new(id("late", round), ["sleep", "60"]);
        request.timeout_sec = Some(0.5);
        let began = Instant::now();
        let stream = guest.client.run(&request).await.expect("a start");
        let exit = follow(stream, |_, _| {}).await;
        samples.push(began.elapsed());
        assert!(exit.timed_out, "{exit:?}");
    }
    Figure::latency("guest: a deadline of 0.5 s, told of", samples).target("≤ 700 ms")
}

/// A file through `cat`, each byte compared with what it has to be.
async fn output(guest: &Guest, scale: Scale) -> Figure {
    let megabytes = scale.of(STREAMED_MEGABYTES);
    let block: Vec<u8> = (0..BLOCK_BYTES)
        .map(|at| u8::try_from(at * at / 7 % 251).expect("less than 251"))
        .collect();
    let repeated = block.repeat(megabytes * 1_000_000 / BLOCK_BYTES + 1);
    let content = repeated.get(..megabytes * 1_000_000).expect("enough");
    let path = guest.folder.path().join("content");
    fs::write(&path, content).expect("space for a file");
    let path = path.to_string_lossy().into_owned();
    let request = StartRequest::new(id("content", 0), ["cat".to_owned(), path]);
    let began = Instant::now();
    let stream = guest.client.run(&request).await.expect("a start");
    let exit = follow(stream, |offset, bytes| {
        let offset = usize::try_from(offset).expect("an offset in memory");
        assert_eq!(content.get(offset..offset + bytes.len()), Some(bytes));
    });
    let exit = exit.await;
    let took = began.elapsed();
    assert_eq!(
        usize::try_from(exit.offset).expect("a length"),
        content.len()
    );
    let name = "guest: output through a stream, every byte compared";
    Figure::rate(name, megabytes, took, "MB").target("≥ 400 MB/s")
}

/// Hands over all output, which has to be gapless, and answers with the exit event.
async fn follow(mut stream: ExecStream, mut each: impl FnMut(u64, &[u8])) -> ExitEvent {
    let mut expected = 0;
    loop {
        let event = stream.next().await.expect("an exit event comes last");
        match event.expect("a stream that is not cut") {
            ExecEvent::Output { offset, bytes, .. } => {
                assert_eq!(offset, expected);
                each(offset, &bytes);
                expected += bytes.len() as u64;
            }
            ExecEvent::Gap { from, to } => panic!("a gap from {from} to {to}"),
            ExecEvent::Exit(exit) => return exit,
        }
    }
}

/// Everything that a policy can take at once from a program that needs little.
fn whole_policy() -> ExecPolicy {
    let paths = |paths: &[&str]| Some(paths.iter().map(|path| (*path).to_owned()).collect());
    ExecPolicy {
        read: paths(&["/usr", "/bin", "/lib", "/lib64", "/etc"]),
        write: paths(&["/tmp"]),
        execute: paths(&["true", "sh", "git", "python3"]),
        tcp_connect: PortPolicy::Ports(vec![443]),
        tcp_bind: PortPolicy::Deny,
        seccomp: Some(SeccompPolicy::Errno),
        allow_unix: false,
        max_memory: Some(1 << 30),
        cpu_seconds: Some(60),
        clean_env: true,
        ..ExecPolicy::default()
    }
}

fn id(name: &str, round: usize) -> ExecId {
    ExecId::new(format!("{name}-{round}")).expect("an id")
}
