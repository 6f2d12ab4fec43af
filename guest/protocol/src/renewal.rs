//! Bodies of the routes around a memory checkpoint: a guest falls silent before one, and takes a new
//! identity after it was made anew from one.
//!
//! A guest that was copied has its parent's token, ids and randomness. Taking an identity gives it
//! its own. Identities are numbered by the host, and the number only ever grows, so that repeating
//! a request changes nothing and a request that comes too late is refused.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::Serialize;

use crate::AgentToken;
use crate::IdentityPair;
use crate::IdentityStep;

/// The body of a request to take a new identity. What it leaves out of `env` and `boot_id` stays.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRequest {
    /// The number of this identity, greater than that of the guest's present one. A launch is 0.
    pub generation: u64,
    /// The token that bearer routes ask for from then on.
    pub agent_token: AgentToken,
    /// Variables under those of every later exec, instead of the present ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// The identity of verified tunnels. Without one the guest has none any more: its present one
    /// is also its parent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityPair>,
    /// 32 to 512 fresh random bytes of the host, base64. Two copies of one guest have the same
    /// randomness until they get some.
    pub entropy_b64: String,
    /// The machine's id, 32 hexadecimal digits; absent makes a fresh one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// The host's name; absent is `microvm-` and twelve digits of the machine's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The boot's id as the kernel writes it, to be shown from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The time now, in milliseconds since the epoch. A clock that is off by a second or more is
    /// set, where the guest may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_ms: Option<u64>,
}

impl IdentityRequest {
    /// A request with a number, a token and fresh randomness.
    pub fn new(generation: u64, agent_token: AgentToken, entropy_b64: impl Into<String>) -> Self {
        Self {
            generation,
            agent_token,
            env: None,
            identity: None,
            entropy_b64: entropy_b64.into(),
            machine_id: None,
            hostname: None,
            boot_id: None,
            unix_ms: None,
        }
    }
}

impl fmt::Debug for IdentityRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("IdentityRequest")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The answer: the identity that the guest has now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityState {
    /// Its number.
    pub generation: u64,
    /// What each step did. Empty where the daemon is not the first process of a machine, which is
    /// then somebody else's.
    #[serde(default)]
    pub steps: Vec<IdentityStep>,
}

/// The body of a request to fall silent. An empty body asks for the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiesceRequest {
    /// Milliseconds of running for which the output of what was followed is held for its readers
    /// to come back; time in which the guest is frozen does not count. Absent is 10 s, and 300 s is
    /// the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
}

/// The answer: how silent the guest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuiesceState {
    /// Connections that are still open beside the one that this answer comes over, which closes
    /// after it.
    pub connections_left: u64,
    /// Execs whose output is held, because somebody was following them.
    pub held: u64,
    /// Execs that have no result yet.
    pub running: u64,
}

/// What this project adds to a discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveryExtension {
    /// The number of the guest's identity; 0 is the launch's.
    #[serde(default)]
    pub generation: u64,
    /// The kernel's Landlock version, which decides what of a policy can be enforced; 0 is none.
    #[serde(default)]
    pub landlock_abi: u32,
    /// Whether calls can be filtered.
    #[serde(default)]
    pub seccomp: bool,
}
