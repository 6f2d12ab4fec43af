//! What a request for a session means, or which field does not hold.

use chrono::DateTime;
use chrono::TimeDelta;
use chrono::Utc;
use fluxvm_projections::BudgetRecord;
use fluxvm_projections::Capabilities;
use fluxvm_projections::RuntimeRecord;
use fluxvm_projections::SandboxId;
use fluxvm_projections::SessionCreateStarted;
use fluxvm_projections::WorkspaceMode;
use fluxvm_projections::WorkspaceRecord;

use crate::confinement;
use crate::confinement::Terms;
use crate::error::CommandError;
use crate::limits::AGENT_LABEL_BYTES_MAX;
use crate::limits::BUDGET_MEMORY_BYTES_MIN;
use crate::limits::CPUS_MAX;
use crate::limits::GUEST_NAME_BYTES_MAX;
use crate::limits::GUEST_PATH_BYTES_MAX;
use crate::limits::MEMORY_MB_MAX;
use crate::limits::MEMORY_MB_MIN;
use crate::limits::TTL_SECONDS_MAX;
use crate::policy;
use crate::policy::Enforceable;
use crate::request::CreateSession;
use crate::request::Enforcement;
use crate::request::RuntimeRequest;
use crate::request::WorkspaceRequest;

/// The workspace of a session that names none.
const WORKSPACE_PATH_DEFAULT: &str = "/workspace";

/// Folders that a workspace may not be or lie in: the guest's kernel and its agent own them.
const WORKSPACE_PATHS_REFUSED: &[&str] = &["/proc", "/sys", "/dev", "/.fluxvm"];

/// What a decision may know beside the request.
pub(super) struct Context {
    pub(super) now: DateTime<Utc>,
    pub(super) tenant: Option<String>,
    pub(super) sandbox_id: SandboxId,
    pub(super) backend: String,
    /// The engine can hold a sandbox to a share of the CPUs.
    pub(super) cpu_limit: bool,
    /// The engine can hold a sandbox to an amount of memory.
    pub(super) memory_limit: bool,
    /// What of a policy the engine can enforce.
    pub(super) can: Enforceable,
}

/// Compiles the request into what will be recorded. Pure.
pub(super) fn decide(
    request: CreateSession,
    context: Context,
) -> Result<SessionCreateStarted, CommandError> {
    check_agent(&request.agent)?;
    let budget = budget(request.budget)?;
    let files = request.policy.filesystem.as_ref();
    let agreed = files.is_some_and(|rules| rules.enforcement == Enforcement::BestEffort);
    let workspace = compile_workspace(request.workspace, context.can.confinement || agreed)?;
    let runtime = compile_runtime(request.runtime, &context)?;
    let policy = policy::compile(request.policy, context.can)?;
    let written = policy.exec.as_ref().map_or(&[][..], |files| &files.write);
    confinement::check_workspace(&workspace, written)?;
    let terms = Terms {
        workspace: &workspace,
        policy: &policy,
        budget: None,
        capabilities: &Capabilities::default(),
    };
    confinement::check_programs(&terms)?;
    let expires_at = expires_at(request.ttl_seconds, context.now)?;
    Ok(SessionCreateStarted {
        agent: request.agent,
        tenant: context.tenant,
        sandbox_id: context.sandbox_id,
        backend: context.backend,
        workspace,
        runtime,
        policy,
        record: request.record,
        expires_at,
        budget,
    })
}

/// A budget without a limit is none. What nothing counts yet is not promised.
fn budget(asked: Option<BudgetRecord>) -> Result<Option<BudgetRecord>, CommandError> {
    let Some(asked) = asked.filter(|asked| *asked != BudgetRecord::default()) else {
        return Ok(None);
    };
    if asked.max_workspace_bytes.is_some() {
        let message = "the size of a workspace is not measured by this version";
        return Err(unenforceable("budget.max_workspace_bytes", message));
    }
    if asked.max_processes == Some(0) {
        return Err(invalid("budget.max_processes", "must be at least 1"));
    }
    if asked
        .max_memory
        .is_some_and(|bytes| bytes < BUDGET_MEMORY_BYTES_MIN)
    {
        let message = format!("must be at least {BUDGET_MEMORY_BYTES_MIN} bytes");
        return Err(CommandError::Invalid {
            field: "budget.max_memory",
            message,
        });
    }
    Ok(Some(asked))
}

/// Why the workspace is not what was asked for, if it is not.
pub(super) fn workspace_note(asked: &SessionCreateStarted) -> Option<String> {
    let url = asked.workspace.git.as_ref()?;
    Some(format!(
        "{url} was not cloned: the sandbox has no network beyond loopback"
    ))
}

fn check_agent(agent: &str) -> Result<(), CommandError> {
    let starts_well = agent
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_label = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !starts_well || !agent.bytes().all(is_label) || agent.len() > AGENT_LABEL_BYTES_MAX {
        let message = format!(
            "must be 1 to {AGENT_LABEL_BYTES_MAX} of A-Z a-z 0-9 . _ - and start with a letter or digit"
        );
        return Err(CommandError::Invalid {
            field: "agent",
            message,
        });
    }
    Ok(())
}

