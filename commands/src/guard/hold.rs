//! Commands that people decide on: asked for once, bound to what they decide on, used once. Pure.

use chrono::TimeDelta;
use fluxvm_projections::Approval;
use fluxvm_projections::ApprovalConsumed;
use fluxvm_projections::ApprovalId;
use fluxvm_projections::ApprovalRefused;
use fluxvm_projections::ApprovalRequested;
use fluxvm_projections::ApprovalStatus;
use fluxvm_projections::Event;
use fluxvm_projections::Session;
use serde_json::json;
use sha2::Digest;
use sha2::Sha256;

use super::Asked;
use super::State;
use crate::book::Decided;
use crate::book::Entry;
use crate::error::CommandError;
use crate::limits::APPROVAL_SECONDS;
use crate::limits::APPROVALS_OPEN_MAX;
use crate::policy::Judgement;

/// What a command that needs an approval comes to.
pub(super) enum Hold {
    /// It is approved: this goes into the ledger together with its intent.
    Open(Box<Entry>),
    /// It does not run.
    Closed(Decided),
}

/// What one pattern wants of a command.
pub(super) struct Wanted<'a> {
    pub(super) matched: &'a str,
    pub(super) approvers: u32,
    pub(super) judgement: &'a Judgement,
    /// The id of a request, if one has to be made.
    pub(super) fresh: ApprovalId,
}

/// Decides on a command that needs an approval.
pub(super) fn hold(state: &State<'_>, asked: &Asked, wanted: &Wanted<'_>) -> Hold {
    let digest = digest(state.session, asked);
    if let Some(named) = &asked.approval {
        return with_approval(state, asked, named, &digest);
    }
    let is_open = |approval: &&Approval| {
        let status = approval.status(state.now);
        matches!(status, ApprovalStatus::Pending | ApprovalStatus::Approved)
    };
    let mut open = state.approvals.iter().filter(is_open);
    // Asking again is the same request.
    if let Some(same) = open.clone().find(|it| it.request.digest == digest) {
        return closed(Vec::new(), required(same.clone()));
    }
    if open.by_ref().count() >= APPROVALS_OPEN_MAX {
        let error = CommandError::TooMany {
            what: "open approval requests of one session",
            limit: APPROVALS_OPEN_MAX,
        };
        return closed(Vec::new(), error);
    }
    let request = request(state, asked, wanted, digest);
    let approval = Approval {
        request: request.clone(),
        requested_at: state.now,
        approved: Vec::new(),
        denied: None,
        consumed: false,
    };
    let entry = Entry::new(Event::ApprovalRequested(request));
    closed(vec![entry], required(approval))
}

/// A command that comes with an approval.
fn with_approval(state: &State<'_>, asked: &Asked, named: &str, digest: &str) -> Hold {
    let found = state
        .approvals
        .iter()
        .find(|approval| approval.request.approval_id.to_string() == named);
    let refuse = |reason: &str| {
        let refused = Event::ApprovalRefused(ApprovalRefused {
            approval_id: named.chars().take(64).collect(),
            command: asked.command.clone(),
            reason: reason.to_owned(),
        });
        let error = CommandError::Refused {
            code: "approval_refused",
            reason: format!("approval {named}: {reason}"),
        };
        closed(vec![Entry::new(refused)], error)
    };
    let Some(approval) = found else {
        return refuse("there is none in this session");
    };
    if approval.request.digest != digest {
        return refuse(
            "it is for another command, other parameters, another policy or another revision of the \
             session",
        );
    }
    match approval.status(state.now) {
        ApprovalStatus::Pending => closed(Vec::new(), required(approval.clone())),
        ApprovalStatus::Approved => {
            let by = approval.approved.iter().map(|decision| decision.by.clone());
            Hold::Open(Box::new(Entry::new(Event::ApprovalConsumed(
                ApprovalConsumed {
                    approval_id: approval.request.approval_id,
                    approved_by: by.collect(),
                },
            ))))
        }
        ApprovalStatus::Denied => refuse("it was denied"),
        ApprovalStatus::Consumed => refuse("it was used before"),
        ApprovalStatus::Expired => refuse("its time ran out"),
    }
}

fn request(
    state: &State<'_>,
    asked: &Asked,
    wanted: &Wanted<'_>,
    digest: String,
) -> ApprovalRequested {
    let session = state.session;
    let end = state.now + TimeDelta::seconds(APPROVAL_SECONDS);
    ApprovalRequested {
        approval_id: wanted.fresh,
        kind: asked.kind.name().to_owned(),
        command: asked.command.clone(),
        runs: wanted.judgement.runs.clone(),
        unjudged: wanted.judgement.unjudged.clone(),
        matched: wanted.matched.to_owned(),
        approvers: wanted.approvers,
        digest,
        cwd: session.workspace.path.clone(),
        env: Vec::new(),
        policy_sha256: policy_sha256(session),
        revision: session.revision,
        expires_at: session.expires_at.map_or(end, |session| session.min(end)),
    }
}

/// What an approval is for: nothing of it may change between the decision and the run.
fn digest(session: &Session, asked: &Asked) -> String {
    let bound = json!({
        "session": session.id,
        "kind": asked.kind.name(),
        "command": asked.command,
        "timeout_ms": asked.timeout_ms,
        "parameters": asked.parameters,
        "policy": policy_sha256(session),
        "revision": session.revision,
    });
    hex::encode(Sha256::digest(bound.to_string()))
}

