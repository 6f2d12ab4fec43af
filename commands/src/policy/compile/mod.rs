//! From a policy as callers write it to what is recorded and enforced. What a field says that does not
//! hold is refused by its name; what cannot be enforced is refused too, unless the caller agreed to that.

mod filesystem;
mod network;
mod process;

use fluxvm_projections::PolicyRecord;

use crate::error::CommandError;
use crate::request::PolicyRequest;

/// What of a policy the engine can enforce.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Enforceable {
    /// Rules about files.
    pub(crate) confinement: bool,
    /// A list of programs.
    pub(crate) exec_allowlist: bool,
    /// Rules about hosts, methods and paths.
    pub(crate) network: bool,
}

/// Compiles a policy.
///
/// # Errors
///
/// `Invalid` and `Unenforceable`, with the field.
pub(crate) fn compile(
    request: PolicyRequest,
    can: Enforceable,
) -> Result<PolicyRecord, CommandError> {
    let preset = network::preset(request.preset.as_deref())?;
    let network = network::compile(preset, &request.network, can)?;
    let process = request
        .process
        .map(|rules| process::compile(rules, can))
        .transpose()?;
    let exec = request
        .filesystem
        .map(|rules| filesystem::compile(rules, can))
        .transpose()?;
    Ok(PolicyRecord {
        preset: request.preset,
        offline: network.offline,
        allow_hosts: network.allow_hosts,
        http_rules: network.http_rules,
        network_unenforced: network.unenforced,
        process: process.flatten(),
        exec,
    })
}

fn invalid(field: &'static str, message: impl Into<String>) -> CommandError {
    CommandError::Invalid {
        field,
        message: message.into(),
    }
}