/// `confined`: the kernel holds commands to what the mode says, or the caller agreed that it does not.
fn compile_workspace(
    request: WorkspaceRequest,
    confined: bool,
) -> Result<WorkspaceRecord, CommandError> {
    let path = request
        .path
        .unwrap_or_else(|| WORKSPACE_PATH_DEFAULT.to_owned());
    check_workspace_path(&path)?;
    let mode = match request.mode.as_deref() {
        None | Some("clone") => WorkspaceMode::Clone,
        Some("readonly") if confined => WorkspaceMode::Readonly,
        Some("readonly") => {
            let message = "this host's kernel or engine does not confine what a sandbox runs";
            return Err(unenforceable("workspace.mode", message));
        }
        Some("overlay") => {
            let message = "this mode is not provided by this version; leave it out or say `clone`";
            return Err(unenforceable("workspace.mode", message));
        }
        Some(_) => {
            return Err(invalid(
                "workspace.mode",
                "must be clone, readonly or overlay",
            ));
        }
    };
    if request.lower.is_some() {
        return Err(invalid(
            "workspace.lower",
            "goes with the mode `overlay` only",
        ));
    }
    if let Some(url) = &request.git {
        check_git_url(url)?;
    }
    Ok(WorkspaceRecord {
        path,
        mode,
        git: request.git,
    })
}

fn check_workspace_path(path: &str) -> Result<(), CommandError> {
    let field = "workspace.path";
    if !path.starts_with('/') {
        return Err(invalid(field, "must be absolute"));
    }
    if path.len() > GUEST_PATH_BYTES_MAX {
        let message = format!("must be at most {GUEST_PATH_BYTES_MAX} bytes");
        return Err(CommandError::Invalid { field, message });
    }
    if path
        .split('/')
        .any(|part| part.len() > GUEST_NAME_BYTES_MAX)
    {
        let message = format!("must hold no name of more than {GUEST_NAME_BYTES_MAX} bytes");
        return Err(CommandError::Invalid { field, message });
    }
    if path.chars().any(char::is_control) {
        return Err(invalid(field, "must not hold control characters"));
    }
    let mut parts = path.split('/').skip(1);
    if parts.any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(invalid(
            field,
            "must name a folder below / and hold no empty part, `.` or `..`",
        ));
    }
    let inside = |folder: &&str| {
        path.strip_prefix(*folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some(folder) = WORKSPACE_PATHS_REFUSED.iter().find(|folder| inside(folder)) {
        let message = format!("must not be in {folder}");
        return Err(CommandError::Invalid { field, message });
    }
    Ok(())
}

fn check_git_url(url: &str) -> Result<(), CommandError> {
    let field = "workspace.git";
    let Some(rest) = url.strip_prefix("https://") else {
        return Err(invalid(field, "must start with https://"));
    };
    if rest.is_empty() || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(invalid(field, "must be a URL without spaces"));
    }
    // What is in the ledger is read by others; a credential has no business there.
    if rest
        .split('/')
        .next()
        .is_some_and(|authority| authority.contains('@'))
    {
        return Err(invalid(field, "must not hold a user name or password"));
    }
    Ok(())
}

fn compile_runtime(
    request: RuntimeRequest,
    context: &Context,
) -> Result<RuntimeRecord, CommandError> {
    if request.host_gpu {
        return Err(unenforceable(
            "runtime.host_gpu",
            "this engine has no access to a GPU",
        ));
    }
    if request.volumes > 0 {
        return Err(unenforceable(
            "runtime.volumes",
            "this engine has no volumes",
        ));
    }
    if request
        .cpus
        .is_some_and(|cpus| cpus == 0 || cpus > CPUS_MAX)
    {
        let message = format!("must be 1 to {CPUS_MAX}");
        return Err(CommandError::Invalid {
            field: "runtime.cpus",
            message,
        });
    }
    let memory = MEMORY_MB_MIN..=MEMORY_MB_MAX;
    if request
        .memory_mb
        .is_some_and(|memory_mb| !memory.contains(&memory_mb))
    {
        let message = format!("must be {MEMORY_MB_MIN} to {MEMORY_MB_MAX}");
        return Err(CommandError::Invalid {
            field: "runtime.memory_mb",
            message,
        });
    }
    // A limit that nothing holds anyone to would be a promise that is not kept.
    if request.cpus.is_some() && !context.cpu_limit {
        return Err(unenforceable(
            "runtime.cpus",
            "this host gives the daemon no CPU control group",
        ));
    }
    if request.memory_mb.is_some() && !context.memory_limit {
        let message = "this host gives the daemon no memory control group";
        return Err(unenforceable("runtime.memory_mb", message));
    }
    Ok(RuntimeRecord {
        image: request.image,
        cpus: request.cpus,
        memory_mb: request.memory_mb,
    })
}

