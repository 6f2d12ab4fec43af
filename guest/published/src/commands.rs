//! Commands: started, followed, written to, killed, refused.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use microvms_core::WireKind;
use microvms_core::prelude::SessionExt;
use microvms_core::protocol::exec::StartRequest;
use microvms_core::protocol::exec::StreamKind;
use microvms_core::session::CompletionOptions;
use microvms_core::session::EndReason;
use microvms_core::session::ExecEvent;
use microvms_core::session::GapPolicy;
use microvms_core::session::Session;
use microvms_core::session::StreamOptions;

use crate::PATIENCE;
use crate::holds;

pub fn request(id: &str, words: &[&str]) -> StartRequest {
    StartRequest::new(id, words.iter().map(|word| (*word).to_owned()).collect())
}

pub fn script(id: &str, text: &str) -> StartRequest {
    request(id, &[text]).with_shell(true)
}

pub async fn hold(session: &Session) {
    let run = |request| session.run_sync(request, PATIENCE);
    let result = run(script("both", "echo out; echo err >&2; exit 3")).await;
    let result = result.unwrap();
    let said = (result.exit_code(), result.stdout(), result.stderr());
    holds("run_sync", said == (Some(3), "out\n", "err\n"), &result);
    let variables = HashMap::from([("A".to_owned(), "b".to_owned())]);
    let told = script("told", "echo $A $PWD").with_env(variables);
    let result = run(told.with_cwd(Some("/usr".into()))).await.unwrap();
    holds("variables, folder", result.stdout() == "b /usr\n", &result);
    let named = request("named", &["echo $0"]).with_shell("sh");
    holds("a named shell", run(named).await.unwrap().succeeded(), ());
    let owner = request("owner", &["id", "-u"]).with_user(Some(0.into()));
    let result = run(owner.with_group(Some(0.into()))).await.unwrap();
    holds("user and group", result.stdout() == "0\n", &result);
    let image = request("image", &["printenv", "PATH"]).with_inherit_image_env(true);
    holds(
        "the image's variables",
        run(image).await.unwrap().succeeded(),
        (),
    );
    let late = request("late", &["sleep", "60"]).with_timeout_sec(Some(0.2));
    let result = run(late).await.unwrap();
    holds("a deadline", result.deadline_ended(), &result);
    let left = script("left", "sleep 300 & exit 0").with_reap_group_on_exit(true);
    let result = run(left).await.unwrap();
    let outcome = result.outcome.as_ref().unwrap();
    holds("reap_group_on_exit", !outcome.writers_may_be_alive, outcome);

    let seen = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&seen);
    let sink = move |event: ExecEvent| {
        if let ExecEvent::Output { data, .. } = event {
            *counted.lock().unwrap() += data.len();
        }
        Box::pin(std::future::ready(ControlFlow::Continue(()))) as _
    };
    let big = script("big", "head -c 3000000 /dev/zero | tr '\\0' x");
    let options = CompletionOptions::default();
    let result = session
        .run_to_completion(big, options, Some(Box::new(sink)))
        .await;
    let result = result.unwrap();
    let seen = *seen.lock().unwrap();
    let whole = seen == 3_000_000 && result.stdout().len() == seen;
    holds("run_to_completion, 3 MB", whole, seen);
    let refused = session
        .run(request("off", &["true"]).with_poweroff_on_exit(true))
        .await;
    holds("poweroff_on_exit asks first", refused.is_err(), ());
}

pub async fn are_followed(session: &Session) {
    let text = "printf 'a\\377b'; sleep 0.05; printf c >&2; exit 5";
    let handle = session.run(script("followed", text)).await.unwrap();
    let (mut bytes, mut exit) = (Vec::new(), None);
    let mut stream = Box::pin(handle.stream());
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ExecEvent::Output { data, .. } => bytes.extend(data),
            ExecEvent::Exit(event) => exit = Some(event),
            gap => panic!("{gap:?}"),
        }
    }
    drop(stream);
    let exit = exit.unwrap();
    let whole = bytes == b"a\xffbc" && exit.exit_code == Some(5) && exit.offset == 4;
    holds("stream", whole, (&bytes, &exit));
    let options = StreamOptions {
        offset: 2,
        ..StreamOptions::default()
    };
    let mut rest = Vec::new();
    let end = handle.for_each_event(options.clone(), |event| {
        if let ExecEvent::Output { data, stream, .. } = event {
            rest.extend(data);
            return match stream {
                StreamKind::Stdout => ControlFlow::Continue(()),
                StreamKind::Stderr => ControlFlow::Break(()),
            };
        }
        ControlFlow::Continue(())
    });
    let end = end.await.unwrap();
    let stopped = rest == b"bc" && (end.reason, end.cursor) == (EndReason::Stopped, 4);
    holds("a resumed stream that is left", stopped, (rest, end));
    let keep_on = |_| std::future::ready(ControlFlow::Continue(()));
    let end = handle.for_each_event_async(options, keep_on).await.unwrap();
    holds("an awaited stream", end.reason == EndReason::Exited, end);
    let polled = handle.poll().await.unwrap();
    holds(
        "poll",
        polled.done() && polled.exit_code() == Some(5),
        polled,
    );
    let acked = handle.ack().await.unwrap();
    holds("ack", acked.exit_code() == Some(5), acked);

    let split = session.run(script("split", "echo out; echo err >&2")).await;
    let split = Arc::new(split.unwrap());
    let mut split = split.split(StreamOptions::default(), GapPolicy::Error);
    let drive = tokio::spawn(split.drive);
    let (out, err) = tokio::join!(all(&mut split.stdout), all(&mut split.stderr));
    drive.await.unwrap();
    holds(
        "split",
        (&out[..], &err[..]) == (b"out\n", b"err\n"),
        (out, err),
    );
}

