//! A sandbox takes another identity, as a copy of one does after it was made anew.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use agentd_client::AgentToken;
use agentd_client::protocol::{IdentityRequest, IdentityStepOutcome};
use common::{Lab, root_or_skip, sh};
use fluxvm_vmm::SandboxId;

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_takes_another_identity_and_shares_none_with_its_parent() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let host = [
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(),
        std::fs::read_to_string("/etc/machine-id").unwrap_or_default(),
        std::fs::read_to_string("/etc/hosts").unwrap_or_default(),
    ];
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    let ids = "cat /etc/machine-id 2>/dev/null; hostname; cat /etc/hostname; \
               grep -o '[^[:space:]]*$' /etc/hosts | head -1";
    let before = sh(guest, ids).await;
    let mut request = IdentityRequest::new(
        1,
        AgentToken::new(SandboxId::random().to_string()),
        // 32 bytes, base64.
        "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
    );
    request.hostname = Some("a-copy".into());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    request.unix_ms = u64::try_from(now.unwrap().as_millis()).ok();
    let state = guest.take_identity(&request).await.unwrap();
    assert_eq!(state.generation, 1);
    for step in &state.steps {
        assert_ne!(step.outcome, IdentityStepOutcome::Failed, "{step:?}");
    }
    let outcome = |name: &str| {
        let found = state.steps.iter().find(|step| step.name == name);
        found.map(|step| step.outcome)
    };
    for done in ["entropy", "machine-id", "hostname"] {
        assert_eq!(outcome(done), Some(IdentityStepOutcome::Repaired), "{done}");
    }
    // The clock is the host's own, and no mount was made that a memory checkpoint would have to know.
    for left in ["clock", "boot-id"] {
        assert_eq!(
            outcome(left),
            Some(IdentityStepOutcome::NotApplicable),
            "{left}"
        );
    }
    let after = sh(guest, ids).await;
    let lines: Vec<&str> = after.ok().lines().collect();
    assert_eq!(lines.len(), 4, "{after:?}");
    assert_eq!(lines.first().map(|id| id.len()), Some(32), "{after:?}");
    assert_eq!(lines.get(1..), Some(&["a-copy"; 3][..]), "{after:?}");
    assert!(!before.output.contains(lines.first().unwrap()));
    let health = guest.health().await.unwrap();
    assert!(health.identity_repaired && !health.identity_degraded);
    let unchanged = [
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(),
        std::fs::read_to_string("/etc/machine-id").unwrap_or_default(),
        std::fs::read_to_string("/etc/hosts").unwrap_or_default(),
    ];
    assert_eq!(unchanged, host, "the host is who it was");
    sandbox.destroy().await.unwrap();
}
