//! Errors, each with its status, its code and its sentence.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_api_types::BodyError;
use fluxvm_api_types::ErrorBody;
use fluxvm_api_types::rfc3339;
use fluxvm_commands::CommandError;
use fluxvm_commands::FileFault;
use fluxvm_commands::GitFault;
use fluxvm_projections::Approval;
use fluxvm_vmm::CreateError;
use fluxvm_vmm::CreateFault;
use fluxvm_vmm::ReviveError;
use fluxvm_vmm::SnapshotError;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::JSON;
use super::typed;
use crate::approval_view;
use crate::auth::AuthRefusal;

/// An error as it goes out.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: Cow<'static, str>,
    message: String,
    field: Option<String>,
    headers: Vec<(header::HeaderName, Cow<'static, str>)>,
    more: Option<Box<Map<String, Value>>>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let code = Cow::Borrowed(code);
        Self {
            status,
            code,
            message: message.into(),
            field: None,
            headers: Vec::new(),
            more: None,
        }
    }

    fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    fn with(mut self, name: header::HeaderName, value: &'static str) -> Self {
        self.headers.push((name, Cow::Borrowed(value)));
        self
    }

    /// The stable code.
    #[cfg(test)]
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// No such route.
    pub(crate) fn route_not_found(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is nothing at {path}"),
        )
    }

    /// A route that takes other methods.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path takes other methods; `Allow` names them";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            message,
        )
    }

    /// No such session, in a path that names none.
    pub(crate) fn no_such_session(text: &str) -> Self {
        let message = format!("session {text} not found");
        Self::new(StatusCode::NOT_FOUND, "session_not_found", message)
    }

    /// No such job, in a path that names none.
    pub(crate) fn no_such_job(text: &str) -> Self {
        let message = format!("job {text} not found in this session");
        Self::new(StatusCode::NOT_FOUND, "job_not_found", message)
    }

    /// No such upload, in a path that names none.
    pub(crate) fn no_such_upload(text: &str) -> Self {
        let message = format!("upload {text} not found");
        Self::new(StatusCode::NOT_FOUND, "upload_not_found", message)
    }

    /// A request that a role does not allow.
    pub(crate) fn forbidden(message: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// A request that a session token is not for.
    pub(crate) fn out_of_scope(reason: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// An actor that asks too often.
    pub(crate) fn rate_limited(wait: Duration) -> Self {
        let seconds = wait.as_secs_f64().ceil().max(1.0);
        let message = format!("too many requests; ask again in {seconds} s");
        let mut limited = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message);
        let after = (header::RETRY_AFTER, Cow::Owned(seconds.to_string()));
        limited.headers.push(after);
        limited
    }

    /// A body over the limit.
    pub(crate) fn body_too_large(limit_bytes: usize) -> Self {
        let message = format!("the body is over the limit of {limit_bytes} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// A body that did not arrive in time.
    pub(crate) fn body_timeout() -> Self {
        let message = "the body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    }

    /// A body that broke off, or whose framing is wrong.
    pub(crate) fn body_broken(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// A body that says that it is bytes, where JSON is read.
    pub(crate) fn not_json() -> Self {
        let message = "this route reads JSON, and the body says that it is `application/octet-stream`; \
                       what a command reads is sent so to `exec` and to a job's `stdin`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "unsupported_media_type", message)
    }

    /// A query parameter that is not known.
    pub(crate) fn unknown_parameter(name: &str, known: &[&str]) -> Self {
        let known = if known.is_empty() {
            "this route takes none".to_owned()
        } else {
            format!("known here: {}", known.join(", "))
        };
        let message = format!("{name}: unknown query parameter; {known}");
        Self::new(StatusCode::BAD_REQUEST, "unknown_field", message).at(name)
    }

    /// A query parameter that is required.
    pub(crate) fn missing_parameter(name: &str) -> Self {
        let message = format!("{name}: this query parameter is required");
        Self::new(StatusCode::BAD_REQUEST, "missing_field", message).at(name)
    }

    /// A query parameter or header whose value does not hold.
    pub(crate) fn invalid_parameter(name: &str, message: &str) -> Self {
        let message = format!("{name}: {message}");
        Self::new(StatusCode::BAD_REQUEST, "invalid_field", message).at(name)
    }

    /// Too much of something that this server holds.
    pub(crate) fn too_many(what: &str, limit: usize) -> Self {
        let message = format!("{what}: {limit} at once is the limit; try again when one has ended");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", message).with(header::RETRY_AFTER, "1")
    }

    /// The daemon answers but has not taken up its sessions yet.
    pub(crate) fn starting() -> Self {
        let message = "the daemon is starting; it reads its ledger and takes up its sandboxes";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "starting", message)
            .with(header::RETRY_AFTER, "1")
    }

    /// The daemon is ending.
    pub(crate) fn stopping() -> Self {
        let message = "the daemon is stopping; what it was doing is recorded and goes on after the \
                       next start";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message)
            .with(header::RETRY_AFTER, "1")
    }

    /// The ledger failed, so that nothing can be done any more.
    pub(crate) fn ledger_failed(reason: &str) -> Self {
        let message = format!("the ledger failed and the daemon is ending: {reason}");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ledger_unavailable",
            message,
        )
    }

    /// A defect of the server. The details are in its log.
    pub(crate) fn internal() -> Self {
        let message = "internal error; the daemon's log has the details under this request's id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// An answer that cannot be stored for its idempotency key.
    pub(crate) fn answer_too_large(limit_bytes: usize) -> Self {
        let message = format!(
            "the answer is over the {limit_bytes} bytes that are kept for an Idempotency-Key"
        );
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The reason why a job has no exit code.
    pub(crate) fn job_end(code: String, message: String) -> Self {
        Self {
            code: Cow::Owned(code),
            ..Self::new(StatusCode::OK, "", message)
        }
    }

    /// The reason of a stream's end that is no failure of the server.
    pub(crate) fn stream_end(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, code, message)
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let wrong = Self::new(StatusCode::BAD_REQUEST, error.code(), error.to_string());
        match error.field() {
            Some(field) => wrong.at(field),
            None => wrong,
        }
    }
}

impl From<AuthRefusal> for ApiError {
    fn from(refusal: AuthRefusal) -> Self {
        let unauthorized = |message, challenge| {
            Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
                .with(header::WWW_AUTHENTICATE, challenge)
        };
        match refusal {
            AuthRefusal::Missing => unauthorized(
                "a token is required: `Authorization: Bearer <token>`",
                "Bearer realm=\"fluxvm\"",
            ),
            AuthRefusal::Malformed => unauthorized(
                "one bearer token is required: `Authorization: Bearer <token>`",
                "Bearer realm=\"fluxvm\", error=\"invalid_request\"",
            ),
            AuthRefusal::Unknown => unauthorized(
                "this token is not known",
                "Bearer realm=\"fluxvm\", error=\"invalid_token\"",
            ),
            AuthRefusal::Foreign => Self::forbidden(
                "open access is for this machine only: `Host`, and `Origin` where there is one, must \
                 name localhost or a loopback address",
            ),
        }
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        let status = status_of(&error);
        if status.is_server_error() {
            tracing::error!(code = error.code(), %error, "a command failed");
        }
        Self {
            status,
            code: Cow::Owned(error.code().to_owned()),
            message: error.to_string(),
            field: field_of(&error).map(ToOwned::to_owned),
            headers: match status {
                StatusCode::TOO_MANY_REQUESTS => vec![(header::RETRY_AFTER, Cow::Borrowed("1"))],
                _ => Vec::new(),
            },
            more: match &error {
                CommandError::ApprovalRequired(approval) => Some(Box::new(held(approval))),
                _ => None,
            },
        }
    }
}

/// What the holder of a request has to know of the approval that it waits for, and what would run.
fn held(approval: &Approval) -> Map<String, Value> {
    let request = &approval.request;
    let entries = [
        ("approval_id", json!(request.approval_id)),
        ("summary", json!(approval_view::summary(approval))),
        ("matched", json!(request.matched)),
        ("expires_at", json!(rfc3339(&request.expires_at))),
        ("approvers", json!(request.approvers)),
        ("runs", json!(request.runs)),
        ("unjudged", json!(request.unjudged)),
        ("cwd", json!(request.cwd)),
        ("env", json!(request.env)),
        ("policy_sha256", json!(request.policy_sha256)),
        ("revision", json!(request.revision)),
    ];
    entries
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
}

fn status_of(error: &CommandError) -> StatusCode {
    match error {
        CommandError::ApprovalRequired(_) => StatusCode::PRECONDITION_REQUIRED,
        CommandError::ApprovalNotFound(_) | CommandError::TokenNotFound(_) => StatusCode::NOT_FOUND,
        CommandError::ApprovalDecided { .. } | CommandError::TooManyTokens { .. } => {
            StatusCode::CONFLICT
        }
        CommandError::Invalid { .. } | CommandError::Unenforceable { .. } => {
            StatusCode::BAD_REQUEST
        }
        CommandError::Refused { .. } => StatusCode::FORBIDDEN,
        CommandError::NotFound(_)
        | CommandError::JobNotFound(_)
        | CommandError::EventNotFound(_)
        | CommandError::HoldNotFound(_)
        | CommandError::TagNotFound { .. }
        | CommandError::CheckpointNotFound(_) => StatusCode::NOT_FOUND,
        CommandError::UnderHold { .. } | CommandError::NotEnded { .. } => StatusCode::CONFLICT,
        CommandError::NotRedactable { .. } | CommandError::NotSealed(_) => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        CommandError::AnswerErased => StatusCode::GONE,
        CommandError::NotRunning { .. }
        | CommandError::JobEnded(_)
        | CommandError::StdinClosed { .. }
        | CommandError::Busy { .. }
        | CommandError::CommandsRunning { .. }
        | CommandError::TagTaken(_)
        | CommandError::Full { .. }
        | CommandError::CannotFork(_)
        | CommandError::MemoryImpossible(_)
        | CommandError::RingFull { .. }
        | CommandError::NoSuchStep { .. }
        | CommandError::TooLarge { .. }
        | CommandError::NoBaseline(_)
        | CommandError::PlanChanged { .. }
        | CommandError::Conflicts { .. }
        | CommandError::EndsAgree(_)
        | CommandError::IdempotencyRunning => StatusCode::CONFLICT,
        CommandError::InsufficientStorage { .. } => StatusCode::INSUFFICIENT_STORAGE,
        CommandError::TooMany { .. } => StatusCode::TOO_MANY_REQUESTS,
        CommandError::RevisionDiffers { .. } => StatusCode::PRECONDITION_FAILED,
        CommandError::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        CommandError::CreateFailed(error) => status_of_create(error),
        CommandError::NotSupported { .. } => StatusCode::NOT_IMPLEMENTED,
        CommandError::Snapshot(error) => status_of_snapshot(error),
        CommandError::Revive(error) => status_of_revive(error),
        CommandError::SnapshotLate { .. } => StatusCode::SERVICE_UNAVAILABLE,
        CommandError::WorkspaceNotReady(_) | CommandError::NotApplied { .. } => {
            StatusCode::BAD_GATEWAY
        }
        CommandError::ExecFailed { code, .. } => match code.as_str() {
            // The command itself cannot be started: its own fault, not the guest's.
            "spawn_failed" => StatusCode::BAD_REQUEST,
            "sandbox_gone" | "confinement_refused" => StatusCode::CONFLICT,
            "content_unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        },
        CommandError::File { fault, .. } => status_of_file(*fault),
        CommandError::Git { fault, .. } => match fault {
            GitFault::NoRepository => StatusCode::NOT_FOUND,
            GitFault::Interrupted => StatusCode::BAD_GATEWAY,
            _ => StatusCode::CONFLICT,
        },
        CommandError::UploadNotFound(_) => StatusCode::NOT_FOUND,
        CommandError::UploadDone(_)
        | CommandError::UploadOffset { .. }
        | CommandError::UploadIncomplete { .. } => StatusCode::CONFLICT,
        CommandError::Spool(_) => StatusCode::INSUFFICIENT_STORAGE,
        CommandError::Guest { code, .. } => match *code {
            "sandbox_gone" => StatusCode::CONFLICT,
            _ => StatusCode::BAD_GATEWAY,
        },
        CommandError::Ledger(_)
        | CommandError::Sign(_)
        | CommandError::Blob(_)
        | CommandError::JobOutput { .. }
        | CommandError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        CommandError::RemoveFailed(_) | CommandError::Read(_) | CommandError::Internal(_) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

/// What the path is decides; only a file system that fails is nobody's doing.
fn status_of_file(fault: FileFault) -> StatusCode {
    match fault {
        FileFault::Absent => StatusCode::NOT_FOUND,
        FileFault::Malformed
        | FileFault::NotAFile
        | FileFault::NotAFolder
        | FileFault::Symlink
        | FileFault::MagicLink => StatusCode::BAD_REQUEST,
        FileFault::NotEmpty | FileFault::SizeMismatch | FileFault::ChecksumMismatch => {
            StatusCode::CONFLICT
        }
        FileFault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        FileFault::Denied => StatusCode::FORBIDDEN,
        FileFault::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
        FileFault::Failed => StatusCode::BAD_GATEWAY,
    }
}

/// What the caller named is the caller's fault; whatever the machine cannot do is the machine's.
fn status_of_create(error: &CreateError) -> StatusCode {
    match error.source {
        CreateFault::Spec(_) | CreateFault::ImageMissing { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// What is wrong with one snapshot is a conflict: the session goes on without it.
fn status_of_snapshot(error: &SnapshotError) -> StatusCode {
    match error {
        SnapshotError::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
        SnapshotError::Missing(_)
        | SnapshotError::Damaged { .. }
        | SnapshotError::Memory(_)
        | SnapshotError::SandboxGone => StatusCode::CONFLICT,
        SnapshotError::NoSuchPath { .. } => StatusCode::NOT_FOUND,
        SnapshotError::AlreadyExists(_)
        | SnapshotError::TooMany { .. }
        | SnapshotError::Os { .. } => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn status_of_revive(error: &ReviveError) -> StatusCode {
    match error {
        ReviveError::Snapshot(error) => status_of_snapshot(error),
        ReviveError::Create(error) => status_of_create(error),
        ReviveError::Memory { .. } | ReviveError::Identity(_) => StatusCode::CONFLICT,
    }
}

/// The request field that is at fault. An engine knows what it was told, not what the caller's field is.
fn field_of(error: &CommandError) -> Option<&'static str> {
    match error {
        CommandError::CreateFailed(CreateError {
            source: CreateFault::ImageMissing { .. },
            ..
        }) => Some("runtime.image"),
        other => other.field(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = typed(self.status, JSON, self.body().into());
        let headers = self.headers.into_iter();
        let valid =
            headers.filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)));
        for (name, value) in valid {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl ApiError {
    /// `{"error", "code", "field"?}`.
    pub(crate) fn body(&self) -> Bytes {
        let body = ErrorBody {
            error: &self.message,
            code: &self.code,
            field: self.field.as_deref(),
            more: self.more.as_deref(),
        };
        // Three strings always serialise; a code is the least that a client must get.
        serde_json::to_vec(&body)
            .unwrap_or_else(|_| b"{\"code\":\"internal\"}".to_vec())
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code that an error body or the end of a stream can have.
    const CODES: &[&str] = &[
        "answer_erased",
        "approval_decided",
        "approval_not_found",
        "approval_refused",
        "approval_required",
        "body_timeout",
        "body_too_large",
        "branch_exists",
        "budget_exceeded",
        "cannot_fork",
        "checkpoint_not_found",
        "checksum_mismatch",
        "commands_running",
        "confinement_refused",
        "conflicts",
        "content_unavailable",
        "ends_agree",
        "event_not_found",
        "file_denied",
        "file_not_found",
        "file_too_large",
        "folder_not_empty",
        "forbidden",
        "git_failed",
        "git_missing",
        "guest_disk_full",
        "guest_file_failed",
        "guest_unreachable",
        "hold_not_found",
        "idempotency_key_reused",
        "idempotency_key_running",
        "identity_not_renewed",
        "insufficient_storage",
        "internal",
        "interrupted",
        "invalid_body",
        "invalid_field",
        "invalid_path",
        "job_ended",
        "job_not_found",
        "ledger_unavailable",
        "ledger_unreadable",
        "memory_checkpoint_impossible",
        "memory_restore_failed",
        "method_not_allowed",
        "missing_field",
        "no_baseline",
        "no_such_step",
        "not_a_file",
        "not_a_folder",
        "not_applied",
        "not_enforceable",
        "not_found",
        "not_redactable",
        "not_supported",
        "nothing_to_commit",
        "operation_in_flight",
        "path_leads_outside",
        "plan_changed",
        "policy_refused",
        "rate_limited",
        "repository_not_found",
        "revision_differs",
        "rewind_ring_full",
        "sandbox_create_failed",
        "sandbox_gone",
        "sandbox_remove_failed",
        "session_deleted",
        "session_expired",
        "session_failed",
        "session_full",
        "session_gone",
        "session_not_ended",
        "session_not_found",
        "session_not_running",
        "session_not_sealed",
        "size_mismatch",
        "snapshot_damaged",
        "snapshot_failed",
        "spawn_failed",
        "starting",
        "stdin_closed",
        "stopping",
        "stream_time_limit",
        "symlink_in_the_way",
        "tag_not_found",
        "tag_taken",
        "token_not_found",
        "too_large",
        "too_many",
        "too_many_tokens",
        "unauthorized",
        "under_hold",
        "unknown_field",
        "unsupported_media_type",
        "upload_done",
        "upload_incomplete",
        "upload_not_found",
        "upload_not_stored",
        "upload_offset",
        "workspace_not_ready",
    ];

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let mut pages: Vec<String> = std::fs::read_dir(&folder)
            .expect("docs/errors")
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter_map(|name| name.strip_suffix(".md").map(ToOwned::to_owned))
            .filter(|name| name != "README")
            .collect();
        pages.sort();
        assert_eq!(pages, CODES);
        for code in CODES {
            let page = std::fs::read_to_string(folder.join(format!("{code}.md"))).expect("page");
            assert!(page.starts_with(&format!("# `{code}`\n")), "{code}");
        }
    }

    #[test]
    fn a_command_that_cannot_start_is_the_callers_fault_and_a_lost_sandbox_is_not() {
        let failed = |code: &str| {
            let error = CommandError::ExecFailed {
                code: code.into(),
                reason: String::new(),
            };
            status_of(&error).as_u16()
        };
        assert_eq!(failed("spawn_failed"), 400);
        assert_eq!(failed("sandbox_gone"), 409);
        assert_eq!(failed("guest_unreachable"), 502);
        assert_eq!(failed("interrupted"), 502);
    }

    #[test]
    fn an_error_body_has_the_sentence_the_code_and_the_field() {
        let error = ApiError::invalid_parameter("since", "must be a time");
        let body = String::from_utf8(error.body().to_vec()).expect("text");
        assert_eq!(
            body,
            r#"{"error":"since: must be a time","code":"invalid_field","field":"since"}"#
        );
    }
}