type Pieces = tokio::sync::mpsc::Receiver<microvms_core::session::SplitItem>;

async fn all(pieces: &mut Pieces) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.recv().await {
        bytes.extend(piece.unwrap());
    }
    bytes
}

pub async fn are_written_to_and_ended(session: &Session) {
    let handle = session
        .run(request("typed", &["cat"]).with_stdin(true))
        .await;
    let handle = handle.unwrap();
    let ack = handle.write_stdin(b"hello\n", false).await.unwrap();
    holds("write_stdin", (ack.written, ack.eof) == (6, false), &ack);
    let ack = handle.close_stdin().await.unwrap();
    holds("close_stdin", ack.eof, &ack);
    let result = session.exec("typed").wait(PATIENCE).await.unwrap();
    holds("exec and wait", result.stdout() == "hello\n", result);

    let tree = script("tree", "sleep 300 & sleep 300");
    let handle = session.run(tree).await.unwrap();
    let procs = session.procs().await.unwrap().procs;
    let group = procs.iter().find(|group| group.exec_id == "tree").unwrap();
    let alive = !group.pids.is_empty() && !group.child_exited;
    holds("procs", alive, group);
    holds("kill", session.kill("tree").await.unwrap(), ());
    holds("a second kill", !handle.kill().await.unwrap(), ());
    let result = handle.wait_and_ack(PATIENCE).await.unwrap();
    let outcome = result.outcome.as_ref().unwrap();
    holds("a signal", outcome.signal == Some(15), outcome);
}

pub async fn are_refused_by_name(session: &Session, endpoint: &str) {
    let refused = |name: &'static str, kind, error: microvms_core::Error| {
        holds(name, error.wire_kind() == Some(kind), error.to_string());
    };
    let nobody = session.exec("nobody");
    refused(
        "unknown_exec",
        WireKind::NotFound,
        nobody.poll().await.unwrap_err(),
    );
    let silent = session
        .run(request("silent", &["sleep", "300"]))
        .await
        .unwrap();
    let error = silent.write_stdin(b"x", false).await.unwrap_err();
    refused("stdin_not_requested", WireKind::Conflict, error);
    refused(
        "still_running",
        WireKind::Conflict,
        silent.ack().await.unwrap_err(),
    );
    let early = silent.wait(Duration::from_millis(50)).await.unwrap_err();
    refused("a wait that ends first", WireKind::ExecTimeout, early);
    silent.kill().await.unwrap();
    silent.wait_and_ack(PATIENCE).await.unwrap();
    refused(
        "already_acked",
        WireKind::Conflict,
        silent.ack().await.unwrap_err(),
    );
    let over = session
        .run(request("over", &["true"]).with_stdin(true))
        .await
        .unwrap();
    over.wait(PATIENCE).await.unwrap();
    let error = over.write_stdin(b"x", false).await.unwrap_err();
    refused("stdin_closed", WireKind::StdinClosed, error);
    let absent = session
        .run(request("absent", &["/no/such"]))
        .await
        .err()
        .unwrap();
    refused("spawn_failed", WireKind::ServerError, absent);
    let stranger = request("stranger", &["true"]).with_user(Some("no-such-user".into()));
    let error = session.run(stranger).await.err().unwrap();
    refused("unknown_user", WireKind::ProtocolError, error);
    let wrong = Session::direct(endpoint, "another-token").unwrap();
    refused(
        "a wrong token",
        WireKind::Unauthorized,
        wrong.procs().await.unwrap_err(),
    );
}
