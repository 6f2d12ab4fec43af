//! Following a job: its bytes to our own stdout and stderr, and its exit code as ours.
//!
//! Each byte comes out once and in its place, over any break of the connection and over restarts of the
//! daemon: the place in both streams goes back to the daemon, and what comes again is not written again.

use std::io;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::bond::Bond;
use super::events::BREAKS_MAX;
use super::events::may_pass;
use super::events::pause;
use super::jobs;
use crate::client::Client;
use crate::client::with_query;
use crate::error::CliError;
use crate::error::EXIT_EXEC_FAILED;
use crate::output::note;
use crate::render;
use crate::sse::Frame;
use crate::sse::Frames;

/// How long a daemon that has no room for us is asked again before we were ever taken in.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(30);
/// What a wait counts at least, so that a daemon that says zero is not asked without end.
const WAIT_COUNTED_MIN: Duration = Duration::from_millis(100);

/// How a connection ended.
enum End {
    /// The job ended with this.
    Exit(u8),
    /// There is no exit code and there will be none.
    Lost(String),
    /// It broke, or the daemon only wants us to come again.
    Broke(String),
}

/// One job being followed.
pub(super) struct Follow<'a> {
    context: &'a Context,
    session: String,
    job: String,
    stdout: u64,
    stderr: u64,
    /// Whether the daemon has taken us in once.
    connected: bool,
    room: RoomWait,
    bond: Bond,
}

/// How long we wait to be taken in at all.
#[derive(Debug, Default)]
pub(super) struct RoomWait {
    waited: Duration,
}

impl RoomWait {
    /// Whether to wait that long once more. Says so the first time.
    pub(super) fn allows(&mut self, error: &CliError, wait: Duration) -> bool {
        if self.waited.is_zero() {
            note(&format!(
                "fluxctl: {error}; trying for {} s",
                ROOM_WAIT_MAX.as_secs()
            ));
        }
        self.waited = self.waited.saturating_add(wait.max(WAIT_COUNTED_MIN));
        self.waited <= ROOM_WAIT_MAX
    }

    /// Asks until the daemon has room, or time is up.
    pub(super) fn ask<T>(
        &mut self,
        mut ask: impl FnMut() -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        loop {
            match ask() {
                Err(error) => match error.turned_away_for() {
                    Some(wait) if self.allows(&error, wait) => thread::sleep(wait),
                    _ => return Err(error),
                },
                answer => return answer,
            }
        }
    }
}

impl<'a> Follow<'a> {
    /// A job from its first byte on.
    pub(super) fn new(context: &'a Context, session: String, job: String, bond: Bond) -> Self {
        bond.names(&job);
        Self {
            context,
            session,
            job,
            stdout: 0,
            stderr: 0,
            connected: false,
            room: RoomWait::default(),
            bond,
        }
    }

    /// A job whose start is the first frame of this stream.
    pub(super) fn started(
        context: &'a Context,
        session: String,
        client: Client,
        stream: impl Read,
        bond: Bond,
    ) -> Result<u8, CliError> {
        let mut frames = Frames::new(BufReader::new(stream));
        let mut follow = Self {
            context,
            session,
            job: String::new(),
            stdout: 0,
            stderr: 0,
            connected: true,
            room: RoomWait::default(),
            bond,
        };
        let end = match follow.read(&mut frames) {
            Err(error) if error.is_broken_pipe() => follow.bond.unread(&client),
            end => end?,
        };
        if follow.job.is_empty() && matches!(end, End::Broke(_)) {
            return Err(follow.wrong("the stream broke before it named its job".to_owned()));
        }
        follow.go_on(client, Some(end))
    }

    /// Follows it to its end; the answer is the exit code.
    pub(super) fn run(self, client: Client) -> Result<u8, CliError> {
        self.go_on(client, None)
    }

    fn go_on(mut self, mut client: Client, first: Option<End>) -> Result<u8, CliError> {
        let mut breaks = 0;
        let mut end = first;
        loop {
            let before = (self.stdout, self.stderr);
            let reason = match end.take().map_or_else(|| self.connect(&client), Ok) {
                Ok(End::Exit(code)) => return Ok(code),
                Ok(End::Lost(reason)) => {
                    note(&format!("fluxctl: the job has no exit code: {reason}"));
                    return Ok(EXIT_EXEC_FAILED);
                }
                Ok(End::Broke(reason)) => reason,
                Err(error) if error.is_broken_pipe() => self.bond.unread(&client),
                Err(error) if self.wait_for_room(&error) => continue,
                // The first connection's failure is the answer; a later one may pass.
                Err(error) if self.connected && may_pass(&error) => error.to_string(),
                Err(error) => return Err(error),
            };
            let moved = (self.stdout, self.stderr) != before;
            breaks = if moved { 1 } else { breaks + 1 };
            if breaks > BREAKS_MAX {
                return Err(CliError::Unreachable {
                    url: format!("the stream of job {}", self.job),
                    reason: format!("{BREAKS_MAX} attempts in a row failed; the last: {reason}"),
                });
            }
            thread::sleep(pause(breaks));
            // A daemon that was started anew may listen elsewhere: its state folder says where.
            if let Ok(anew) = self.context.client() {
                client = anew;
            }
        }
    }

