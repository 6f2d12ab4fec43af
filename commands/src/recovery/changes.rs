//! Promotions and evaluations that the last daemon did not come to the end of.

use std::sync::Arc;

use fluxvm_projections::Event;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::PromoteFailed;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use super::ROLLED_BACK;
use super::interruption;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::evaluate;
use crate::promote;

/// Takes a promotion back. Answers whether it was one, and could not be: it is half done and stays so, and
/// the checkpoint of before has what was.
pub(super) async fn give_up_promotion(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
) -> Result<bool, CommandError> {
    let OperationKind::Promote { child, .. } = &operation.kind else {
        return Ok(false);
    };
    let Err(error) = promote::roll_back(inner, session, operation).await else {
        return Ok(false);
    };
    let failed = Event::PromoteFailed(PromoteFailed {
        op: operation.seq,
        child: *child,
        code: "interrupted".to_owned(),
        reason: format!(
            "the daemon ended in the middle of it, and what was done of it stays: {error}"
        ),
        rolled_back: false,
    });
    let (id, intent) = (session.id, operation.intent);
    inner
        .book
        .conclude(caller, id, intent, Entry::new(failed))
        .await?;
    Ok(true)
}

/// Evaluations without an outcome, with the sessions that they are of.
pub(super) fn evaluations(sessions: &[Session]) -> Vec<(SessionId, Operation)> {
    let open = |session: &Session| {
        let id = session.id;
        let is_one = |operation: &&Operation| is_evaluation(operation);
        let open = session.in_flight.iter().filter(is_one).cloned();
        open.map(move |operation| (id, operation))
            .collect::<Vec<_>>()
    };
    sessions.iter().flat_map(open).collect()
}

pub(super) fn is_evaluation(operation: &Operation) -> bool {
    matches!(operation.kind, OperationKind::Evaluate { .. })
}

/// Removes the children of interrupted evaluations, once every session was taken up.
pub(super) async fn roll_back_evaluations(
    inner: &Arc<Inner>,
    caller: &Caller,
    evaluations: Vec<(SessionId, Operation)>,
) -> Result<u64, CommandError> {
    let count = evaluations.len() as u64;
    for (session, operation) in evaluations {
        if let OperationKind::Evaluate { children, .. } = &operation.kind {
            evaluate::remove(inner, caller, children).await;
        }
        let entry = interruption(&operation, Some(ROLLED_BACK));
        inner
            .book
            .conclude(caller, session, operation.intent, entry)
            .await?;
    }
    Ok(count)
}
