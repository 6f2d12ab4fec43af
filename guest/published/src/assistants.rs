//! What the client builds on a session for command line assistants: files of theirs in the
//! guest, and a task for one. The program itself is a stand-in that answers like it.

use microvms_core::Region;
use microvms_core::agents::Agent;
use microvms_core::agents::AgentSpec;
use microvms_core::agents::BearerToken;
use microvms_core::agents::BedrockAccess;
use microvms_core::agents::PromptOptions;
use microvms_core::agents::install_access;
use microvms_core::agents::installed_agents;
use microvms_core::agents::installed_version;
use microvms_core::agents::prompt;
use microvms_core::agents::prompt_sync;

use crate::Guest;
use crate::PATIENCE;
use crate::holds;

const PROGRAM: &[u8] = b"#!/bin/sh\n[ \"$1\" = --version ] && echo stand-in 1.2.3 || echo \"$@\"\n";

pub async fn hold(guest: &Guest) {
    let session = &guest.session;
    let absent = installed_agents(session).await;
    holds("no assistant is told of", absent.is_err(), absent);
    let specs = [AgentSpec::new(Agent::Codex)];
    let access = BedrockAccess {
        region: Region::US_EAST_1,
        token: BearerToken::new("bearer-of-nothing".into()),
    };
    let installed = install_access(session, &specs, &access).await;
    if !guest.has_users {
        // The last step gives the folder to another user, which nobody but root can.
        holds(
            "a folder that cannot be given away",
            installed.is_err(),
            installed,
        );
        return;
    }
    holds("install_access", installed.is_ok(), installed);
    let told = installed_agents(session).await.unwrap();
    let known = told.len() == 1 && told[0].agent == Agent::Codex;
    holds("installed_agents", known, told);
    let path = "/usr/local/bin/codex";
    session
        .upload_file(path, PROGRAM, Some("0755"))
        .await
        .unwrap();
    let version = installed_version(session, Agent::Codex).await.unwrap();
    holds("installed_version", version == "1.2.3", version);
    let options = PromptOptions::default();
    let [spec] = &specs;
    let result = prompt_sync(session, spec, "it's a task", &options)
        .await
        .unwrap();
    let asked = result.stdout().contains("it's a task");
    holds("prompt_sync", asked, result);
    let handle = prompt(session, spec, "another", &options).await.unwrap();
    let result = handle.wait_and_ack(PATIENCE).await.unwrap();
    holds("prompt", result.succeeded(), result);
}
