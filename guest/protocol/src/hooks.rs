//! Lifecycle hooks and the payload of the one that bootstraps a guest.
//!
//! The payload carries the token, so a refusal names a key or a shape and never a value.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;

use crate::paths::HOOKS_PREFIX;

/// The platform's lifecycle hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Readiness while an image is built.
    Ready,
    /// Validation while an image is built.
    Validate,
    /// Bootstrap: installs the token.
    Run,
    /// The guest is about to be frozen.
    Suspend,
    /// The guest was thawed.
    Resume,
    /// The guest is about to end.
    Terminate,
}

impl Hook {
    /// Every hook.
    pub const ALL: [Self; 6] = [
        Self::Ready,
        Self::Validate,
        Self::Run,
        Self::Suspend,
        Self::Resume,
        Self::Terminate,
    ];

    /// The last segment of the hook's path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Validate => "validate",
            Self::Run => "run",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Terminate => "terminate",
        }
    }

    /// The hook with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.as_str() == name)
    }

    /// The hook's whole path.
    pub fn path(self) -> String {
        format!("{HOOKS_PREFIX}{}", self.as_str())
    }
}

/// The bearer token of a guest. Its text never reaches a log through `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentToken(String);

impl AgentToken {
    /// Takes the token's text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the one header and the one payload that carry it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AgentToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AgentToken(…)")
    }
}

/// The key pair material of a guest with a verified identity, base64 as it arrived.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedPair")]
pub struct IdentityPair {
    /// The guest's x25519 secret.
    pub seed: String,
    /// The launching host's x25519 public key.
    pub host_public_key: String,
}

/// A pair as it was read, before its shape is looked at.
#[derive(Deserialize)]
struct UncheckedPair {
    seed: String,
    host_public_key: String,
}

impl TryFrom<UncheckedPair> for IdentityPair {
    type Error = &'static str;

    fn try_from(pair: UncheckedPair) -> Result<Self, Self::Error> {
        if is_key_material(&pair.seed) && is_key_material(&pair.host_public_key) {
            Ok(Self {
                seed: pair.seed,
                host_public_key: pair.host_public_key,
            })
        } else {
            Err("a key is not base64 of 32 bytes that are not all zero")
        }
    }
}

impl fmt::Debug for IdentityPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("IdentityPair(…)")
    }
}

/// The body of the run hook: a JSON object whose one key holds JSON as text.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunHookEnvelope {
    /// A [`RunHookPayload`] as JSON text.
    #[serde(rename = "runHookPayload")]
    pub run_hook_payload: String,
}

/// What a launch installs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunHookPayload {
    /// The token that bearer routes ask for from then on.
    pub agent_token: AgentToken,
    /// Variables under those of every later exec.
    pub env: BTreeMap<String, String>,
    /// The identity of verified tunnels, where the launch has one.
    pub identity: Option<IdentityPair>,
}

/// Why a run hook's payload was refused. Names keys and shapes only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunHookRefusal {
    /// The payload is not a JSON object.
    #[error("runHookPayload does not hold a JSON object")]
    NotAnObject,
    /// A key that must be there is not.
    #[error("runHookPayload holds no `{0}`")]
    Missing(&'static str),
    /// A key has the wrong shape.
    #[error("`{key}` in runHookPayload is not {expected}")]
    WrongShape {
        /// The key, or `env.NAME`.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl RunHookPayload {
    /// A payload with nothing but a token.
    pub fn new(agent_token: AgentToken) -> Self {
        Self {
            agent_token,
            env: BTreeMap::new(),
            identity: None,
        }
    }

    /// The hook's body.
    pub fn to_envelope(&self) -> RunHookEnvelope {
        let mut payload = serde_json::Map::new();
        payload.insert("agent_token".into(), self.agent_token.expose().into());
        if !self.env.is_empty() {
            let env = self
                .env
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().into()));
            payload.insert("env".into(), Value::Object(env.collect()));
        }
        if let Some(identity) = &self.identity {
            payload.insert("identity_seed".into(), identity.seed.clone().into());
            let key = identity.host_public_key.clone();
            payload.insert("identity_host_public_key".into(), key.into());
        }
        RunHookEnvelope {
            run_hook_payload: Value::Object(payload).to_string(),
        }
    }

    /// Reads the payload's text. Keys that it does not know are ignored: refusing one would end
    /// the guest of a newer client.
    pub fn parse(text: &str) -> Result<Self, RunHookRefusal> {
        let Ok(Value::Object(payload)) = serde_json::from_str::<Value>(text) else {
            return Err(RunHookRefusal::NotAnObject);
        };
        let agent_token = match payload.get("agent_token") {
            None => return Err(RunHookRefusal::Missing("agent_token")),
            Some(Value::String(token)) if !token.is_empty() => AgentToken::new(token.as_str()),
            Some(_) => return Err(wrong("agent_token", "a non-empty string")),
        };
        let env = parse_env(payload.get("env"))?;
        let identity = parse_identity(&payload)?;
        Ok(Self {
            agent_token,
            env,
            identity,
        })
    }
}

