//! Checkpoints, forks and the ring of points, as a client asks for them.

use std::collections::BTreeSet;

use serde_json::Value;
use serde_json::json;

use crate::api::Answer;
use crate::api::Api;
use crate::api::SESSIONS;
use crate::state::State;
use crate::wait::eventually;

impl Api {
    /// Posts to a session.
    #[must_use]
    pub fn ask(&self, id: &str, verb: &str, body: &Value) -> Answer {
        self.post(&format!("{SESSIONS}/{id}/{verb}"), body)
    }

    /// Posts to a session with headers.
    #[must_use]
    pub fn ask_with(&self, id: &str, verb: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let path = format!("{SESSIONS}/{id}/{verb}");
        self.send("POST", &path, headers, body.to_string().as_bytes())
    }

    /// Takes a checkpoint, which must succeed.
    pub fn checkpoint(&self, id: &str, tag: &str) -> Value {
        self.ask(id, "checkpoint", &json!({"tag": tag})).expect(201)
    }

    /// Goes back to a checkpoint, which must succeed.
    pub fn restore(&self, id: &str, tag: &str) -> Value {
        self.ask(id, "restore", &json!({"tag": tag})).expect(200)
    }

    /// Makes children and answers with their ids.
    ///
    /// # Panics
    ///
    /// When they are not made.
    #[must_use]
    pub fn fork(&self, id: &str, count: u32) -> Vec<String> {
        let answer = self.ask(id, "fork", &json!({"count": count})).expect(201);
        ids(&answer)
    }

    /// A session's ring.
    #[must_use]
    pub fn ring(&self, id: &str) -> Value {
        self.get(&format!("{SESSIONS}/{id}/rewind")).expect(200)
    }

    /// Switches a session's ring on, which must succeed.
    pub fn rewind_on(&self, id: &str, max_points: u32) -> Value {
        let body = json!({"enabled": true, "max_points": max_points});
        self.ask(id, "rewind/config", &body).expect(200)
    }

    /// The tags of the checkpoints that a session has.
    ///
    /// # Panics
    ///
    /// When the answer is no list.
    #[must_use]
    pub fn tags(&self, id: &str) -> Vec<String> {
        let list = self
            .get(&format!("{SESSIONS}/{id}/checkpoints"))
            .expect(200);
        tags(&list["items"])
    }

    /// What a ring shows: `what can be undone | what is undone`.
    ///
    /// # Panics
    ///
    /// When the answer is no ring.
    #[must_use]
    pub fn ring_line(&self, id: &str) -> String {
        let ring = self.ring(id);
        let line = |key: &str| tags(&ring[key]).join(" ");
        format!("{} | {}", line("points"), line("undone"))
    }
}

/// The tags of what is listed.
fn tags(list: &Value) -> Vec<String> {
    let items = list.as_array().expect("a list").iter();
    items
        .map(|item| item["tag"].as_str().expect("a tag").to_owned())
        .collect()
}

/// The ids of the sessions that are listed.
///
/// # Panics
///
/// When the answer is no list.
#[must_use]
pub fn ids(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().expect("a list").iter();
    items
        .map(|item| item["id"].as_str().expect("an id").to_owned())
        .collect()
}

/// Every sandbox and every snapshot on disk is somebody's, and nobody misses one. What is let go of is
/// removed without anyone waiting for it, and so it is looked at again until it is so.
///
/// # Panics
///
/// When it does not become so.
pub fn is_tidy(api: &Api, state: &State, what: &str) {
    eventually(&format!("{what}: all that is there is needed"), || {
        let sessions = api.sessions();
        let sandboxes: BTreeSet<String> = names(state, "sandboxes").into_iter().collect();
        let owned: BTreeSet<String> = sessions.iter().map(|it| text(&it["sandbox_id"])).collect();
        let snapshots: BTreeSet<String> = names(state, "snapshots").into_iter().collect();
        let needed: BTreeSet<String> = sessions.iter().flat_map(|it| needed(api, it)).collect();
        (sandboxes == owned && snapshots == needed).then_some(())
    });
}

/// The snapshots that a session's record and ring name.
fn needed(api: &Api, session: &Value) -> Vec<String> {
    let ring = api.ring(&text(&session["id"]));
    let listed = [&session["checkpoints"], &ring["points"], &ring["undone"]];
    let items = listed
        .into_iter()
        .flat_map(|list| list.as_array().expect("a list"));
    let mut ids: Vec<String> = items.map(|item| text(&item["snapshot"]["id"])).collect();
    let baseline = session.pointer("/origin/snapshot/id");
    ids.extend(baseline.filter(|it| it.is_string()).map(text));
    ids
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// What is in a folder of the state, but for what is hidden.
///
/// # Panics
///
/// When it cannot be read.
#[must_use]
pub fn names(state: &State, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(state.root().join(folder)).expect("the folder");
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries
        .flatten()
        .map(name)
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}
