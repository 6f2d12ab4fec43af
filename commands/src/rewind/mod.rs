//! Going back, and forward again: the ring of points that a session takes by itself before it changes.

mod decide;
mod moves;
mod point;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use fluxvm_projections::Point;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

pub(crate) use moves::answer;
pub(crate) use moves::redo;
pub(crate) use moves::undo;
pub(crate) use point::Before;
pub(crate) use point::before_trigger;

use crate::caller::Caller;
use crate::checkpoint;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::ConfigureRewind;
use crate::snapshots;

/// Changes whether, when and how points are taken.
pub(crate) async fn configure(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: ConfigureRewind,
) -> Result<Session, CommandError> {
    decide::check_config(&request)?;
    inner.expire_if_due(caller, id).await?;
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    let (before, _) = inner
        .book
        .decide(caller, id, |session| {
            decide::configure(session, &request, now)
        })
        .await?;
    drop(turn);
    // What no longer fits is let go of; what is still there, is needed and stays.
    let points = before.rewind.points().iter();
    snapshots::release(inner, points.map(|point: &Point| point.snapshot.id));
    inner.book.session(caller, id)
}

/// Keeps a point, or no longer.
pub(crate) async fn pin(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    tag: &str,
    pinned: bool,
) -> Result<Session, CommandError> {
    checkpoint::check_tag(tag)?;
    inner.expire_if_due(caller, id).await?;
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    inner
        .book
        .decide(caller, id, |session| decide::pin(session, tag, pinned, now))
        .await?;
    drop(turn);
    inner.book.session(caller, id)
}
