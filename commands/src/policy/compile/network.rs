//! The network part: which hosts may be reached, and what may be asked of them.

use super::Enforceable;
use super::invalid;
use super::unenforceable;
use crate::error::CommandError;
use crate::limits::POLICY_HOST_BYTES_MAX;
use crate::limits::POLICY_LIST_MAX;
use crate::limits::POLICY_PATTERN_CHARS_MAX;
use crate::request::Enforcement;
use crate::request::HostRequest;
use crate::request::NetworkRequest;

/// Where developers' tools get their sources and packages.
const DEVELOPER_SAFE: &[&str] = &[
    "github.com",
    "*.github.com",
    "*.githubusercontent.com",
    "crates.io",
    "*.crates.io",
    "static.crates.io",
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "proxy.golang.org",
    "sum.golang.org",
];

const NO_EDGE: &str = "the network edge that would enforce it does not exist in this version; \
                       leave it out or say `offline`";

const UNENFORCED: &str = "there is no network edge: nothing beyond loopback can be reached";

/// A named policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preset {
    None,
    Offline,
    DeveloperSafe,
    Open,
}

/// The network part, compiled.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) offline: bool,
    pub(super) allow_hosts: Vec<String>,
    pub(super) http_rules: Vec<String>,
    pub(super) unenforced: Option<String>,
}

pub(super) fn preset(name: Option<&str>) -> Result<Preset, CommandError> {
    match name {
        None => Ok(Preset::None),
        Some("offline") => Ok(Preset::Offline),
        Some("developer-safe") => Ok(Preset::DeveloperSafe),
        Some("open") => Ok(Preset::Open),
        Some(_) => Err(invalid(
            "policy.preset",
            "must be offline, developer-safe or open",
        )),
    }
}

pub(super) fn compile(
    preset: Preset,
    request: &NetworkRequest,
    can: Enforceable,
) -> Result<Network, CommandError> {
    let asked = request.allow.len();
    if preset == Preset::Offline && asked > 0 {
        return Err(invalid(
            "policy.network.allow",
            "the preset `offline` reaches nothing",
        ));
    }
    if asked > POLICY_LIST_MAX {
        let message = format!("must hold at most {POLICY_LIST_MAX} hosts");
        return Err(invalid("policy.network.allow", message));
    }
    let mut hosts: Vec<String> = match preset {
        Preset::DeveloperSafe => DEVELOPER_SAFE.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    for entry in &request.allow {
        let host = host(&entry.host)?;
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let http_rules = http_rules(&request.allow, &hosts)?;
    let open = preset == Preset::Open && !request.denies && asked == 0;
    if hosts.is_empty() && !open {
        return Ok(Network {
            offline: true,
            ..Network::default()
        });
    }
    if can.network {
        return Ok(Network {
            offline: false,
            allow_hosts: hosts,
            http_rules,
            unenforced: None,
        });
    }
    if request.enforcement == Enforcement::BestEffort {
        return Ok(Network {
            offline: true,
            allow_hosts: hosts,
            http_rules: Vec::new(),
            unenforced: Some(UNENFORCED.to_owned()),
        });
    }
    let field = if asked > 0 {
        "policy.network"
    } else {
        "policy.preset"
    };
    Err(unenforceable(field, NO_EDGE))
}

/// One rule for each method and path, for the host and those below it; and one that allows all for every
/// other host, because what no rule allows is refused once there is a rule.
fn http_rules(allow: &[HostRequest], hosts: &[String]) -> Result<Vec<String>, CommandError> {
    let mut rules = Vec::new();
    let mut limited = Vec::new();
    for entry in allow {
        if entry.methods.is_empty() && entry.paths.is_empty() {
            continue;
        }
        let name = host(&entry.host)?;
        let methods = methods(&entry.methods)?;
        entry.paths.iter().try_for_each(|path| check_path(path))?;
        let any = [String::new()];
        let paths = if entry.paths.is_empty() {
            &any[..]
        } else {
            &entry.paths
        };
        for method in &methods {
            for path in paths {
                rules.push(format!("allow {method} {name}{path}"));
                if !name.starts_with("*.") {
                    rules.push(format!("allow {method} *.{name}{path}"));
                }
            }
        }
        limited.push(name);
    }
    if !rules.is_empty() {
        let others = hosts.iter().filter(|host| !limited.contains(host));
        rules.extend(others.map(|host| format!("allow * {host}")));
    }
    Ok(rules)
}

/// A host in lower case: a name, or all names below one.
fn host(text: &str) -> Result<String, CommandError> {
    let host = text.to_ascii_lowercase();
    let name = host.strip_prefix("*.").unwrap_or(&host);
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > POLICY_HOST_BYTES_MAX || !name.split('.').all(is_label) {
        let message = "must be a host's name, or `*.` and one; no scheme, port or path";
        return Err(invalid("policy.network.allow.host", message));
    }
    Ok(host)
}

fn methods(methods: &[String]) -> Result<Vec<String>, CommandError> {
    if methods.is_empty() {
        return Ok(vec!["*".to_owned()]);
    }
    let is_method = |text: &str| {
        (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    if methods.len() > POLICY_LIST_MAX || !methods.iter().all(|method| is_method(method)) {
        let message = "must each be one HTTP method, such as GET";
        return Err(invalid("policy.network.allow.methods", message));
    }
    Ok(methods
        .iter()
        .map(|method| method.to_ascii_uppercase())
        .collect())
}

/// A path as it is after decoding: what is still encoded in it would match nothing.
fn check_path(path: &str) -> Result<(), CommandError> {
    let odd = |character: char| "%?#\\".contains(character) || !character.is_ascii_graphic();
    let dots = |part: &str| part == "." || part == "..";
    let holds = path.starts_with('/')
        && path.len() <= POLICY_PATTERN_CHARS_MAX
        && !path.contains("//")
        && !path.contains(odd)
        && !path.split('/').any(dots);
    if holds {
        return Ok(());
    }
    let message = "must start with / and hold no %, ?, #, backslash, `//`, `.` or `..`";
    Err(invalid("policy.network.allow.paths", message))
}
