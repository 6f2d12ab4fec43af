//! Approvals as answers show them.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_api_types::ApprovalView;
use fluxvm_api_types::DecisionView;
use fluxvm_api_types::rfc3339;
use fluxvm_projections::Approval;
use fluxvm_projections::Decision;

/// An approval, with its status at this time.
pub(crate) fn view(approval: &Approval, now: DateTime<Utc>) -> ApprovalView {
    let request = &approval.request;
    let last = approval.denied.as_ref().or(approval.approved.last());
    ApprovalView {
        id: request.approval_id.0,
        kind: request.kind.clone(),
        summary: summary(approval),
        matched: request.matched.clone(),
        status: approval.status(now).name(),
        command: request.command.clone(),
        runs: request.runs.clone(),
        unjudged: request.unjudged.clone(),
        cwd: request.cwd.clone(),
        env: request.env.clone(),
        policy_sha256: request.policy_sha256.clone(),
        revision: request.revision,
        digest: request.digest.clone(),
        approvers: request.approvers,
        approved_by: approval.approved.iter().map(decision).collect(),
        decided_by: last.map(|decision| decision.by.clone()),
        note: last.and_then(|decision| decision.note.clone()),
        requested_at: rfc3339(&approval.requested_at),
        expires_at: rfc3339(&request.expires_at),
    }
}

/// One line that says what would run.
pub(crate) fn summary(approval: &Approval) -> String {
    format!("{}: {}", approval.request.kind, approval.request.command)
}

fn decision(decision: &Decision) -> DecisionView {
    DecisionView {
        by: decision.by.clone(),
        note: decision.note.clone(),
        at: rfc3339(&decision.at),
    }
}
