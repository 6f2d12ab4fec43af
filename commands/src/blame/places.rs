//! The states on the way to now, and what lies at a path in each.

use std::sync::Arc;

use agentd_client::ClientError;
use fluxvm_projections::MemoryMode;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;
use fluxvm_vmm::SnapshotError;

use crate::engine::Inner;
use crate::error::CommandError;
use crate::lab::Lab;
use crate::lineage::Lineage;
use crate::lineage::Step;
use crate::lineage::between;
use crate::states;
use crate::states::State;

/// What a guest answers where nothing is.
const HTTP_NOT_FOUND: u16 = 404;

/// A state on the way to now.
pub(super) struct Place {
    pub(super) state: State,
    /// What it is revived from; `None` is the session's image.
    snapshot: Option<SnapshotRecord>,
    /// What led to it.
    pub(super) steps: Vec<Arc<Step>>,
}

/// All of them, oldest first: what the session began with, what was kept, now.
pub(super) async fn of(
    inner: &Arc<Inner>,
    session: &Session,
    lineage: &Lineage,
) -> Result<Vec<Place>, CommandError> {
    let points = session.rewind.timeline();
    let points = points.map(|point| (point.tag.as_str(), &point.snapshot));
    let checkpoints = session.checkpoints.iter();
    let checkpoints = checkpoints.map(|it| (it.tag.as_str(), &it.snapshot));
    let mut places = Vec::new();
    for (tag, snapshot) in points.chain(checkpoints) {
        let led = lineage.at(tag);
        if let Some(steps) = led.filter(|led| between(led, lineage.now()).is_some()) {
            places.push(Place {
                state: State::captured(session, tag, snapshot, None)?,
                snapshot: Some(snapshot.clone()),
                steps: steps.to_vec(),
            });
        }
    }
    places.sort_by_key(|place| place.steps.len());
    places.insert(
        0,
        Place {
            state: State::baseline(session)?,
            snapshot: session.origin.as_ref().map(|it| it.snapshot.clone()),
            steps: Vec::new(),
        },
    );
    let now = states::now(inner, session.id, MemoryMode::Never).await?;
    let snapshot = now.snapshot.clone();
    places.push(Place {
        state: State::captured(session, "now", &snapshot, Some(now))?,
        snapshot: Some(snapshot),
        steps: lineage.now().to_vec(),
    });
    Ok(places)
}

impl Place {
    /// What lies at a path of the workspace; `None` where no file is.
    pub(super) async fn content(
        &self,
        inner: &Inner,
        path: &str,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>, CommandError> {
        match self.state.content(inner, path, bytes_max).await {
            Ok(Some(content)) => Ok(Some(content)),
            Ok(None) => Err(too_large(bytes_max)),
            Err(CommandError::Snapshot(SnapshotError::NoSuchPath { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What lies at a path of the guest after these steps were done here again.
    pub(super) async fn made_again(
        &self,
        inner: &Arc<Inner>,
        session: &Session,
        steps: &[Arc<Step>],
        (full, bytes_max): (&str, u64),
    ) -> Result<Option<Vec<u8>>, CommandError> {
        let lab = Lab::open(inner, session, self.snapshot.as_ref()).await?;
        let made = async {
            lab.redo(steps).await?;
            let limit = usize::try_from(bytes_max).unwrap_or(usize::MAX);
            let read = async {
                let file = lab.sandbox.guest().read_file(full, None).await?;
                file.collect(limit).await
            };
            match read.await {
                Ok(content) => Ok(Some(content.to_vec())),
                Err(ClientError::Refused {
                    status: HTTP_NOT_FOUND,
                    ..
                }) => Ok(None),
                Err(error) => Err(CommandError::ExecFailed {
                    code: "guest_unreachable".to_owned(),
                    reason: error.to_string(),
                }),
            }
        };
        let made = made.await;
        lab.close().await;
        made
    }
}

fn too_large(bytes_max: u64) -> CommandError {
    CommandError::TooLarge {
        what: "the file",
        limit: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        unit: "bytes",
    }
}
