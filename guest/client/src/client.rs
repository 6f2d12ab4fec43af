//! The calls.

use std::fmt;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::time::Duration;

use agentd_protocol::AgentToken;
use agentd_protocol::Discovery;
use agentd_protocol::ErrorBody;
use agentd_protocol::ExecId;
use agentd_protocol::ExecState;
use agentd_protocol::Health;
use agentd_protocol::Hook;
use agentd_protocol::KillState;
use agentd_protocol::Procs;
use agentd_protocol::RunHookPayload;
use agentd_protocol::StartRequest;
use agentd_protocol::StartedState;
use agentd_protocol::StdinExtension;
use agentd_protocol::StdinRequest;
use agentd_protocol::StdinState;
use agentd_protocol::limits::STDIN_WRITE_BYTES_MAX;
use agentd_protocol::paths;
use agentd_protocol::paths::ExecVerb;
use bytes::Bytes;
use http_body_util::Full;
use hyper::HeaderMap;
use hyper::Method;
use hyper::Request;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header;
use hyper::header::HeaderValue;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::ClientError;
use crate::Connect;
use crate::ExecStream;
use crate::body::RequestBody;
use crate::body::Source;
use crate::call::Call;
use crate::call::Repeat;
use crate::call::bearer;
use crate::call::collect;
use crate::call::encode;
use crate::call::transport_error;
use crate::pool::Pool;
use crate::pool::Sender;

/// Time for an answer, or for the head of a stream's.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of an answer that says what was done, or of a command's state without its output.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Bytes of an answer that lists something: 10,000 names of 255 bytes, each byte escaped to six, with
/// what is said of them.
pub(crate) const LIST_BYTES_MAX: usize = 24 * 1024 * 1024;

/// Bytes of an answer with a command's whole output: two captures of 8 MiB, each byte escaped to six.
const OUTCOME_BYTES_MAX: usize = 100 * 1024 * 1024;

/// Bytes of an error's body.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// A client of one guest. Clones share its connections.
#[derive(Clone)]
pub struct AgentdClient {
    pool: Arc<Pool>,
    /// What is shown to the guest, by all clones: it changes with the guest's identity.
    authorization: Arc<RwLock<Option<HeaderValue>>>,
    request_timeout: Duration,
}

impl fmt::Debug for AgentdClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AgentdClient")
            .finish_non_exhaustive()
    }
}

impl AgentdClient {
    /// A client that dials with `connector` and shows `token`. Nothing is dialled yet.
    pub fn new(connector: Arc<dyn Connect>, token: AgentToken) -> Self {
        let pool = Arc::new(Pool::new(connector));
        Self {
            pool,
            authorization: Arc::new(RwLock::new(bearer(&token))),
            request_timeout: REQUEST_TIMEOUT,
        }
    }

