//! A real daemon per test, over a socket that it inherits.
// Each test file uses its own part of this one.
#![allow(dead_code, unreachable_pub)]
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]

use std::collections::BTreeMap;
use std::io::Read;
use std::io::Write;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_client::UnixConnector;
use agentd_client::protocol::AgentToken;
use agentd_client::protocol::ExecId;
use agentd_client::protocol::ExitEvent;
use agentd_client::protocol::IdentityPair;
use agentd_client::protocol::KillScope;
use agentd_client::protocol::OutputStream;
use agentd_client::protocol::RunHookPayload;
use agentd_client::protocol::ShellChoice;
use agentd_client::protocol::StartExtension;
use agentd_client::protocol::StartRequest;
use nix::fcntl::FcntlArg;
use nix::fcntl::FdFlag;
use nix::fcntl::fcntl;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;

pub const TOKEN: &str = "test-token-7c1f";

/// Nothing in these tests takes this long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// While a socket is inheritable, no other test of this process may start a child.
static SPAWNING: Mutex<()> = Mutex::new(());

pub struct Guest {
    child: Child,
    folder: tempfile::TempDir,
}

impl Guest {
    /// A daemon with some variables set, not bootstrapped.
    pub fn bare(variables: &[(&str, &str)]) -> Self {
        Self::under(&[], variables)
    }

