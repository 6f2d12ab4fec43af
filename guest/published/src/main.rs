//! Drives a guest daemon with the published Rust client, call by call.
//!
//! Arguments: endpoint, token, the host's tunnel seed, the guest's public key, a scratch folder
//! that the guest sees too, and `root` where commands can take other users. The guest's
//! `/workspace` and `/usr/local/bin` have to be this test's own. Prints one line for each call
//! that holds, and falls over at the first that does not.

mod assistants;
mod commands;
mod files;
mod tunnels;

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use microvms_core::prelude::SessionExt;
use microvms_core::session::KeepAwake;
use microvms_core::session::Session;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who is driven, and what the parts of the conversation need to know of it.
struct Guest {
    session: Session,
    host_seed: String,
    public_key: String,
    scratch: PathBuf,
    has_users: bool,
}

impl Guest {
    fn path(&self, name: &str) -> String {
        self.scratch.join(name).to_string_lossy().into_owned()
    }
}

fn holds(name: &str, condition: bool, seen: impl std::fmt::Debug) {
    assert!(condition, "{name}: {seen:?}");
    println!("holds: {name}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, token, host_seed, public_key, scratch, rights] = arguments.as_slice() else {
        panic!("six arguments, see the top of this file");
    };
    let guest = Guest {
        session: Session::direct(endpoint, token).unwrap(),
        host_seed: host_seed.clone(),
        public_key: public_key.clone(),
        scratch: Path::new(scratch).to_owned(),
        has_users: rights == "root",
    };
    the_session_itself(&guest).await;
    commands::hold(&guest.session).await;
    commands::are_followed(&guest.session).await;
    commands::are_written_to_and_ended(&guest.session).await;
    commands::are_refused_by_name(&guest.session, endpoint).await;
    files::hold(&guest).await;
    files::are_synced(&guest).await;
    tunnels::hold(&guest, endpoint).await;
    assistants::hold(&guest).await;
    println!("all hold");
}

async fn the_session_itself(guest: &Guest) {
    let session = &guest.session;
    let health = session.wait_until_ready(PATIENCE).await.unwrap();
    holds("wait_until_ready", health.bootstrapped, &health);
    let health = session.health().await.unwrap();
    holds("health", !health.identity_degraded, &health);
    let discovery = session.discovery().await.unwrap().unwrap();
    holds("discovery", discovery.default_user.is_none(), discovery);
    let headers = session.connect_headers(9).await.unwrap();
    holds("connect_headers", headers.is_empty(), headers);
    let protocols = session.connect_subprotocols(9).await.unwrap();
    holds("connect_subprotocols", protocols.is_none(), protocols);
    let mut rebound = session.clone();
    rebound.rebind(session.endpoint().to_owned());
    holds("rebind", rebound.health().await.is_ok(), ());

    let busy = commands::request("busy", &["sleep", "1.2"]);
    let handle = session.run(busy).await.unwrap();
    let policy = KeepAwake::new(None)
        .interval(Duration::from_secs(1))
        .while_busy(true)
        .max_duration(Some(PATIENCE));
    let report = session.keep_awake(&policy, std::future::pending()).await;
    let report = report.unwrap();
    holds("keep_awake", report.last_busy == Some(false), &report);
    let task = policy.spawn(session.clone(), None).unwrap();
    let report = task.finished().await.unwrap();
    holds("a keepalive as a task", report.polls >= 1, report);
    let result = handle.wait_and_ack(PATIENCE).await.unwrap();
    holds("wait_and_ack", result.succeeded(), result);
}
