//! The search itself.
//!
//! ```text
//!   good ── c1 c2 c3 ── state ── c4 ── state ── c5 c6 ── bad
//! ```
//!
//! First over the states that were kept, which cost nothing to make; then, between the last good and the
//! first bad of them, over the commands.

use std::sync::Arc;

use fluxvm_projections::BisectVerdict;
use fluxvm_projections::Culprit;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;

use super::Bisect;
use super::Found;
use super::trial::Trial;
use crate::error::CommandError;
use crate::lab;
use crate::lineage::Lineage;
use crate::lineage::Step;
use crate::lineage::between;

/// How the state of now is called.
const NOW: &str = "now";

/// A state on the line.
#[derive(Clone, Debug)]
pub(super) struct Station {
    pub(super) name: String,
    pub(super) snapshot: SnapshotRecord,
    /// What led to it.
    steps: Vec<Arc<Step>>,
}

/// The states from good to bad, each on the way to the next.
#[derive(Debug)]
pub(super) struct Line(Vec<Station>);

impl Line {
    pub(super) fn of(
        session: &Session,
        lineage: &Lineage,
        now: &SnapshotRecord,
        request: &Bisect,
    ) -> Result<Self, CommandError> {
        let points = session.rewind.timeline();
        let points = points.map(|point| (point.tag.as_str(), &point.snapshot));
        let checkpoints = session.checkpoints.iter();
        let checkpoints = checkpoints.map(|it| (it.tag.as_str(), &it.snapshot));
        let station = |(name, snapshot): (&str, &SnapshotRecord)| {
            Some(Station {
                name: name.to_owned(),
                snapshot: snapshot.clone(),
                steps: lineage.at(name)?.to_vec(),
            })
        };
        let mut all: Vec<Station> = points.chain(checkpoints).filter_map(station).collect();
        let at = |tag: &String, all: &[Station]| {
            let found = all.iter().find(|station| station.name == *tag);
            found.cloned().ok_or_else(|| CommandError::TagNotFound {
                what: "rewind point or checkpoint",
                tag: tag.clone(),
                hint: "",
            })
        };
        let last = match &request.bad {
            Some(tag) => at(tag, &all)?,
            None => Station {
                name: NOW.to_owned(),
                snapshot: now.clone(),
                steps: lineage.now().to_vec(),
            },
        };
        let first = match &request.good {
            Some(tag) => at(tag, &all)?,
            None => {
                let oldest = session.rewind.points().first();
                let oldest = oldest.ok_or_else(|| CommandError::TagNotFound {
                    what: "rewind point",
                    tag: "good".to_owned(),
                    hint: "; name a checkpoint in which the test passes",
                })?;
                at(&oldest.tag, &all)?
            }
        };
        if between(&first.steps, &last.steps).is_none() {
            return Err(CommandError::Invalid {
                field: "good",
                message: format!("{} is not on the way to {}", first.name, last.name),
            });
        }
        all.retain(|station| {
            let after = between(&first.steps, &station.steps);
            let before = between(&station.steps, &last.steps);
            let inside = after.is_some_and(|it| !it.is_empty());
            inside && before.is_some_and(|it| !it.is_empty())
        });
        all.sort_by_key(|station| station.steps.len());
        all.dedup_by_key(|station| station.steps.len());
        all.insert(0, first);
        all.push(last);
        Ok(Self(all))
    }
}

pub(super) async fn search(trial: &mut Trial<'_>, line: Line) -> Result<Found, CommandError> {
    let mut tested: Vec<BisectVerdict> = Vec::new();
    let stations = line.0;
    let (Some(first), Some(last)) = (stations.first(), stations.last()) else {
        return Err(CommandError::Internal("a line without ends".into()));
    };
    if !trial
        .test(&first.name, &first.snapshot, &[], &mut tested)
        .await?
    {
        let message = format!(
            "the test fails in {} already; name an earlier good state",
            first.name
        );
        return Err(CommandError::EndsAgree(message));
    }
    if trial
        .test(&last.name, &last.snapshot, &[], &mut tested)
        .await?
    {
        let message = format!(
            "the test passes in {} too; there is nothing to find",
            last.name
        );
        return Err(CommandError::EndsAgree(message));
    }
    let (mut good, mut bad) = (0, stations.len() - 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        let Some(station) = stations.get(middle) else {
            break;
        };
        match trial
            .test(&station.name, &station.snapshot, &[], &mut tested)
            .await?
        {
            true => good = middle,
            false => bad = middle,
        }
    }
    let (Some(good), Some(bad)) = (stations.get(good), stations.get(bad)) else {
        return Err(CommandError::Internal("a search off its line".into()));
    };
    let steps = between(&good.steps, &bad.steps).unwrap_or_default();
    let broke = commands(trial, good, steps, &mut tested).await?;
    Ok(Found {
        culprit: Culprit {
            seq: broke.seq,
            command: broke.deed.words(),
            tag: good.name.clone(),
        },
        last_good: good.name.clone(),
        first_bad: bad.name.clone(),
        tested,
    })
}

/// The first of these commands after which the test fails. The last of them is known to be after it.
async fn commands(
    trial: &mut Trial<'_>,
    from: &Station,
    steps: &[Arc<Step>],
    tested: &mut Vec<BisectVerdict>,
) -> Result<Arc<Step>, CommandError> {
    let nothing = || {
        let message = "no recorded command ran between the last good and the first bad state: something \
                       else changed it";
        CommandError::EndsAgree(message.to_owned())
    };
    // The last one never has to run again: it is known to be bad after it.
    let again = steps.split_last().map_or(&[][..], |(_, again)| again);
    if let Some((seq, why)) = lab::unrepeatable(again) {
        return Err(CommandError::EndsAgree(format!(
            "it happened between {} and the next kept state, and cannot be narrowed down: event {} {why}, \
             so that it cannot be done again",
            from.name, seq
        )));
    }
    let (mut good, mut bad) = (0, steps.len());
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        let run = steps.get(..middle).unwrap_or_default();
        let name = match run.last() {
            Some(step) => format!("after {}", step.seq),
            None => from.name.clone(),
        };
        match trial.test(&name, &from.snapshot, run, tested).await? {
            true => good = middle,
            false => bad = middle,
        }
    }
    steps.get(good).cloned().ok_or_else(nothing)
}