fn unenforceable(field: &'static str, message: impl Into<String>) -> CommandError {
    CommandError::Unenforceable {
        field,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::Expect;
    use expect_test::expect;

    use super::*;
    use crate::request::AskRequest;
    use crate::request::Enforcement;
    use crate::request::FilesystemRequest;
    use crate::request::HostRequest;
    use crate::request::NetworkRequest;
    use crate::request::ProcessRequest;

    const ALL: Enforceable = Enforceable {
        confinement: true,
        exec_allowlist: true,
        network: true,
    };

    fn check(can: Enforceable, request: PolicyRequest, expected: &Expect) {
        let text = match compile(request, can) {
            Ok(policy) => serde_json::to_string(&policy).unwrap(),
            Err(error) => format!("{}: {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    fn network(preset: Option<&str>, hosts: &[(&str, &[&str], &[&str])]) -> PolicyRequest {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let allow = hosts.iter().map(|(host, methods, paths)| HostRequest {
            host: (*host).to_owned(),
            methods: owned(methods),
            paths: owned(paths),
        });
        PolicyRequest {
            preset: preset.map(str::to_owned),
            network: NetworkRequest {
                denies: !hosts.is_empty(),
                allow: allow.collect(),
                enforcement: Enforcement::Strict,
            },
            ..PolicyRequest::default()
        }
    }

    fn process(change: impl FnOnce(&mut ProcessRequest)) -> PolicyRequest {
        let mut rules = ProcessRequest::default();
        change(&mut rules);
        PolicyRequest {
            process: Some(rules),
            ..PolicyRequest::default()
        }
    }

    #[test]
    fn hosts_are_merged_with_the_presets_and_rules_name_subdomains_and_all_other_hosts() {
        let request = network(
            None,
            &[
                ("Docs.Example", &[], &[]),
                ("github.com", &["GET", "head"], &["/org/*"]),
            ],
        );
        check(
            ALL,
            request,
            &expect![[
                r#"{"offline":false,"allow_hosts":["docs.example","github.com"],"http_rules":["allow GET github.com/org/*","allow GET *.github.com/org/*","allow HEAD github.com/org/*","allow HEAD *.github.com/org/*","allow * docs.example"]}"#
            ]],
        );
        let twice = network(Some("developer-safe"), &[("github.com", &[], &[])]);
        let hosts = compile(twice, ALL).unwrap().allow_hosts;
        assert_eq!(hosts.iter().filter(|host| *host == "github.com").count(), 1);
        assert_eq!(hosts.len(), 11);
    }

    #[test]
    fn a_policy_that_allows_nothing_is_offline() {
        let mut request = network(None, &[]);
        request.network.denies = true;
        check(ALL, request, &expect![[r#"{"offline":true}"#]]);
        check(
            Enforceable::default(),
            network(Some("offline"), &[]),
            &expect![[r#"{"preset":"offline","offline":true}"#]],
        );
        check(
            ALL,
            network(Some("offline"), &[("a.b", &[], &[])]),
            &expect!["invalid_field: policy.network.allow: the preset `offline` reaches nothing"],
        );
    }

    #[test]
    fn hosts_methods_and_paths_that_no_request_could_have_are_refused() {
        for host in [
            "",
            "https://a.b",
            "a.b:443",
            "a b",
            "*",
            "a.*.b",
            "a..b",
            "é.org",
            "-a.b",
        ] {
            let error = compile(network(None, &[(host, &[], &[])]), ALL).unwrap_err();
            assert_eq!(error.field(), Some("policy.network.allow.host"), "{host}");
        }
        for method in ["", "GE T", "GET,PUT"] {
            let error = compile(network(None, &[("a.b", &[method], &[])]), ALL).unwrap_err();
            assert_eq!(
                error.field(),
                Some("policy.network.allow.methods"),
                "{method}"
            );
        }
        for path in ["", "x", "/a/../b", "/a//b", "/a?b", "/%41", "/a\\b", "/a#b"] {
            let error = compile(network(None, &[("a.b", &[], &[path])]), ALL).unwrap_err();
            assert_eq!(error.field(), Some("policy.network.allow.paths"), "{path}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_or_recorded_as_such() {
        let none = Enforceable::default();
        check(
            none,
            network(Some("developer-safe"), &[]),
            &expect![
                "not_enforceable: policy.preset: the network edge that would enforce it does not exist in this version; leave it out or say `offline`"
            ],
        );
        check(
            none,
            network(None, &[("a.b", &[], &[])]),
            &expect![
                "not_enforceable: policy.network: the network edge that would enforce it does not exist in this version; leave it out or say `offline`"
            ],
        );
        let mut agreed = network(None, &[("a.b", &["GET"], &[])]);
        agreed.network.enforcement = Enforcement::BestEffort;
        check(
            none,
            agreed,
            &expect![[
                r#"{"offline":true,"allow_hosts":["a.b"],"network_unenforced":"there is no network edge: nothing beyond loopback can be reached"}"#
            ]],
        );
        let files = |enforcement| PolicyRequest {
            filesystem: Some(FilesystemRequest {
                read: vec!["/opt/data/**".into()],
                write: vec!["/data/out".into()],
                enforcement,
            }),
            ..PolicyRequest::default()
        };
        check(
            none,
            files(Enforcement::Strict),
            &expect![
                "not_enforceable: policy.filesystem: this host's kernel or engine does not confine what a sandbox runs"
            ],
        );
        check(
            none,
            files(Enforcement::BestEffort),
            &expect![[
                r#"{"offline":true,"exec":{"read":["/opt/data"],"write":["/data/out"],"best_effort":true}}"#
            ]],
        );
        check(
            ALL,
            files(Enforcement::Strict),
            &expect![[r#"{"offline":true,"exec":{"read":["/opt/data"],"write":["/data/out"]}}"#]],
        );
    }

    #[test]
    fn a_list_of_programs_is_made_of_the_first_words() {
        let enforced = |allow: &[&str]| {
            process(|rules| {
                rules.allow = allow.iter().map(ToString::to_string).collect();
                rules.enforce = true;
            })
        };
        check(
            ALL,
            enforced(&["git *", "/usr/bin/make", "git push*"]),
            &expect![[
                r#"{"offline":true,"process":{"allow":["git *","/usr/bin/make","git push*"],"strict":true,"programs":["git","/usr/bin/make"]}}"#
            ]],
        );
        check(
            ALL,
            enforced(&["g*t x"]),
            &expect![
                "invalid_field: policy.process.enforce: `g*t` is no program: a name or an absolute path, without `*`"
            ],
        );
        check(
            ALL,
            enforced(&["bin/x"]),
            &expect![
                "invalid_field: policy.process.enforce: `bin/x` is no program: a name or an absolute path, without `*`"
            ],
        );
        check(
            ALL,
            enforced(&[]),
            &expect![
                "invalid_field: policy.process.enforce: needs patterns in `allow` or `ask` that name the programs"
            ],
        );
        check(
            Enforceable::default(),
            enforced(&["git *"]),
            &expect![
                "not_enforceable: policy.process.enforce: this host's kernel or engine cannot hold a sandbox to a list of programs"
            ],
        );
    }

    #[test]
    fn patterns_and_approvers_have_limits() {
        let ask = |pattern: &str, approvers| {
            process(|rules| {
                rules.ask = vec![AskRequest {
                    pattern: pattern.into(),
                    approvers,
                }];
            })
        };
        check(
            ALL,
            ask("deploy *", 2),
            &expect![[
                r#"{"offline":true,"process":{"ask":[{"pattern":"deploy *","approvers":2}],"strict":true}}"#
            ]],
        );
        check(
            ALL,
            ask("deploy *", 0),
            &expect!["invalid_field: policy.process.ask.approvers: must be 1 to 5"],
        );
        for pattern in ["", "  ", "a\nb", &"x".repeat(600)] {
            let error = compile(ask(pattern, 1), ALL).unwrap_err();
            assert_eq!(error.field(), Some("policy.process.ask"), "{pattern:?}");
        }
        check(ALL, process(|_| {}), &expect![[r#"{"offline":true}"#]]);
    }
}
