//! `GET /v1/schema`: the protocol as this daemon serves it, written from the table that routes
//! requests, and from the limits that are in force.

use agentd_protocol::PROTOCOL_VERSION;
use agentd_protocol::VERSION_HEADER;
use agentd_protocol::event_names;
use agentd_protocol::limits;
use agentd_protocol::paths;
use hyper::StatusCode;
use serde_json::Value;
use serde_json::json;

use super::VERSION;
use super::all::ROUTES;
use super::table::Action;
use super::table::Audience;
use super::table::Content;
use super::table::Route;
use super::table::Status;
use crate::app::App;
use crate::respond;
use crate::respond::Answer;
use crate::settings::Settings;

/// The shapes of bodies, queries and events.
const DEFINITIONS: &str = include_str!("definitions.json");

/// What every bearer route answers with before it looks at the request.
const BEARER_STATUSES: [Status; 2] = [
    Status {
        code: 401,
        error: None,
        meaning: "the token is missing or another one",
    },
    Status {
        code: 503,
        error: None,
        meaning: "no launch has installed a token yet",
    },
];

pub(super) fn answer(app: &App) -> Answer {
    match document(&app.settings) {
        Ok(document) => respond::json(StatusCode::OK, &document),
        Err(error) => {
            tracing::error!(%error, "the schema's definitions cannot be read");
            respond::empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

fn document(settings: &Settings) -> serde_json::Result<Value> {
    let definitions: Value = serde_json::from_str(DEFINITIONS)?;
    Ok(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "microvms-agentd wire protocol",
        "daemon_version": VERSION,
        "protocol_version": PROTOCOL_VERSION,
        "version_header": VERSION_HEADER,
        "hook_prefix": paths::HOOKS_PREFIX.trim_end_matches('/'),
        "generated_from": "the table that routes requests",
        "auth": {
            "scheme": "bearer",
            "header": "authorization",
            "before_bootstrap": 503,
            "refused": 401,
        },
        "unmatched_path": { "code": 404, "error": null },
        "limits": limits_in_force(settings),
        "routes": ROUTES.iter().map(route).collect::<Vec<_>>(),
        "$defs": definitions,
        "definition_collisions": [],
    }))
}

fn limits_in_force(settings: &Settings) -> Value {
    json!({
        "max_body_bytes": settings.body_bytes_max,
        "max_drain_bytes": limits::DRAIN_BYTES_MAX,
        "drain_timeout_secs": limits::DRAIN_DEADLINE.as_secs_f64(),
        "max_connections": limits::CONNECTIONS_MAX,
        "header_timeout_secs": limits::HEADER_DEADLINE.as_secs_f64(),
        "max_hook_envelope_bytes": limits::HOOK_ENVELOPE_BYTES_MAX,
        "hook_envelope_timeout_secs": limits::HOOK_ENVELOPE_DEADLINE.as_secs_f64(),
        "hook_handler_timeout_secs": settings.hook_handler_timeout.as_secs_f64(),
        "max_hook_log_entries": limits::HOOK_LOG_ENTRIES_MAX,
        "max_output_bytes": settings.output_bytes_max,
        "stream_replay_bytes": settings.stream_buffer_bytes,
        "sse_keepalive_secs": settings.sse_keepalive.as_secs_f64(),
        "output_linger_secs": settings.output_linger.as_secs_f64(),
        "kill_grace_secs": settings.kill_grace.as_secs_f64(),
        "exec_ttl_secs": settings.exec_ttl.as_secs_f64(),
        "max_stdin_write_bytes": settings.stdin_write_bytes_max,
        "stdin_write_timeout_secs": limits::STDIN_WRITE_DEADLINE.as_secs_f64(),
        "max_tar_members": limits::TAR_MEMBERS_MAX,
        "max_tar_bytes": limits::TAR_BYTES_MAX,
        "disk_reserve_bytes": settings.disk_reserve_bytes,
        "tunnel_ready_timeout_secs": agentd_protocol::tunnel::READY_DEADLINE.as_secs_f64(),
        "tunnel_dial_timeout_secs": agentd_protocol::tunnel::DIAL_DEADLINE.as_secs_f64(),
    })
}

fn route(route: &Route) -> Value {
    let auth = match route.audience {
        Audience::Bearer => "bearer",
        Audience::Open => "none",
        Audience::Platform => "none (platform hook)",
    };
    let mut described = json!({
        "method": route.verb.as_str(),
        "path": route.path,
        "auth": auth,
        "summary": route.summary,
        "request": content(route.request),
        "response": content(route.response),
        "statuses": statuses(route),
    });
    if let Some(fields) = described.as_object_mut() {
        if let Some(query) = route.query {
            fields.insert("query".into(), reference(query));
        }
        if matches!(route.response, Content::Media("text/event-stream")) {
            fields.insert("sse_events".into(), events());
        }
        if route.action == Action::Tunnel {
            fields.insert(
                "close_codes".into(),
                json!([1000, 4400, 4401, 4403, 4500, 4502]),
            );
        }
    }
    described
}

fn statuses(route: &Route) -> Vec<Value> {
    let common: &[Status] = match route.audience {
        Audience::Bearer => &BEARER_STATUSES,
        Audience::Open | Audience::Platform => &[],
    };
    let all = route.statuses.iter().chain(common);
    all.map(
        |status| json!({ "code": status.code, "error": status.error, "meaning": status.meaning }),
    )
    .collect()
}

fn events() -> Value {
    json!([
        { "event": event_names::OUTPUT, "data": reference("OutputEvent") },
        { "event": event_names::GAP, "data": reference("GapEvent") },
        { "event": event_names::EXIT, "data": reference("ExitEvent") },
    ])
}

fn content(content: Content) -> Value {
    match content {
        Content::Nothing => Value::Null,
        Content::Json(name) => reference(name),
        Content::Media(kind) => json!({ "media_type": kind }),
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use agentd_protocol as wire;
    use serde::Serialize;

    use super::*;

    fn definitions() -> Value {
        serde_json::from_str(DEFINITIONS).unwrap()
    }

    fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let (true, Some(text)) = (name == "$ref", value.as_str()) {
                        found.insert(text.replace("#/$defs/", ""));
                    }
                    collect_references(value, found);
                }
            }
            Value::Array(values) => values
                .iter()
                .for_each(|value| collect_references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_definition_is_there_and_is_used() {
        let document = document(&Settings::default()).unwrap();
        let mut used = BTreeSet::new();
        collect_references(&document, &mut used);
        let there: BTreeSet<String> = definitions().as_object().unwrap().keys().cloned().collect();
        assert_eq!(used, there);
        assert_eq!(document["routes"].as_array().unwrap().len(), ROUTES.len());
    }

    /// The definition's fields are those that the type writes when all are there.
    fn check(name: &str, value: &impl Serialize) {
        let value = serde_json::to_value(value).unwrap();
        let written: BTreeSet<String> = value.as_object().unwrap().keys().cloned().collect();
        let defined = &definitions()[name]["properties"];
        let defined: BTreeSet<String> = defined.as_object().unwrap().keys().cloned().collect();
        assert_eq!(defined, written, "{name}");
    }

    fn whole_policy() -> wire::ExecPolicy {
        wire::ExecPolicy {
            read: Some(vec![]),
            write: Some(vec![]),
            execute: Some(vec![]),
            tcp_connect: wire::PortPolicy::Deny,
            tcp_bind: wire::PortPolicy::Deny,
            seccomp: Some(wire::SeccompPolicy::Errno),
            allow_namespaces: true,
            allow_udp: true,
            max_memory: Some(1),
            max_processes: Some(1),
            cpu_seconds: Some(1),
            timeout_secs: Some(1),
            clean_env: true,
            env: vec![(String::new(), String::new())],
            cwd: Some(String::new()),
            best_effort: true,
            max_output_bytes: Some(1),
            run_as: Some(wire::RunAs { uid: 1, gid: 1 }),
            ..wire::ExecPolicy::default()
        }
    }

    #[test]
    fn definitions_are_the_types_that_are_sent() {
        let id = wire::ExecId::new("e").unwrap();
        let mut start = wire::StartRequest::new(id.clone(), ["true"]);
        start.shell = wire::ShellChoice::Flag(true);
        start.cwd = Some("/".into());
        start.env.insert("A".into(), "b".into());
        start.user = Some(wire::PrincipalRef::Id(0));
        start.group = start.user.clone();
        start.timeout_sec = Some(1.0);
        (start.stdin, start.reap_group_on_exit) = (true, true);
        (start.poweroff_on_exit, start.inherit_image_env) = (true, true);
        start.x = Some(wire::StartExtension {
            kill_grace_ms: Some(1),
            output_linger_ms: Some(1),
            scope: Some(wire::KillScope::Tree),
            confine: Some(Box::new(whole_policy())),
            terminal: Some(wire::TerminalSize { cols: 1, rows: 1 }),
            hold_bytes: Some(1),
        });
        let x = start.x.as_ref().unwrap();
        check("ExecPolicy", &x.confine);
        check("TerminalSize", &x.terminal);
        check("RunAs", &x.confine.as_ref().unwrap().run_as);
        check("StartRequest", &start);
        check("StartExtension", &start.x);
        let outcome = wire::Outcome {
            exit_code: None,
            signal: None,
            stdout: String::new(),
            stderr: String::new(),
            truncated: false,
            writers_may_be_alive: false,
            timed_out: false,
        };
        let state = wire::ExecState {
            exec_id: id.clone(),
            phase: wire::Phase::Exited,
            outcome: Some(outcome),
        };
        check("ExecState", &state);
        let exit = wire::ExitEvent {
            exit_code: None,
            signal: None,
            truncated: false,
            writers_may_be_alive: false,
            offset: 0,
            timed_out: false,
            x: Some(wire::ExitExtension {
                ended_unix_ms: Some(0),
                enforcement: Some(Box::default()),
                ..Default::default()
            }),
        };
        check("Enforcement", &wire::Enforcement::default());
        let started = wire::StartedState {
            exec_id: id.clone(),
            phase: wire::Phase::Running,
            x: Some(wire::StartedExtension {
                enforcement: Some(Box::default()),
            }),
        };
        check("StartedState", &started);
        check("StartedExtension", &started.x);
        let resized = wire::ResizeState {
            exec_id: id.clone(),
            cols: 1,
            rows: 1,
        };
        check("ResizeState", &resized);
        check("ExitEvent", &exit);
        check("ExitExtension", &exit.x);
        check("GapEvent", &wire::GapEvent { from: 0, to: 1 });
        check("Procs", &wire::Procs::default());
        let discovery = wire::Discovery {
            x: Some(wire::DiscoveryExtension::default()),
            ..Default::default()
        };
        check("Discovery", &discovery);
        check("DiscoveryExtension", &discovery.x);
        let mut identity = wire::IdentityRequest::new(1, wire::AgentToken::new("t"), "");
        identity.env = Some(Default::default());
        identity.identity = Some(wire::IdentityPair {
            seed: String::new(),
            host_public_key: String::new(),
        });
        check("IdentityPair", &identity.identity);
        (identity.machine_id, identity.hostname) = (Some(String::new()), Some(String::new()));
        (identity.boot_id, identity.unix_ms) = (Some(String::new()), Some(0));
        check("IdentityRequest", &identity);
        check("IdentityState", &wire::IdentityState::default());
        check("QuiesceState", &wire::QuiesceState::default());
        check("QuiesceRequest", &wire::QuiesceRequest { hold_ms: Some(1) });
        let health = wire::Health::default();
        check("Health", &health);
        let handler = wire::HandlerOutcome {
            error: Some(String::new()),
            ..Default::default()
        };
        check("HandlerOutcome", &handler);
        let record = wire::HookRecord {
            hook: "run".into(),
            fired_at: 0,
            handler: Some(handler),
        };
        check("HookRecord", &record);
        let stdin = wire::StdinRequest {
            data_b64: Some(String::new()),
            signal: Some(String::new()),
            x: Some(wire::StdinExtension { offset: Some(0) }),
        };
        check("StdinRequest", &stdin);
        check("StdinExtension", &stdin.x);
        let taken = wire::StdinState {
            exec_id: id.clone(),
            written: 0,
            eof: false,
            x: Some(wire::StdinStateExtension::default()),
        };
        check("StdinState", &taken);
        check("StdinStateExtension", &taken.x);
    }
}