    /// Waits as the daemon says when it has no room for us. Once we have followed, for as long as that
    /// takes: the job goes on, and it has an end. `false` for another error, and when time is up.
    fn wait_for_room(&mut self, error: &CliError) -> bool {
        let Some(wait) = error.turned_away_for() else {
            return false;
        };
        if !self.connected && !self.room.allows(error, wait) {
            return false;
        }
        thread::sleep(wait);
        true
    }

    fn connect(&mut self, client: &Client) -> Result<End, CliError> {
        let path = format!("{}/{}/stream", jobs::path(&self.session), self.job);
        let path = with_query(&path, &[("encoding", Some("base64".to_owned()))]);
        let place = format!("{}:{}", self.stdout, self.stderr);
        let reader = client.stream(&path, &[("last-event-id", place)])?;
        self.connected = true;
        self.read(&mut Frames::new(BufReader::new(reader)))
    }

    fn read(&mut self, frames: &mut Frames<impl io::BufRead>) -> Result<End, CliError> {
        loop {
            let frame = match frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(End::Broke("the connection was closed".to_owned())),
                Err(error) => return Ok(End::Broke(error.to_string())),
            };
            let data: Value =
                serde_json::from_str(&frame.data).map_err(|error| self.wrong(error.to_string()))?;
            if self.context.global.json {
                let line = json!({"event": frame.event, "data": data});
                self.context.output.json_line(&line)?;
            }
            if let Some(end) = self.take(&frame, &data)? {
                return Ok(end);
            }
        }
    }

    fn take(&mut self, frame: &Frame, data: &Value) -> Result<Option<End>, CliError> {
        match frame.event.as_str() {
            "start" => {
                render::string(data, "job").clone_into(&mut self.job);
                self.bond.names(&self.job);
            }
            "output" => {
                let bytes = self.new_bytes(data, self.stdout)?;
                self.stdout += bytes.len() as u64;
                if !self.context.global.json {
                    self.context.output.bytes(&bytes)?;
                }
            }
            "stderr" => {
                let bytes = self.new_bytes(data, self.stderr)?;
                self.stderr += bytes.len() as u64;
                if !self.context.global.json {
                    let _ = io::stderr().lock().write_all(&bytes);
                }
            }
            "exit" => return self.exit(data).map(Some),
            "error" => return Ok(Some(ending(data))),
            _ => {}
        }
        Ok(None)
    }

    /// The bytes of a frame that were not written before.
    fn new_bytes(&self, data: &Value, at: u64) -> Result<Vec<u8>, CliError> {
        let offset = render::number(data, "offset");
        let offset = offset.ok_or_else(|| self.wrong("a frame without its offset".to_owned()))?;
        let bytes = STANDARD.decode(render::string(data, "output_base64"));
        let mut bytes = bytes.map_err(|error| self.wrong(error.to_string()))?;
        if offset > at {
            return Err(self.wrong(format!("bytes {at} to {offset} are missing")));
        }
        let known = usize::try_from(at - offset).unwrap_or(usize::MAX);
        bytes.drain(..known.min(bytes.len()));
        Ok(bytes)
    }

    fn exit(&self, data: &Value) -> Result<End, CliError> {
        jobs::dropped(data);
        if render::string(data, "state") == "timed_out" {
            note("fluxctl: the command ran into its time limit and was ended");
        }
        if data.get("stdin_cut").and_then(Value::as_bool) == Some(true) {
            note("fluxctl: what the command read broke off before its end, and it was ended");
        }
        let code = data.get("exit_code").and_then(Value::as_i64);
        let code = code.and_then(|code| u8::try_from(code & 0xff).ok());
        code.map(End::Exit)
            .ok_or_else(|| self.wrong("an end without its exit code".to_owned()))
    }

    fn wrong(&self, reason: String) -> CliError {
        CliError::Answer {
            method: "GET",
            path: format!("{}/{}/stream", jobs::path(&self.session), self.job),
            reason,
        }
    }
}

/// An `error` event ends the stream for good unless only the connection or the daemon ended.
fn ending(event: &Value) -> End {
    let reason = match render::string(event, "error") {
        "" => event.to_string(),
        text => text.to_owned(),
    };
    match render::string(event, "code") {
        "stream_time_limit" | "stopping" => End::Broke(reason),
        _ => End::Lost(reason),
    }
}
