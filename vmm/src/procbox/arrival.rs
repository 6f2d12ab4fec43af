//! The first words with a guest daemon: a fresh one gets its token, one that came back gets another
//! token and an identity.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agentd_client::protocol::{
    IdentityRequest, IdentityState, IdentityStepOutcome, RunHookPayload,
};

use super::create::Started;
use crate::error::{CreateError, CreateFault, CreateStage};
use crate::snapshot::{Identity, RevivalReport};
use crate::spec::SandboxSpec;

/// How long a fresh guest daemon may take to accept its token. It takes a millisecond; a host that
/// swaps takes seconds.
const BOOTSTRAP_WAIT_MAX: Duration = Duration::from_secs(15);
/// How long to wait, once it has failed, for the end that may be the reason.
const DEATH_WAIT_MAX: Duration = Duration::from_millis(250);
/// What commands find in their environment unless the caller says otherwise.
pub(super) const GUEST_ENV: [(&str, &str); 3] = [
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
];

/// Fresh randomness for a guest daemon that came back, in bytes.
const ENTROPY_BYTES: usize = 64;
/// Steps of another identity without which a copy is taken for its original.
const NEEDED_STEPS: [&str; 3] = ["entropy", "machine-id", "hostname"];

/// How a guest daemon arrives.
pub(super) enum Arrival {
    /// It was started.
    Fresh,
    /// It came back from memory.
    Back {
        /// What is to be its machine's id; a fresh one where nothing is said.
        machine_id: Option<String>,
    },
}

fn env(spec: &SandboxSpec) -> BTreeMap<String, String> {
    let own = GUEST_ENV.map(|(name, value)| (name.to_owned(), value.to_owned()));
    own.into_iter().chain(spec.env.clone()).collect()
}

impl Started {
    /// Gives the guest daemon its token and the commands' environment.
    pub(super) async fn bootstrap(&self, spec: &SandboxSpec) -> Result<(), CreateError> {
        let mut payload = RunHookPayload::new(self.token.clone());
        payload.env.extend(env(spec));
        let asked = tokio::time::timeout(BOOTSTRAP_WAIT_MAX, self.client.run_hook(&payload));
        let answer = tokio::select! {
            biased;
            answer = asked => answer.unwrap_or(Err(agentd_client::ClientError::Timeout)),
            // Its socket would take a connection and never answer it.
            _ = self.process.exited() => Err(agentd_client::ClientError::Disconnected),
        };
        let Err(error) = answer else { return Ok(()) };
        // Its socket closes a moment before it has ended.
        let ended = tokio::time::timeout(DEATH_WAIT_MAX, self.process.exited())
            .await
            .is_ok();
        Err(CreateError {
            stage: CreateStage::Bootstrap,
            source: if ended {
                CreateFault::GuestDied {
                    log: self.log_tail(),
                }
            } else {
                CreateFault::Guest(error)
            },
            hint: None,
        })
    }

    /// Gives a guest daemon that came back another token, the time, fresh randomness and the name
    /// of its machine.
    pub(super) async fn take_identity(
        &self,
        spec: &SandboxSpec,
        machine_id: Option<String>,
    ) -> Result<IdentityState, CreateError> {
        let mut entropy = [0_u8; ENTROPY_BYTES];
        let failed = |error| CreateError {
            stage: CreateStage::Bootstrap,
            source: error,
            hint: None,
        };
        getrandom::fill(&mut entropy).map_err(|error| {
            failed(CreateFault::Os {
                what: "drawing randomness".to_owned(),
                source: std::io::Error::other(error.to_string()),
            })
        })?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        // Any number that is greater than all before.
        let entropy = base64_simd::STANDARD.encode_to_string(entropy);
        let mut request = IdentityRequest::new(now_ms, self.token.clone(), entropy);
        request.env = Some(env(spec));
        request.machine_id = machine_id;
        request.hostname = Some(spec.hostname.clone());
        request.unix_ms = Some(now_ms);
        let asked = tokio::time::timeout(BOOTSTRAP_WAIT_MAX, self.client.take_identity(&request));
        let answer = tokio::select! {
            biased;
            answer = asked => answer.unwrap_or(Err(agentd_client::ClientError::Timeout)),
            _ = self.process.exited() => Err(agentd_client::ClientError::Disconnected),
        };
        answer.map_err(|error| failed(CreateFault::Guest(error)))
    }
}

/// What to report of a guest daemon's new identity, and what of it is missing.
pub(super) fn report(state: &IdentityState, identity: Identity) -> RevivalReport {
    let failed = state.steps.iter().filter(|step| {
        NEEDED_STEPS.contains(&step.name.as_str()) && step.outcome == IdentityStepOutcome::Failed
    });
    let missing: Vec<String> = failed
        .map(|step| {
            format!(
                "{}: {}",
                step.name,
                step.error.as_deref().unwrap_or("failed")
            )
        })
        .collect();
    let asked = identity != Identity::Keep;
    RevivalReport {
        memory: true,
        identity_renewed: asked && missing.is_empty(),
        identity_note: (asked && !missing.is_empty()).then(|| missing.join("; ")),
        unconfined: Vec::new(),
    }
}
