//! Uploads: which are open, and which are done.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::upload::UploadOpened;
use crate::ids::SessionId;
use crate::ids::UploadId;

/// Completed uploads that are remembered of one session, the latest: whoever repeats a request does so
/// soon.
const COMPLETED_MAX: usize = 64;

/// Uploads by session, for as long as the session lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Uploads {
    by_session: BTreeMap<SessionId, BTreeMap<UploadId, Upload>>,
}

/// One upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// What was asked for.
    pub asked: UploadOpened,
    /// When.
    pub opened_at: DateTime<Utc>,
    /// The ledger number of its end; `None` while it is open.
    pub completed: Option<u64>,
}

impl Uploads {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// One upload of a session.
    #[must_use]
    pub fn get(&self, session: SessionId, id: UploadId) -> Option<&Upload> {
        self.by_session.get(&session)?.get(&id)
    }

    /// The uploads of a session, oldest first.
    #[must_use]
    pub fn of_session(&self, session: SessionId) -> Vec<Upload> {
        let mut uploads: Vec<Upload> = self
            .by_session
            .get(&session)
            .map(|uploads| uploads.values().cloned().collect())
            .unwrap_or_default();
        uploads.sort_by_key(|upload| (upload.opened_at, upload.asked.upload));
        uploads
    }

    /// Every open upload with its session.
    pub fn open(&self) -> impl Iterator<Item = (SessionId, &Upload)> {
        self.by_session.iter().flat_map(|(session, uploads)| {
            uploads
                .values()
                .filter(|upload| upload.completed.is_none())
                .map(|upload| (*session, upload))
        })
    }

    /// Folds one event in.
    pub(crate) fn apply(&mut self, envelope: &Envelope) {
        let Some(session) = SessionId::of_stream(&envelope.stream) else {
            return;
        };
        match &envelope.event {
            Event::UploadOpened(asked) => {
                let upload = Upload {
                    asked: asked.clone(),
                    opened_at: envelope.at,
                    completed: None,
                };
                let uploads = self.by_session.entry(session).or_default();
                uploads.insert(asked.upload, upload);
            }
            Event::UploadCompleted(completed) => {
                self.complete(session, completed.upload, envelope.seq.get());
            }
            Event::UploadAborted(aborted) => {
                if let Some(uploads) = self.by_session.get_mut(&session) {
                    uploads.remove(&aborted.upload);
                }
                self.by_session.retain(|_, uploads| !uploads.is_empty());
            }
            Event::SessionCleanedUp(_) | Event::SessionErased(_) => {
                self.by_session.remove(&session);
            }
            _ => {}
        }
    }

    fn complete(&mut self, session: SessionId, id: UploadId, seq: u64) {
        let Some(uploads) = self.by_session.get_mut(&session) else {
            return;
        };
        if let Some(upload) = uploads.get_mut(&id) {
            upload.completed = Some(seq);
        }
        let completed = || uploads.values().filter_map(|upload| upload.completed);
        if completed().count() > COMPLETED_MAX {
            let oldest = completed().min();
            uploads.retain(|_, upload| upload.completed.is_none() || upload.completed != oldest);
        }
    }
}
