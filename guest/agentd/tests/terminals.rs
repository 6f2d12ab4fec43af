//! Terminals: what a person at one expects of it.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use agentd_client::AgentdClient;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_client::protocol::ExitEvent;
use agentd_client::protocol::StartExtension;
use agentd_client::protocol::StartRequest;
use agentd_client::protocol::TerminalSize;
use support::*;

const SIZE: TerminalSize = TerminalSize { cols: 91, rows: 37 };

fn on_terminal(mut request: StartRequest) -> StartRequest {
    request.env.insert("TERM".into(), "dumb".into());
    request.env.insert("PS1".into(), "ready> ".into());
    request.x = Some(StartExtension {
        terminal: Some(SIZE),
        kill_grace_ms: Some(100),
        output_linger_ms: Some(200),
        ..StartExtension::default()
    });
    request
}

/// What a terminal shows, read until it shows what is waited for.
struct Screen {
    client: AgentdClient,
    request: StartRequest,
    stream: ExecStream,
    shown: String,
    exit: Option<ExitEvent>,
}

impl Screen {
    async fn open(client: &AgentdClient, request: StartRequest) -> Self {
        let request = on_terminal(request);
        let stream = client.run(&request).await.unwrap();
        Self {
            client: client.clone(),
            request,
            stream,
            shown: String::new(),
            exit: None,
        }
    }

    async fn type_in(&self, text: &str) {
        let id = &self.request.exec_id;
        self.client.stdin(id, text.as_bytes(), false).await.unwrap();
    }

    /// Waits for text after what was waited for before.
    async fn shows(&mut self, text: &str) {
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            let next = tokio::time::timeout(PATIENCE, self.stream.next()).await;
            match next.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.shown)) {
                Some(Ok(ExecEvent::Output { bytes, .. })) => {
                    self.shown.push_str(&String::from_utf8_lossy(&bytes));
                }
                Some(Ok(ExecEvent::Exit(exit))) => {
                    self.exit = Some(exit);
                    assert!(self.shown.contains(text), "no {text:?} in {:?}", self.shown);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    async fn exit(&mut self) -> ExitEvent {
        while self.exit.is_none() {
            let next = tokio::time::timeout(PATIENCE, self.stream.next()).await;
            if let Some(Ok(ExecEvent::Exit(exit))) = next.unwrap() {
                self.exit = Some(exit);
            }
        }
        self.exit.take().unwrap()
    }
}

#[tokio::test]
async fn a_terminal_has_its_size_and_its_programs_are_told_of_another() {
    let (_guest, client) = Guest::start().await;
    let text =
        "trap 'stty size; echo told' WINCH; stty size; tty; echo up; while :; do sleep 0.05; done";
    let mut screen = Screen::open(&client, script(text)).await;
    screen.shows("37 91\r\n").await;
    screen.shows("/dev/pts/").await;
    screen.shows("up").await;
    let size = TerminalSize {
        cols: 120,
        rows: 50,
    };
    let state = client.resize(&screen.request.exec_id, size).await.unwrap();
    assert_eq!((state.cols, state.rows), (120, 50));
    screen.shows("50 120\r\n").await;
    screen.shows("told").await;
    assert!(client.kill(&screen.request.exec_id).await.unwrap().killed);
    assert!(screen.exit().await.signal.is_some());
    let error = client
        .resize(&screen.request.exec_id, size)
        .await
        .unwrap_err();
    assert_eq!(refusal(&error), (409, Some("no_terminal")));
    let plain = command(["true"]);
    run(&client, &plain).await;
    let error = client.resize(&plain.exec_id, size).await.unwrap_err();
    assert_eq!(refusal(&error), (409, Some("no_terminal")));
}

#[tokio::test]
async fn a_shell_has_job_control_and_keys_that_mean_something() {
    let (_guest, client) = Guest::start().await;
    let mut screen = Screen::open(&client, command(["sh", "-i"])).await;
    screen.shows("ready> ").await;
    screen.type_in("echo $((40 + 2))\n").await;
    screen.shows("42\r\n").await;
    screen.shows("ready> ").await;
    // Ctrl-C ends the program in the foreground and not the shell.
    screen
        .type_in("sh -c 'echo $((20 + 3)); exec sleep 300'\n")
        .await;
    screen.shows("23\r\n").await;
    screen.type_in("\x03").await;
    screen.shows("ready> ").await;
    screen.type_in("echo code $?\n").await;
    screen.shows("code 130\r\n").await;
    // Ctrl-Z stops it, the shell knows it as a job, and it goes on where it was.
    screen.type_in("cat\nhere\n").await;
    screen.shows("here\r\n").await;
    screen.shows("here\r\n").await;
    screen.type_in("\x1a").await;
    screen.shows("ready> ").await;
    screen.type_in("jobs\n").await;
    screen.shows("topped").await;
    screen.shows("ready> ").await;
    screen.type_in("fg\nagain\n").await;
    // Echoed by the terminal, whenever it was typed, and printed by the program.
    screen.shows("again\r\n").await;
    screen.shows("again\r\n").await;
    screen.type_in("\x04").await;
    screen.shows("ready> ").await;
    screen.type_in("exit 5\n").await;
    assert_eq!(screen.exit().await.exit_code, Some(5));
}

#[tokio::test]
async fn closing_ends_every_job_and_an_end_of_input_ends_a_reader() {
    let (_guest, client) = Guest::start().await;
    let marker = marker();
    let mut screen = Screen::open(&client, command(["sh", "-i"])).await;
    screen.shows("ready> ").await;
    screen
        .type_in(&format!("sleep {marker} & sleep {marker} & echo started\n"))
        .await;
    screen.shows("started\r\n").await;
    until("both jobs run", || processes_with(&marker).len() >= 2).await;
    assert!(client.kill(&screen.request.exec_id).await.unwrap().killed);
    screen.exit().await;
    until("no job is left", || processes_with(&marker).is_empty()).await;

    let mut screen = Screen::open(&client, command(["cat"])).await;
    let id = screen.request.exec_id.clone();
    client.stdin(&id, b"line\n", false).await.unwrap();
    // Echoed by the terminal, then printed by the program.
    screen.shows("line\r\n").await;
    screen.shows("line\r\n").await;
    client.stdin(&id, b"", true).await.unwrap();
    let exit = screen.exit().await;
    assert_eq!(
        (exit.exit_code, exit.writers_may_be_alive),
        (Some(0), false)
    );
}

#[tokio::test]
async fn a_terminal_is_gone_on_with_by_offset_and_every_byte_of_it_is_there() {
    let (guest, client) = Guest::start().await;
    let before = guest.descriptors();
    let request = on_terminal(script("stty -opost; seq 1 30000"));
    client.start(&request).await.unwrap();
    let told = follow(client.stream(&request.exec_id, 0).await.unwrap()).await;
    let expected: String = (1..=30_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(told.stdout, expected.as_bytes());
    assert_eq!((told.code(), told.stderr.len()), (Some(0), 0));
    until("the terminal is given back", || {
        guest.descriptors() <= before + 2
    })
    .await;
}
