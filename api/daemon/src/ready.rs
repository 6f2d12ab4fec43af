//! What is said once everything answers.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use crate::settings::Settings;
use crate::state::Reach;

/// Says on stdout that the daemon answers: one JSON line for programs, or a few lines for people.
pub(crate) fn say(settings: &Settings, reach: &Reach, address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(
            "LISTENING ON {address} WITHOUT TLS: tokens, commands and their output cross the network \
             in the clear. Put a TLS proxy or an ssh tunnel in front, or listen on 127.0.0.1"
        );
    }
    if settings.open {
        tracing::warn!(
            "OPEN ACCESS: every program of every user on this machine is an administrator of fluxvm"
        );
    }
    let text = if settings.ready_json {
        let line = serde_json::to_string(reach).unwrap_or_default();
        format!("{line}\n")
    } else {
        for_people(settings, reach)
    };
    // Who closed stdout does not want to know.
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    tracing::info!(url = reach.url, "ready");
}

fn for_people(settings: &Settings, reach: &Reach) -> String {
    let token = match &reach.token_file {
        Some(file) => format!("token in {}; fluxctl finds it by itself", file.display()),
        None => "no token needed (open access)".to_owned(),
    };
    let fluxctl = fluxctl(&settings.state_dir);
    format!(
        "fluxvmd answers at {url} ({token}).\n\n\
         Next, in another terminal:\n  \
         {fluxctl} agent run my-agent                     start a session\n  \
         {fluxctl} agent exec ID -- 'echo hello'          run a command in it\n  \
         {fluxctl} agent timeline ID                      see what happened\n\n\
         Ctrl-C ends the daemon; sessions keep running and are taken up at its next start.\n",
        url = reach.url,
    )
}

/// fluxctl as it is called from a shell for this daemon: the usual state folders it finds by itself.
fn fluxctl(state_dir: &Path) -> String {
    let usual = crate::settings::Surroundings::of_this_process().state_dir();
    if usual.as_deref() == Some(state_dir) {
        return "fluxctl".to_owned();
    }
    format!("fluxctl --state-dir {}", state_dir.display())
}