fn wrong(key: &str, expected: &'static str) -> RunHookRefusal {
    RunHookRefusal::WrongShape {
        key: key.to_owned(),
        expected,
    }
}

fn parse_env(value: Option<&Value>) -> Result<BTreeMap<String, String>, RunHookRefusal> {
    let object = match value {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(wrong("env", "an object of strings")),
    };
    let mut env = BTreeMap::new();
    for (name, value) in object {
        let Value::String(value) = value else {
            return Err(wrong(&format!("env.{name}"), "a string"));
        };
        env.insert(name.clone(), value.clone());
    }
    Ok(env)
}

fn parse_identity(
    payload: &serde_json::Map<String, Value>,
) -> Result<Option<IdentityPair>, RunHookRefusal> {
    let key_text = |key: &'static str| match payload.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if is_key_material(text) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(key, "base64 of 32 bytes that are not all zero")),
    };
    let seed = key_text("identity_seed")?;
    let host_public_key = key_text("identity_host_public_key")?;
    match (seed, host_public_key) {
        (None, None) => Ok(None),
        (Some(seed), Some(host_public_key)) => Ok(Some(IdentityPair {
            seed,
            host_public_key,
        })),
        (None, Some(_)) => Err(RunHookRefusal::Missing("identity_seed")),
        (Some(_), None) => Err(RunHookRefusal::Missing("identity_host_public_key")),
    }
}

/// Whether text is the canonical base64 of 32 bytes that are not all zero. 32 bytes are 43 digits
/// and one pad, and the last digit's two low bits are unused and must be zero.
fn is_key_material(text: &str) -> bool {
    let Some(digits) = text.strip_suffix('=') else {
        return false;
    };
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    digits.len() == 43
        && digits.bytes().all(alphabet)
        && digits.bytes().any(|digit| digit != b'A')
        && digits.ends_with(|last: char| "AEIMQUYcgkosw048".contains(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "do-not-quote-me";

    #[test]
    fn a_payload_survives_its_own_envelope() {
        let mut payload = RunHookPayload::new(AgentToken::new("t0k\"en"));
        payload.env.insert("A".into(), "b\nc".into());
        let text = payload.to_envelope().run_hook_payload;
        assert_eq!(RunHookPayload::parse(&text), Ok(payload));
    }

    #[test]
    fn a_refusal_names_the_key_and_never_a_value() {
        let cases = [
            (format!("\"{SECRET}\""), "JSON object"),
            (format!("{{\"x\": \"{SECRET}\"}}"), "agent_token"),
            (
                format!("{{\"agent_token\": [\"{SECRET}\"]}}"),
                "agent_token",
            ),
            (r#"{"agent_token": ""}"#.to_owned(), "agent_token"),
            (
                format!(r#"{{"agent_token": "t", "env": "{SECRET}"}}"#),
                "env",
            ),
            (
                format!(r#"{{"agent_token": "t", "env": {{"K": ["{SECRET}"]}}}}"#),
                "env.K",
            ),
            (
                format!(r#"{{"agent_token": "t", "identity_seed": "{SECRET}"}}"#),
                "identity_seed",
            ),
        ];
        for (text, named) in cases {
            let refusal = RunHookPayload::parse(&text).unwrap_err().to_string();
            assert!(refusal.contains(named), "{refusal}");
            assert!(!refusal.contains(SECRET), "{refusal}");
        }
    }

    #[test]
    fn an_identity_comes_as_a_pair_or_not_at_all() {
        let key = format!("B{}=", "A".repeat(42));
        let zero = format!("{}=", "A".repeat(43));
        let with =
            |fields: &str| RunHookPayload::parse(&format!(r#"{{"agent_token":"t"{fields}}}"#));
        let pair = with(&format!(
            r#","identity_seed":"{key}","identity_host_public_key":"{key}""#
        ));
        assert!(pair.unwrap().identity.is_some());
        assert_eq!(
            with(&format!(r#","identity_seed":"{key}""#)),
            Err(RunHookRefusal::Missing("identity_host_public_key"))
        );
        assert!(with(&format!(r#","identity_seed":"{zero}""#)).is_err());
        assert!(with(r#","identity_seed":null"#).unwrap().identity.is_none());
    }

    #[test]
    fn unknown_keys_do_not_refuse_a_launch() {
        assert!(RunHookPayload::parse(r#"{"agent_token":"t","later":{}}"#).is_ok());
    }
}
