//! Jobs, as a client starts, reads and follows them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_json::json;

use crate::api::Api;
use crate::api::SESSIONS;
use crate::sse::EventStream;
use crate::sse::Frame;

/// What a follower of a job has: every byte once and in its place, or the test fails.
#[derive(Clone, Debug, Default)]
pub struct JobOutput {
    /// Standard output so far.
    pub stdout: Vec<u8>,
    /// Standard error so far.
    pub stderr: Vec<u8>,
    /// Where to go on, as the last frame said it.
    pub place: Option<String>,
    /// The last frame's event, once it came.
    pub end: Option<Value>,
}

impl JobOutput {
    /// Takes a frame. Answers whether it was the last.
    ///
    /// # Panics
    ///
    /// When its bytes do not follow those before, or its text does not show them.
    pub fn take(&mut self, frame: &Frame) -> bool {
        if frame.place.is_some() {
            self.place.clone_from(&frame.place);
        }
        let stream = match frame.event.as_str() {
            "output" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            "exit" | "error" => {
                self.end = Some(frame.data.clone());
                return true;
            }
            _ => return false,
        };
        let encoded = frame.data["output_base64"].as_str().expect("base64");
        let bytes = STANDARD.decode(encoded).expect("base64");
        assert_eq!(frame.data["offset"], stream.len(), "no gap and no repeat");
        if let Some(text) = frame.data["output"].as_str() {
            assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
        stream.extend_from_slice(&bytes);
        assert_eq!(frame.data["next_offset"], stream.len());
        false
    }

    /// Takes everything until the stream ends.
    pub fn take_all(&mut self, mut stream: EventStream) {
        while let Some(frame) = stream.next_or_end() {
            self.take(&frame);
        }
    }

    /// The exit code of the last frame.
    #[must_use]
    pub fn exit_code(&self) -> Option<i64> {
        self.end.as_ref()?["exit_code"].as_i64()
    }
}

impl Api {
    /// Starts a job, which must run, and answers with its id.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[must_use]
    pub fn start_job(&self, session: &str, body: &Value) -> String {
        let job = self.post(&format!("{SESSIONS}/{session}/jobs"), body);
        let job = job.expect(201);
        assert_eq!(job["engine"], "supervisor", "{job}");
        job["job"].as_str().expect("a job has an id").to_owned()
    }

    /// Starts a job that is nothing but a command.
    #[must_use]
    pub fn background(&self, session: &str, command: &str) -> String {
        self.start_job(session, &json!({"command": command}))
    }

    /// The path of a job.
    #[must_use]
    pub fn job_path(session: &str, job: &str) -> String {
        format!("{SESSIONS}/{session}/jobs/{job}")
    }

    /// A page of a job. `query` begins with `?` or is empty.
    #[must_use]
    pub fn job(&self, session: &str, job: &str, query: &str) -> Value {
        let path = Self::job_path(session, job);
        self.get(&format!("{path}{query}")).expect(200)
    }

    /// A session's jobs.
    ///
    /// # Panics
    ///
    /// When the answer is no list.
    #[must_use]
    pub fn jobs(&self, session: &str) -> Vec<Value> {
        let answer = self.get(&format!("{SESSIONS}/{session}/jobs")).expect(200);
        answer["items"].as_array().expect("a list").clone()
    }

    /// A job's output as it comes, from a place on.
    #[must_use]
    pub fn job_stream(&self, session: &str, job: &str, place: Option<&str>) -> EventStream {
        let path = format!("{}/stream", Self::job_path(session, job));
        let headers: Vec<(&str, &str)> = place
            .iter()
            .map(|place| ("last-event-id", *place))
            .collect();
        self.event_stream("GET", &path, &headers, &[])
    }

    /// Everything that a job writes, to its end.
    #[must_use]
    pub fn follow_job(&self, session: &str, job: &str) -> JobOutput {
        let mut output = JobOutput::default();
        output.take_all(self.job_stream(session, job, None));
        output
    }

    /// Runs a command with its output as it comes, to its end.
    #[must_use]
    pub fn exec_stream(&self, session: &str, body: &Value) -> JobOutput {
        let path = format!("{SESSIONS}/{session}/exec/stream");
        let bytes = body.to_string();
        let mut output = JobOutput::default();
        output.take_all(self.event_stream("POST", &path, &[], bytes.as_bytes()));
        output
    }

    /// Writes to a job's standard input.
    #[must_use]
    pub fn write_to_job(&self, session: &str, job: &str, body: &Value) -> crate::Answer {
        let path = Self::job_path(session, job);
        self.post(&format!("{path}/stdin"), body)
    }

    /// Runs a command that reads these bytes, which must have an outcome.
    #[must_use]
    pub fn exec_reading(&self, session: &str, command: &str, stdin: &[u8]) -> crate::Exec {
        let mut path = format!("{SESSIONS}/{session}/exec?timeout_seconds=60&command=");
        for byte in command.bytes() {
            path.push_str(&format!("%{byte:02X}"));
        }
        let headers = [("content-type", "application/octet-stream")];
        let answer = self.send("POST", &path, &headers, stdin);
        crate::Exec::from_json(answer.expect(200))
    }
}