fn policy_sha256(session: &Session) -> String {
    // Strings, numbers and lists of them: nothing in a policy can fail to serialise.
    let policy = serde_json::to_vec(&session.policy).unwrap_or_default();
    hex::encode(Sha256::digest(policy))
}

fn required(approval: Approval) -> CommandError {
    CommandError::ApprovalRequired(Box::new(approval))
}

fn closed(entries: Vec<Entry>, error: CommandError) -> Hold {
    Hold::Closed(Decided {
        entries,
        refused: Some(error),
    })
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use chrono::Utc;
    use fluxvm_projections::Decision;
    use uuid::Uuid;

    use super::*;
    use crate::guard::CommandKind;
    use crate::policy::Verdict;
    use crate::testing::now;
    use crate::testing::session;

    fn asked(command: &str, approval: Option<&str>) -> Asked {
        Asked {
            kind: CommandKind::Exec,
            command: command.to_owned(),
            timeout_ms: Some(1),
            parameters: Vec::new(),
            approval: approval.map(str::to_owned),
        }
    }

    fn decide(
        session: &Session,
        approvals: &[Approval],
        asked: &Asked,
        now: DateTime<Utc>,
    ) -> (Vec<&'static str>, String) {
        let judgement = Judgement {
            verdict: Verdict::Run,
            unjudged: Vec::new(),
            runs: vec![asked.command.clone()],
        };
        let wanted = Wanted {
            matched: "deploy *",
            approvers: 2,
            judgement: &judgement,
            fresh: ApprovalId(Uuid::from_u128(7)),
        };
        let state = State {
            session,
            family: None,
            approvals,
            now,
        };
        let kinds = |entries: &[Entry]| {
            let kinds = entries.iter().filter_map(|entry| entry.event.kind());
            kinds.collect::<Vec<_>>()
        };
        match hold(&state, asked, &wanted) {
            Hold::Open(entry) => (kinds(&[*entry]), "runs".to_owned()),
            Hold::Closed(decided) => {
                let error = decided.refused.expect("an error");
                (kinds(&decided.entries), error.to_string())
            }
        }
    }

    /// An approval of this command by these people.
    fn approval(session: &Session, command: &str, by: &[&str]) -> Approval {
        let asked = asked(command, None);
        let end = now() + TimeDelta::seconds(APPROVAL_SECONDS);
        Approval {
            request: ApprovalRequested {
                approval_id: ApprovalId(Uuid::from_u128(7)),
                kind: "exec".into(),
                command: command.into(),
                runs: Vec::new(),
                unjudged: Vec::new(),
                matched: "deploy *".into(),
                approvers: 2,
                digest: digest(session, &asked),
                cwd: "/workspace".into(),
                env: Vec::new(),
                policy_sha256: policy_sha256(session),
                revision: session.revision,
                expires_at: end,
            },
            requested_at: now(),
            approved: by
                .iter()
                .map(|by| Decision {
                    by: (*by).to_owned(),
                    note: None,
                    at: now(),
                })
                .collect(),
            denied: None,
            consumed: false,
        }
    }

    #[test]
    fn asking_again_is_the_same_request_and_thirty_two_are_the_most() {
        let session = session();
        let (kinds, _) = decide(&session, &[], &asked("deploy a", None), now());
        assert_eq!(kinds, ["approval.requested"]);
        let open = approval(&session, "deploy a", &[]);
        let same = decide(
            &session,
            std::slice::from_ref(&open),
            &asked("deploy a", None),
            now(),
        );
        assert!(
            same.0.is_empty() && same.1.contains("waits for an approval"),
            "{same:?}"
        );
        let flood = vec![open; APPROVALS_OPEN_MAX];
        let (kinds, error) = decide(&session, &flood, &asked("deploy b", None), now());
        assert!(kinds.is_empty() && error.contains("32 at once"), "{error}");
    }

    #[test]
    fn an_approval_lets_what_it_is_for_run_and_nothing_else() {
        let session = session();
        let id = Uuid::from_u128(7).to_string();
        let both = approval(&session, "deploy a", &["ops", "security"]);
        let with = |session: &Session, approval: &Approval, command: &str, now| {
            let asked = asked(command, Some(&id));
            decide(session, std::slice::from_ref(approval), &asked, now)
        };
        assert_eq!(
            with(&session, &both, "deploy a", now()).0,
            ["approval.consumed"]
        );
        let refused = |answer: (Vec<&str>, String), why: &str| {
            assert_eq!(answer.0, ["approval.refused"]);
            assert!(answer.1.contains(why), "{}", answer.1);
        };
        refused(with(&session, &both, "deploy b", now()), "another command");
        let restored = Session {
            revision: 9,
            ..session.clone()
        };
        refused(
            with(&restored, &both, "deploy a", now()),
            "another revision",
        );
        let late = now() + TimeDelta::seconds(APPROVAL_SECONDS);
        refused(with(&session, &both, "deploy a", late), "its time ran out");
        let used = Approval {
            consumed: true,
            ..both.clone()
        };
        refused(with(&session, &used, "deploy a", now()), "used before");
        let denied = Approval {
            denied: both.approved.first().cloned(),
            ..both
        };
        refused(with(&session, &denied, "deploy a", now()), "denied");
        let one = approval(&session, "deploy a", &["ops"]);
        let waits = with(&session, &one, "deploy a", now());
        assert!(waits.0.is_empty() && waits.1.contains("waits"), "{waits:?}");
        let unknown = asked("deploy a", Some("nothing"));
        refused(decide(&session, &[], &unknown, now()), "there is none");
    }
}