    /// The same client with another time limit per request.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Liveness, bootstrap state and activity. Needs no token.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.json(self.get(paths::HEALTH.to_owned())).await
    }

    /// Posts the run hook, which bootstraps the guest. Repeating it with the same token is fine.
    pub async fn run_hook(&self, payload: &RunHookPayload) -> Result<(), ClientError> {
        let body = encode(&payload.to_envelope())?;
        self.empty(self.post(Hook::Run.path(), Some(body), Repeat::Harmless))
            .await
    }

    /// Posts a lifecycle hook other than `run`.
    pub async fn hook(&self, hook: Hook) -> Result<(), ClientError> {
        self.empty(self.post(hook.path(), None, Repeat::Harmless))
            .await
    }

    /// Starts an exec; a known id is not started again.
    pub async fn start(&self, request: &StartRequest) -> Result<StartedState, ClientError> {
        let body = encode(request)?;
        self.json(self.post(paths::EXEC_START.to_owned(), Some(body), Repeat::Harmless))
            .await
    }

    /// An exec's state, and its result when it has one.
    pub async fn poll(&self, id: &ExecId) -> Result<ExecState, ClientError> {
        let call = self.get(paths::exec(id, ExecVerb::Poll));
        self.json(call.answered_within(OUTCOME_BYTES_MAX)).await
    }

    /// Writes bytes to an exec's standard input and closes it if `eof`. A refusal for lack of time
    /// leaves the pipe open, and part of the bytes may have been taken.
    pub async fn stdin(
        &self,
        id: &ExecId,
        bytes: &[u8],
        eof: bool,
    ) -> Result<StdinState, ClientError> {
        self.write(id, bytes, eof, None).await
    }

    /// The same, and the answer says how much was taken of all writes. With an `offset`, the number of
    /// bytes that were written before, it may be repeated until it is answered: what of it the command
    /// took before is not written again.
    ///
    /// # Errors
    ///
    /// As [`Self::stdin`]; `Refused` with 409 and `taken` when bytes before it are missing.
    pub async fn stdin_at(
        &self,
        id: &ExecId,
        offset: Option<u64>,
        bytes: &[u8],
        eof: bool,
    ) -> Result<StdinState, ClientError> {
        let extension = StdinExtension { offset };
        self.write(id, bytes, eof, Some(extension)).await
    }

    async fn write(
        &self,
        id: &ExecId,
        bytes: &[u8],
        eof: bool,
        x: Option<StdinExtension>,
    ) -> Result<StdinState, ClientError> {
        let request = StdinRequest {
            data_b64: (!bytes.is_empty()).then(|| base64_simd::STANDARD.encode_to_string(bytes)),
            signal: eof.then(|| StdinRequest::EOF.to_owned()),
            x,
        };
        let repeat = match x.and_then(|x| x.offset) {
            Some(_) => Repeat::Harmless,
            None => Repeat::Never,
        };
        let path = paths::exec(id, ExecVerb::Stdin);
        self.json(self.post(path, Some(encode(&request)?), repeat))
            .await
    }

    /// Writes bytes of any number to an exec's standard input, and closes it if `eof`. Waits for a
    /// command that is slow to read, for as long as it lives; the caller sets an end by giving up.
    pub async fn feed(&self, id: &ExecId, bytes: &[u8], eof: bool) -> Result<(), ClientError> {
        let portion_bytes = usize::try_from(STDIN_WRITE_BYTES_MAX).unwrap_or(usize::MAX);
        let mut rest = bytes;
        loop {
            let portion = rest.get(..portion_bytes).unwrap_or(rest);
            let last = portion.len() == rest.len();
            let taken = match self.stdin(id, portion, eof && last).await {
                Ok(_) if last => return Ok(()),
                Ok(state) => state.written,
                Err(ClientError::Refused {
                    status: 408,
                    written: Some(written),
                    ..
                }) => written,
                Err(error) => return Err(error),
            };
            let taken = usize::try_from(taken).unwrap_or(usize::MAX);
            rest = rest.get(taken..).ok_or_else(|| {
                ClientError::Protocol("more bytes were taken than were sent".into())
            })?;
        }
    }

    /// Every exec's process group and its live members.
    pub async fn procs(&self) -> Result<Procs, ClientError> {
        let call = self.get(paths::PROCS.to_owned());
        self.json(call.answered_within(LIST_BYTES_MAX)).await
    }

    /// What the image configures.
    pub async fn discovery(&self) -> Result<Discovery, ClientError> {
        let call = self.get(paths::DISCOVERY.to_owned());
        self.json(call.answered_within(LIST_BYTES_MAX)).await
    }

    /// Releases an exec's output and returns its result for the last time.
    pub async fn ack(&self, id: &ExecId) -> Result<ExecState, ClientError> {
        let call = self.post(paths::exec(id, ExecVerb::Ack), None, Repeat::Never);
        self.json(call.answered_within(OUTCOME_BYTES_MAX)).await
    }

    /// Releases an exec's output without asking for its result, for a caller that followed it. A
    /// daemon that does not know the difference sends the result, which is dropped.
    pub async fn release(&self, id: &ExecId) -> Result<(), ClientError> {
        let path = paths::exec(id, ExecVerb::Ack);
        let path = format!("{path}?{}", paths::ACK_WITHOUT_OUTCOME);
        self.empty(self.post(path, None, Repeat::Never)).await
    }

    /// Lets go of held output before `offset`, of an exec that was started with `hold_bytes`.
    pub async fn acknowledge_to(&self, id: &ExecId, offset: u64) -> Result<(), ClientError> {
        let path = paths::exec(id, ExecVerb::Ack);
        let path = format!("{path}?{}={offset}", paths::ACK_OFFSET);
        self.empty(self.post(path, None, Repeat::Harmless)).await
    }

    /// Sends one signal, by its name without `SIG`, to an exec's processes and waits for nothing.
    pub async fn signal(&self, id: &ExecId, name: &str) -> Result<KillState, ClientError> {
        let path = paths::exec(id, ExecVerb::Kill);
        let path = paths::with_query(&path, [(paths::KILL_SIGNAL, name)]);
        self.json(self.post(path, None, Repeat::Never)).await
    }

    /// Stops an exec's processes; the answer comes when they are gone. A grace over 30 s needs a
    /// client with a longer time limit.
    pub async fn kill(&self, id: &ExecId) -> Result<KillState, ClientError> {
        self.json(self.post(paths::exec(id, ExecVerb::Kill), None, Repeat::Never))
            .await
    }

    /// Follows an exec's output from `offset`.
    pub async fn stream(&self, id: &ExecId, offset: u64) -> Result<ExecStream, ClientError> {
        let path = format!("{}?offset={offset}", paths::exec(id, ExecVerb::Stream));
        self.event_stream(self.get(path)).await
    }

    /// Starts an exec and follows its output from the first byte on, in one round trip. A known id
    /// is attached to.
    pub async fn run(&self, request: &StartRequest) -> Result<ExecStream, ClientError> {
        let body = encode(request)?;
        let path = paths::EXEC_RUN.to_owned();
        self.event_stream(self.post(path, Some(body), Repeat::Harmless))
            .await
    }

    /// Shows another token from now on, in every clone.
    pub(crate) fn show(&self, token: &AgentToken) {
        let mut shown = self
            .authorization
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = bearer(token);
    }

    /// The same connections with another token.
    pub(crate) fn showing(&self, token: &AgentToken) -> Self {
        Self {
            authorization: Arc::new(RwLock::new(bearer(token))),
            ..self.clone()
        }
    }

    pub(crate) fn get(&self, path: String) -> Call {
        let timeout = self.request_timeout;
        Call {
            method: Method::GET,
            path,
            body: None,
            repeat: Repeat::Harmless,
            timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }

    /// A POST without a body that must not be repeated.
    pub(crate) fn post_once(&self, path: String) -> Call {
        self.post(path, None, Repeat::Never)
    }

    pub(crate) fn post(&self, path: String, body: Option<Bytes>, repeat: Repeat) -> Call {
        let timeout = self.request_timeout;
        Call {
            method: Method::POST,
            path,
            body,
            repeat,
            timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let body = self.buffered(call).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    async fn empty(&self, call: Call) -> Result<(), ClientError> {
        self.buffered(call).await.map(|_| ())
    }

    async fn buffered(&self, call: Call) -> Result<Bytes, ClientError> {
        let (_, body) = self.buffered_with_headers(call).await?;
        Ok(body)
    }

    pub(crate) async fn buffered_with_headers(
        &self,
        call: Call,
    ) -> Result<(HeaderMap, Bytes), ClientError> {
        let timeout = call.timeout;
        let answer = async {
            let (response, sender) = self.send(&call).await?;
            let (head, body) = response.into_parts();
            let body = collect(body, call.answer_bytes_max).await?;
            self.pool.give_back(sender).await;
            Ok((head.headers, body))
        };
        tokio::time::timeout(timeout, answer)
            .await
            .map_err(|_| ClientError::Timeout)?
    }

    /// The connections, for what streams.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Asks for something whose answer is read as it comes.
    pub(crate) async fn streamed(&self, path: String) -> Result<(Incoming, Sender), ClientError> {
        let call = self.get(path);
        let answer = tokio::time::timeout(call.timeout, self.send(&call)).await;
        let (response, sender) = answer.map_err(|_| ClientError::Timeout)??;
        Ok((response.into_body(), sender))
    }

    /// Sends a stream, which can be sent once only: over a fresh connection, that cannot turn out
    /// to be stale half-way.
    pub(crate) async fn sent_stream(
        &self,
        method: Method,
        path: String,
        content: Source,
    ) -> Result<Bytes, ClientError> {
        let mut sender = self.pool.dial().await?;
        let request = self
            .head(&method, &path)
            .body(RequestBody::Stream(content))
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|error| transport_error(&error))?;
        let (response, sender) = self.accepted(response, sender).await?;
        let answer = collect(response.into_body(), ERROR_BYTES_MAX).await?;
        self.pool.give_back(sender).await;
        Ok(answer)
    }

    async fn event_stream(&self, call: Call) -> Result<ExecStream, ClientError> {
        let answer = tokio::time::timeout(call.timeout, self.send(&call)).await;
        let (response, sender) = answer.map_err(|_| ClientError::Timeout)??;
        Ok(ExecStream::new(
            response.into_body(),
            sender,
            Arc::clone(&self.pool),
        ))
    }

    /// Sends a call and returns its answer, if that is a good one.
    async fn send(&self, call: &Call) -> Result<(Response<Incoming>, Sender), ClientError> {
        let (response, sender) = self.send_any(call).await?;
        self.accepted(response, sender).await
    }

    async fn accepted(
        &self,
        response: Response<Incoming>,
        sender: Sender,
    ) -> Result<(Response<Incoming>, Sender), ClientError> {
        if matches!(response.status(), StatusCode::OK | StatusCode::NO_CONTENT) {
            return Ok((response, sender));
        }
        let status = response.status().as_u16();
        let body = collect(response.into_body(), ERROR_BYTES_MAX).await?;
        self.pool.give_back(sender).await;
        Err(match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(error) => ClientError::Refused {
                status,
                slug: Some(error.error.into_boxed_str()),
                detail: error.detail,
                written: error.x.and_then(|x| x.written),
                taken: error.x.and_then(|x| x.taken),
            },
            Err(_) => {
                let detail = String::from_utf8_lossy(&body).into_owned();
                ClientError::Refused {
                    status,
                    slug: None,
                    detail,
                    written: None,
                    taken: None,
                }
            }
        })
    }

    /// Sends a call over a fresh connection to a guest that nobody else may speak to, and returns
    /// its good answer and what resolves when the connection has ended.
    pub(crate) async fn send_to_silent(
        &self,
        call: &Call,
    ) -> Result<(Response<Incoming>, JoinHandle<()>), ClientError> {
        let (mut sender, ended) = self.pool.dial_now().await?;
        let sent = sender.send_request(self.request(call)?).await;
        let response = sent.map_err(|error| transport_error(&error))?;
        let (response, _) = self.accepted(response, sender).await?;
        Ok((response, ended))
    }

    /// Sends a call over an idle connection, or over a fresh one when that turns out to be stale.
    async fn send_any(&self, call: &Call) -> Result<(Response<Incoming>, Sender), ClientError> {
        if let Some(mut sender) = self.pool.take_idle() {
            match sender.try_send_request(self.request(call)?).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut failure) => {
                    let unsent = failure.take_message().is_some();
                    if !unsent && call.repeat == Repeat::Never {
                        return Err(transport_error(failure.error()));
                    }
                }
            }
        }
        let mut sender = self.pool.dial().await?;
        let sent = sender.send_request(self.request(call)?).await;
        let response = sent.map_err(|error| transport_error(&error))?;
        Ok((response, sender))
    }

    fn request(&self, call: &Call) -> Result<Request<RequestBody>, ClientError> {
        let mut request = self.head(&call.method, &call.path);
        if call.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = Full::new(call.body.clone().unwrap_or_default());
        request
            .body(RequestBody::Whole(body))
            .map_err(|error| ClientError::Protocol(error.to_string()))
    }

    fn head(&self, method: &Method, path: &str) -> hyper::http::request::Builder {
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(header::HOST, "guest");
        let shown = self
            .authorization
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(authorization) = &*shown {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        request
    }
}
