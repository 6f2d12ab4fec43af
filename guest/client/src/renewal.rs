//! What surrounds a memory checkpoint: silence before it, another identity after it.

use std::fmt;
use std::time::Duration;

use agentd_protocol::IdentityRequest;
use agentd_protocol::IdentityState;
use agentd_protocol::QuiesceRequest;
use agentd_protocol::QuiesceState;
use agentd_protocol::paths;

use crate::AgentdClient;
use crate::ClientError;
use crate::call::Repeat;
use crate::call::collect;
use crate::call::encode;
use crate::pool::Silence;

/// How long a guest may take to fall silent: longer than it waits for its other connections.
const QUIESCE_ANSWER_MAX: Duration = Duration::from_secs(5);

/// Bytes of its answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// A guest without a connection to the host. While this lives no clone of the client dials: calls
/// wait, within their time. Dropping it lets them go on.
pub struct Quiesced {
    /// What the guest said last.
    pub state: QuiesceState,
    _silence: Silence,
}

impl fmt::Debug for Quiesced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Quiesced")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl AgentdClient {
    /// Gives the guest another token and identity, and shows that token from then on, in every
    /// clone. Everybody's connections end, streams included; an exec is followed on from where its
    /// stream ended. Repeating a request that may have arrived is harmless.
    ///
    /// # Errors
    ///
    /// 409 `generation_conflict` when the guest has a later identity or another one of this number.
    /// After an error that leaves open whether the request arrived, the token shown is the old one,
    /// and repeating the call with the same request finds out.
    pub async fn take_identity(
        &self,
        request: &IdentityRequest,
    ) -> Result<IdentityState, ClientError> {
        let body = encode(request)?;
        let call = || {
            let body = Some(body.clone());
            self.post(paths::IDENTITY.to_owned(), body, Repeat::Harmless)
        };
        let state = match self.json(call()).await {
            // The guest may have taken it before, and the answer been lost.
            Err(ClientError::Refused { status: 401, .. }) => {
                self.showing(&request.agent_token).json(call()).await?
            }
            taken => taken?,
        };
        self.show(&request.agent_token);
        // The guest has ended them.
        self.pool().forget_idle();
        Ok(state)
    }

    /// Ends every connection to the guest, those of streams included, and holds back new ones until
    /// the answer is dropped. The guest has no open connection when this returns, unless
    /// `connections_left` says so. Output of followed execs is held in the guest for `hold` of its
    /// running time, for their readers to come back: an exec is then followed on without a gap.
    pub async fn quiesce(&self, hold: Duration) -> Result<Quiesced, ClientError> {
        let silence = self.pool().silence();
        let request = QuiesceRequest {
            hold_ms: Some(u64::try_from(hold.as_millis()).unwrap_or(u64::MAX)),
        };
        let call = self.post(
            paths::QUIESCE.to_owned(),
            Some(encode(&request)?),
            Repeat::Never,
        );
        let state = tokio::time::timeout(QUIESCE_ANSWER_MAX, async {
            let (response, ended) = self.send_to_silent(&call).await?;
            let body = collect(response.into_body(), ANSWER_BYTES_MAX).await?;
            let _ = ended.await;
            serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
        });
        let state = state.await.map_err(|_| ClientError::Timeout)??;
        self.pool().cut();
        Ok(Quiesced {
            state,
            _silence: silence,
        })
    }
}