fn expires_at(
    ttl_seconds: Option<u64>,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>, CommandError> {
    let Some(seconds) = ttl_seconds else {
        return Ok(None);
    };
    let field = "ttl_seconds";
    if seconds == 0 || seconds > TTL_SECONDS_MAX {
        let message = format!("must be 1 to {TTL_SECONDS_MAX}");
        return Err(CommandError::Invalid { field, message });
    }
    let delta = i64::try_from(seconds).ok().and_then(TimeDelta::try_seconds);
    match delta.and_then(|delta| now.checked_add_signed(delta)) {
        Some(end) => Ok(Some(end)),
        None => Err(invalid(field, "ends after the calendar does")),
    }
}

fn invalid(field: &'static str, message: &str) -> CommandError {
    CommandError::Invalid {
        field,
        message: message.to_owned(),
    }
}

fn unenforceable(field: &'static str, message: &str) -> CommandError {
    CommandError::Unenforceable {
        field,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::Expect;
    use expect_test::expect;
    use uuid::Uuid;

    fn check(change: impl FnOnce(&mut CreateSession), expected: &Expect) {
        let mut request = CreateSession {
            agent: "codex".into(),
            ..CreateSession::default()
        };
        change(&mut request);
        let context = Context {
            now: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
            tenant: None,
            sandbox_id: SandboxId(Uuid::nil()),
            backend: "procbox".into(),
            cpu_limit: true,
            memory_limit: false,
            can: Enforceable::default(),
        };
        let text = match decide(request, context) {
            Ok(asked) => serde_json::to_string(&asked).unwrap(),
            Err(error) => format!("{}: {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_bare_request_gets_the_defaults_and_is_offline() {
        check(
            |_| {},
            &expect![[
                r#"{"agent":"codex","sandbox_id":"00000000-0000-0000-0000-000000000000","backend":"procbox","workspace":{"path":"/workspace","mode":"clone"},"runtime":{},"policy":{"offline":true},"record":"full"}"#
            ]],
        );
    }

    #[test]
    fn the_time_to_live_becomes_an_end() {
        check(
            |request| request.ttl_seconds = Some(60),
            &expect![[
                r#"{"agent":"codex","sandbox_id":"00000000-0000-0000-0000-000000000000","backend":"procbox","workspace":{"path":"/workspace","mode":"clone"},"runtime":{},"policy":{"offline":true},"record":"full","expires_at":"2027-01-15T08:01:00Z"}"#
            ]],
        );
    }

    #[test]
    fn times_to_live_out_of_range_are_refused_by_name() {
        let range = expect!["invalid_field: ttl_seconds: must be 1 to 315360000"];
        for seconds in [0, TTL_SECONDS_MAX + 1, u64::MAX] {
            check(|request| request.ttl_seconds = Some(seconds), &range);
        }
    }

    #[test]
    fn labels_that_could_be_paths_or_are_too_long_are_refused_by_name() {
        let rule = expect![
            "invalid_field: agent: must be 1 to 64 of A-Z a-z 0-9 . _ - and start with a letter or digit"
        ];
        for agent in [
            "",
            "../x",
            "a b",
            ".hidden",
            "naïve",
            "a\0b",
            &"x".repeat(300),
        ] {
            check(|request| request.agent = agent.to_owned(), &rule);
        }
    }

    #[test]
    fn workspaces_outside_what_a_guest_owns_are_refused_by_name() {
        let at = |path: &str, expected: &Expect| {
            check(
                |request| request.workspace.path = Some(path.to_owned()),
                expected,
            );
        };
        at(
            "x",
            &expect!["invalid_field: workspace.path: must be absolute"],
        );
        at(
            "/a/../b",
            &expect![
                "invalid_field: workspace.path: must name a folder below / and hold no empty part, `.` or `..`"
            ],
        );
        at(
            "/",
            &expect![
                "invalid_field: workspace.path: must name a folder below / and hold no empty part, `.` or `..`"
            ],
        );
        at(
            &format!("/{}", "x".repeat(300)),
            &expect!["invalid_field: workspace.path: must hold no name of more than 255 bytes"],
        );
        at(
            "/proc/1",
            &expect!["invalid_field: workspace.path: must not be in /proc"],
        );
        at(
            "/a\nb",
            &expect!["invalid_field: workspace.path: must not hold control characters"],
        );
    }

    #[test]
    fn what_this_version_cannot_enforce_is_refused_and_never_dropped() {
        check(
            |request| request.policy.preset = Some("developer-safe".into()),
            &expect![
                "not_enforceable: policy.preset: the network edge that would enforce it does not exist in this version; leave it out or say `offline`"
            ],
        );
        check(
            |request| request.workspace.mode = Some("readonly".into()),
            &expect![
                "not_enforceable: workspace.mode: this host's kernel or engine does not confine what a sandbox runs"
            ],
        );
        check(
            |request| request.runtime.memory_mb = Some(64),
            &expect![
                "not_enforceable: runtime.memory_mb: this host gives the daemon no memory control group"
            ],
        );
    }

    #[test]
    fn credentials_in_a_repository_url_never_reach_the_ledger() {
        check(
            |request| request.workspace.git = Some("https://me:secret@example.org/r".into()),
            &expect!["invalid_field: workspace.git: must not hold a user name or password"],
        );
    }
}