    /// A daemon that another program starts, as the first process of its own namespace say.
    pub fn under(starter: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("agentd")).unwrap();
        Self::inheriting(listener.as_fd(), folder, starter, variables)
    }

    /// A daemon behind a TCP port, as others expect it, that another program starts.
    pub fn on_tcp(starter: &[&str]) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let guest = Self::inheriting(listener.as_fd(), folder, starter, &[]);
        (guest, address)
    }

    /// Posts the run hook to a port.
    pub fn launch_over(&self, address: SocketAddr, identity: Option<IdentityPair>) {
        let mut payload = RunHookPayload::new(AgentToken::new(TOKEN));
        payload.identity = identity;
        let body = serde_json::to_string(&payload.to_envelope()).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        let path = "/aws/lambda-microvms/runtime/v1/run";
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn inheriting(
        listener: BorrowedFd<'_>,
        folder: tempfile::TempDir,
        starter: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let _alone = SPAWNING.lock().unwrap();
        fcntl(listener, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let built = env!("CARGO_BIN_EXE_microvms-agentd");
        let program = std::env::var("FLUXVM_AGENTD").unwrap_or_else(|_| built.into());
        let words: Vec<&str> = starter.iter().copied().chain([program.as_str()]).collect();
        let child = Command::new(words[0])
            .args(&words[1..])
            .env("AGENTD_LISTEN_FD", listener.as_raw_fd().to_string())
            .env("AGENTD_REPAIR_IDENTITY", "false")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    /// A bootstrapped daemon and a client of it.
    pub async fn start() -> (Self, AgentdClient) {
        Self::start_with(&[]).await
    }

    pub async fn start_with(variables: &[(&str, &str)]) -> (Self, AgentdClient) {
        let guest = Self::bare(variables);
        let client = guest.client(TOKEN);
        client
            .run_hook(&RunHookPayload::new(AgentToken::new(TOKEN)))
            .await
            .unwrap();
        (guest, client)
    }

    pub fn client(&self, token: &str) -> AgentdClient {
        let connector = UnixConnector::new(self.socket());
        AgentdClient::new(Arc::new(connector), AgentToken::new(token))
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("agentd")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes as they are and returns what comes back until the peer closes, which
    /// `connection: close` in the request asks for.
    pub fn raw(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            // The daemon may hang up on what it did not read, but not before it has answered.
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request with a method, path, extra header lines and a body, on its own connection.
    pub fn http(&self, method: &str, path: &str, headers: &str, body: &str) -> RawAnswer {
        let length = body.len();
        RawAnswer(self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n{headers}\
             content-length: {length}\r\n\r\n{body}"
        )))
    }

    /// The most memory that the daemon held, in KiB.
    pub fn peak_memory_kib(&self) -> u64 {
        memory_kib(self.pid(), "VmHWM:")
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }
}

pub fn memory_kib(pid: i32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Stopped first, so that it neither reaps nor starts anything while its tree is ended.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGSTOP);
        for pid in descendants(self.pid()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

pub struct RawAnswer(pub String);

impl RawAnswer {
    pub fn status(&self) -> u16 {
        self.0
            .split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("no answer: {:?}", self.0))
            .parse()
            .unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.0.split("\r\n\r\n").next().unwrap();
        head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn body(&self) -> &str {
        self.0.split_once("\r\n\r\n").unwrap().1
    }
}

pub fn bearer() -> String {
    format!("authorization: Bearer {TOKEN}\r\n")
}

/// An id that no other test uses.
pub fn fresh_id() -> ExecId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    ExecId::new(format!("exec-{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap()
}

/// A number of seconds over 300 that no other process sleeps for: a marker in an argument vector.
pub fn marker() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("300.{}{unique:06}", std::process::id())
}

pub fn command<const N: usize>(arguments: [&str; N]) -> StartRequest {
    StartRequest::new(fresh_id(), arguments)
}

pub fn script(text: &str) -> StartRequest {
    let mut request = command([text]);
    request.shell = ShellChoice::Flag(true);
    request
}

/// The same request, stopped as a tree and with short patience.
pub fn tree(mut request: StartRequest, kill_grace_ms: u64) -> StartRequest {
    request.x = Some(StartExtension {
        kill_grace_ms: Some(kill_grace_ms),
        output_linger_ms: Some(200),
        scope: Some(KillScope::Tree),
        ..StartExtension::default()
    });
    request
}

/// Everything that a followed exec said.
#[derive(Debug, Default)]
pub struct Told {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub gaps: Vec<(u64, u64)>,
    pub first_offset: Option<u64>,
    pub exit: Option<ExitEvent>,
}

impl Told {
    pub fn exit(&self) -> &ExitEvent {
        self.exit.as_ref().unwrap()
    }

    pub fn code(&self) -> Option<i32> {
        self.exit().exit_code
    }
}

/// Follows to the end, and checks on the way that offsets are gapless but for announced gaps.
pub async fn follow(mut stream: ExecStream) -> Told {
    let mut told = Told::default();
    let mut expected: Option<u64> = None;
    loop {
        let next = tokio::time::timeout(PATIENCE, stream.next()).await;
        let Some(event) = next.expect("the stream says nothing") else {
            break;
        };
        let event = event.unwrap();
        let after = event.next_offset();
        match event {
            ExecEvent::Output {
                offset,
                stream,
                bytes,
            } => {
                assert!(
                    expected.is_none_or(|expected| expected == offset),
                    "{expected:?} {offset}"
                );
                told.first_offset.get_or_insert(offset);
                match stream {
                    OutputStream::Stdout => told.stdout.extend_from_slice(&bytes),
                    OutputStream::Stderr => told.stderr.extend_from_slice(&bytes),
                }
            }
            ExecEvent::Gap { from, to } => told.gaps.push((from, to)),
            ExecEvent::Exit(exit) => told.exit = Some(exit),
        }
        expected = Some(after);
    }
    assert!(
        told.exit.is_some(),
        "the exit is always last: {:?}",
        told.gaps
    );
    told
}

pub async fn run(client: &AgentdClient, request: &StartRequest) -> Told {
    follow(client.run(request).await.unwrap()).await
}

pub fn refusal(error: &ClientError) -> (u16, Option<&str>) {
    match error {
        ClientError::Refused { status, slug, .. } => (*status, slug.as_deref()),
        other => panic!("not a refusal: {other:?}"),
    }
}

/// Waits for a condition that is about to hold.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Pids of processes, not zombies, that have `text` in their arguments.
pub fn processes_with(text: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    all_pids().into_iter().filter(has).collect()
}

/// State and parent of every process.
pub fn states() -> BTreeMap<i32, (char, i32)> {
    let read = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        Some((pid, (state, fields.next()?.parse().ok()?)))
    };
    all_pids().into_iter().filter_map(read).collect()
}

pub fn descendants(root: i32) -> Vec<i32> {
    let states = states();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = states.iter().filter(|(_, (_, ppid))| *ppid == parent);
        found.extend(children.map(|(&pid, _)| pid));
        next += 1;
    }
    found.split_off(1)
}

fn all_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
