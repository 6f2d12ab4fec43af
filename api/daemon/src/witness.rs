//! Pushing signed checkpoints to where someone else holds them.
//!
//! A ledger whose end was cut off, or that was written anew, shows only against a checkpoint that lay
//! elsewhere. So each new checkpoint is pushed, within about a second, to as many places as the config
//! names: a folder, standard output, a witness over HTTP. A push that fails is logged and made up for by
//! the next one, which says all that the one before it said; it never holds up the ledger.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use fluxvm_api_types::PushView;
use fluxvm_commands::Engine;
use fluxvm_eventstore::CheckpointSink;
use fluxvm_eventstore::FolderSink;
use fluxvm_eventstore::SignedCheckpoint;
use fluxvm_eventstore::push_checkpoints;
use tokio::task::JoinSet;

use crate::config::LedgerConfig;

/// How long a witness may take to answer. The next checkpoint waits for it.
const WITNESS_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the end of the daemon waits for the last checkpoint to be pushed.
const LAST_PUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// The pushes of one daemon.
pub(crate) struct Pushes(JoinSet<()>);

impl Pushes {
    /// Starts pushing.
    pub(crate) fn start(config: &LedgerConfig, engine: &Engine, states: &PushStates) -> Self {
        let mut places: Vec<(&'static str, String, Arc<dyn CheckpointSink>)> = Vec::new();
        if let Some(dir) = &config.checkpoint_dir {
            let place = dir.display().to_string();
            let sink = Arc::new(FolderSink::new(dir.clone()));
            places.push(("checkpoint_dir", place, sink));
        }
        if config.checkpoint_stdout {
            let place = "standard output".to_owned();
            places.push(("checkpoint_stdout", place, Arc::new(Stdout)));
        }
        if let Some(url) = &config.witness {
            places.push(("witness", url.clone(), Arc::new(Witness::new(url))));
        }
        let mut pushes = JoinSet::new();
        for (to, place, sink) in places {
            let sink = Arc::new(states.watch(to, sink));
            let failed = move |error: io::Error| {
                tracing::error!(place, %error, "a checkpoint could not be pushed");
            };
            pushes.spawn(push_checkpoints(engine.checkpoints(), sink, failed));
        }
        Self(pushes)
    }

    /// Waits until the last checkpoint of a ledger that was closed is pushed, or for as long as that
    /// may take.
    pub(crate) async fn finish(mut self) {
        let all = async { while self.0.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_PUSH_TIME_MAX, all).await.is_err() {
            tracing::error!("the last checkpoint was not pushed in time");
        }
    }
}

/// How the last push to each place went.
#[derive(Clone, Default)]
pub(crate) struct PushStates(Arc<Mutex<Vec<PushView>>>);

impl PushStates {
    /// For people.
    pub(crate) fn views(&self) -> Vec<PushView> {
        self.all().clone()
    }

    /// For metrics: each place, and whether the last push failed.
    pub(crate) fn figures(&self) -> Vec<(&'static str, bool)> {
        let all = self.all();
        let figures = all.iter().map(|push| (push.to, push.error.is_some()));
        figures.collect()
    }

    /// A sink that notes how its pushes go.
    fn watch(&self, to: &'static str, sink: Arc<dyn CheckpointSink>) -> Watched {
        self.all().push(PushView {
            to,
            size: None,
            error: None,
        });
        Watched {
            states: self.clone(),
            to,
            sink,
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<PushView>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watched {
    states: PushStates,
    to: &'static str,
    sink: Arc<dyn CheckpointSink>,
}

impl CheckpointSink for Watched {
    fn push(&self, checkpoint: &SignedCheckpoint) -> io::Result<()> {
        let pushed = self.sink.push(checkpoint);
        let mut all = self.states.all();
        if let Some(state) = all.iter_mut().find(|state| state.to == self.to) {
            state.size = Some(checkpoint.size().get());
            state.error = pushed.as_ref().err().map(ToString::to_string);
        }
        drop(all);
        pushed
    }
}

/// Writes each checkpoint to standard output, with an empty line behind it.
struct Stdout;

impl CheckpointSink for Stdout {
    fn push(&self, checkpoint: &SignedCheckpoint) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        write!(stdout, "{checkpoint}\n\n")?;
        stdout.flush()
    }
}

/// Posts each checkpoint to an address.
struct Witness {
    agent: ureq::Agent,
    url: String,
}

impl Witness {
    fn new(url: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(WITNESS_TIME_MAX))
            .user_agent(concat!("fluxvmd/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.new_agent(),
            url: url.to_owned(),
        }
    }
}

impl CheckpointSink for Witness {
    fn push(&self, checkpoint: &SignedCheckpoint) -> io::Result<()> {
        let post = self.agent.post(&self.url);
        let post = post.content_type("text/plain; charset=utf-8");
        let answered = post.send(checkpoint.to_string());
        answered.map(drop).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    const NOTE: &str = "flux.example/ledger\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n— flux.example/ledger AAAAAAECAwQ=\n";

    /// Answers one request with this status and returns its body.
    fn witness(status: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/w", listener.local_addr().expect("address"));
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(stream.try_clone().expect("clone"));
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("line");
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().expect("length");
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("body");
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            .expect("answer");
            String::from_utf8(body).expect("text")
        });
        (url, served)
    }

    #[test]
    fn a_witness_gets_the_note_byte_for_byte_and_its_refusal_is_an_error() {
        let checkpoint: SignedCheckpoint = NOTE.parse().expect("a note");
        let (url, served) = witness("200 OK");
        let states = PushStates::default();
        let watched = |url: &str| states.watch("witness", Arc::new(Witness::new(url)));
        watched(&url).push(&checkpoint).expect("taken");
        assert_eq!(states.views()[0].size, Some(1));
        assert_eq!(states.figures(), [("witness", false)]);
        assert_eq!(served.join().expect("served"), NOTE);

        let (url, served) = witness("409 Conflict");
        let refused = Watched {
            sink: Arc::new(Witness::new(&url)),
            ..watched("http://unused")
        };
        assert!(refused.push(&checkpoint).is_err());
        assert_eq!(states.figures()[0], ("witness", true));
        served.join().expect("served");
    }
}
