//! The grammar of a policy and of a budget, as callers write them.

use std::fmt;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::MapAccess;
use serde::de::Visitor;
use serde::de::value::MapAccessDeserializer;

use crate::number::Dollars;
use crate::object;

/// `policy`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// A policy by its name. Which names there are is a rule.
    #[serde(default)]
    pub preset: Option<String>,
    /// What the sandbox may reach.
    #[serde(default, deserialize_with = "object::optional")]
    pub network: Option<NetworkRules>,
    /// Which commands may run.
    #[serde(default, deserialize_with = "object::optional")]
    pub process: Option<ProcessRules>,
    /// Which files commands may touch.
    #[serde(default, deserialize_with = "object::optional")]
    pub filesystem: Option<FilesystemRules>,
}

/// `policy.network`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkRules {
    /// What happens to what no rule allows.
    #[serde(default)]
    pub default: Option<NetworkDefault>,
    /// Hosts that may be reached.
    #[serde(default)]
    pub allow: Vec<HostRule>,
    /// Whether rules that cannot be enforced fail the request.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// `policy.network.default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkDefault {
    /// What no rule allows is refused.
    Deny,
}

/// `enforcement` of a section of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// Rules that cannot be enforced fail the request.
    Strict,
    /// Rules that cannot be enforced are left out, and the session says so.
    BestEffort,
}

/// One entry of `policy.network.allow`: a bare host, or an object that narrows what may be asked of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRule {
    /// The host.
    pub host: String,
    /// Methods that may be used; empty allows all.
    pub methods: Vec<String>,
    /// Paths that may be asked for; empty allows all.
    pub paths: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostRuleObject {
    host: String,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HostRuleVisitor)
    }
}

/// By hand and not as an untagged enum, which would swallow the path of the field that is wrong.
struct HostRuleVisitor;

impl<'de> Visitor<'de> for HostRuleVisitor {
    type Value = HostRule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host, or an object with host, methods and paths")
    }

    fn visit_str<E: serde::de::Error>(self, host: &str) -> Result<HostRule, E> {
        Ok(HostRule {
            host: host.to_owned(),
            ..HostRule::default()
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostRule, A::Error> {
        let rule = HostRuleObject::deserialize(MapAccessDeserializer::new(map))?;
        Ok(HostRule {
            host: rule.host,
            methods: rule.methods,
            paths: rule.paths,
        })
    }
}

/// `policy.process`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessRules {
    /// Patterns of commands that may run.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Patterns of commands that may not.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Patterns of commands that people decide on.
    #[serde(default)]
    pub ask: Vec<AskRule>,
    /// Whether the kernel enforces the list of programs.
    #[serde(default)]
    pub enforce: Option<ProcessEnforcement>,
    /// Whether commands that no rule can be held against are held for approval.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// One entry of `policy.process.ask`: a bare pattern, or an object that says how many people decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskRule {
    /// The pattern.
    pub pattern: String,
    /// How many different people have to agree.
    pub approvers: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskRuleObject {
    #[serde(rename = "match")]
    pattern: String,
    #[serde(default)]
    approvers: Option<u32>,
}

impl<'de> Deserialize<'de> for AskRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AskRuleVisitor)
    }
}

struct AskRuleVisitor;

impl<'de> Visitor<'de> for AskRuleVisitor {
    type Value = AskRule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern, or an object with match and approvers")
    }

    fn visit_str<E: serde::de::Error>(self, pattern: &str) -> Result<AskRule, E> {
        Ok(AskRule {
            pattern: pattern.to_owned(),
            approvers: 1,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AskRule, A::Error> {
        let rule = AskRuleObject::deserialize(MapAccessDeserializer::new(map))?;
        Ok(AskRule {
            pattern: rule.pattern,
            approvers: rule.approvers.unwrap_or(1),
        })
    }
}

/// `policy.process.enforce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessEnforcement {
    /// The first word of each allowed pattern becomes the kernel's list of programs.
    Exec,
}

/// `policy.filesystem`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesystemRules {
    /// Paths that commands may read.
    #[serde(default)]
    pub read: Vec<String>,
    /// Paths that commands may write.
    #[serde(default)]
    pub write: Vec<String>,
    /// Whether rules that cannot be enforced fail the request.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// `budget`. All limits are optional; a limit that is not there is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Commands through exec.
    #[serde(default)]
    pub max_execs: Option<u64>,
    /// Summed time of commands through exec, in seconds.
    #[serde(default)]
    pub max_exec_seconds: Option<u64>,
    /// Jobs started.
    #[serde(default)]
    pub max_jobs: Option<u64>,
    /// Jobs running at once.
    #[serde(default)]
    pub max_concurrent_jobs: Option<u64>,
    /// Children made by forking.
    #[serde(default)]
    pub max_children: Option<u64>,
    /// Summed time of commands and jobs, in seconds.
    #[serde(default)]
    pub max_compute_seconds: Option<u64>,
    /// Bytes kept of one output stream.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
    /// Bytes that the workspace may hold when a command starts.
    #[serde(default)]
    pub max_workspace_bytes: Option<u64>,
    /// Tokens that models read, as they are reported.
    #[serde(default)]
    pub max_input_tokens: Option<u64>,
    /// Tokens that models wrote, as they are reported.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// What models cost, as it is reported, in US dollars.
    #[serde(default)]
    pub max_cost_usd: Option<Dollars>,
    /// Processes and threads at once.
    #[serde(default)]
    pub max_processes: Option<u64>,
    /// Bytes of memory.
    #[serde(default)]
    pub max_memory: Option<u64>,
    /// What happens to what runs when the time runs out.
    #[serde(default)]
    pub on_exhaust: Option<Exhaust>,
}

/// `budget.on_exhaust`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exhaust {
    /// Time is reserved, so that nothing goes over it.
    Stop,
    /// What runs goes on, and the next is refused.
    RefuseNext,
}
