//! Terminals of execs that were started with one.

use agentd_protocol::ExecId;
use agentd_protocol::ResizeState;
use agentd_protocol::TerminalSize;
use agentd_protocol::paths;

use crate::AgentdClient;
use crate::ClientError;
use crate::call::Repeat;
use crate::call::encode;

impl AgentdClient {
    /// Gives an exec's terminal another size; its foreground programs are told.
    ///
    /// # Errors
    ///
    /// 404 `unknown_exec`; 409 `no_terminal` when it was not started with one, or has ended.
    pub async fn resize(
        &self,
        id: &ExecId,
        size: TerminalSize,
    ) -> Result<ResizeState, ClientError> {
        let body = encode(&size)?;
        self.json(self.post(paths::resize(id), Some(body), Repeat::Harmless))
            .await
    }
}
