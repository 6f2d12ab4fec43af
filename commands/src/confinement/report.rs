//! What the guest says that it enforces, in the words of the ledger.

use agentd_client::ClientError;
use agentd_protocol::Enforcement;
use agentd_protocol::Slug;
use fluxvm_projections::EnforcementRecord;

use super::reach::is_of_the_system;

/// The guest's report as it is recorded.
pub(crate) fn record(report: Enforcement) -> EnforcementRecord {
    EnforcementRecord {
        landlock_abi: report.landlock_abi,
        filesystem: report.filesystem,
        execute: report.execute,
        tcp_connect: report.tcp_connect,
        tcp_bind: report.tcp_bind,
        scope_abstract_unix: report.scope_abstract_unix,
        scope_signal: report.scope_signal,
        seccomp: report.seccomp,
        seccomp_sockets: report.seccomp_sockets,
        limits: report.limits,
        uid_dropped: report.uid_dropped,
        namespaces: report.namespaces,
        network_isolated: report.network_isolated,
        not_enforced: report.not_enforced,
        // What no image has to have is nothing that anybody asked for.
        absent: report
            .absent
            .into_iter()
            .filter(|path| !is_of_the_system(path))
            .collect(),
    }
}

/// Whether the guest refused a start because it cannot hold it to its policy.
pub(crate) fn is_refusal(error: &ClientError) -> bool {
    let wanted = Slug::PolicyUnenforceable.as_str();
    matches!(error, ClientError::Refused { slug: Some(slug), .. } if &**slug == wanted)
}
