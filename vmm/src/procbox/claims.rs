//! What this engine claims before it has tried a sandbox: what follows from who runs it and from
//! the control groups that it may make.

use super::cgroup::{Cgroups, Controller};
use super::wire::Users;
use crate::capabilities::{Capabilities, Network, UserNamespace};

pub(super) fn capabilities(users: Users, cgroups: &Cgroups) -> Capabilities {
    let mut degraded = Vec::new();
    if matches!(users, Users::Single { .. }) {
        // Groups cannot be dropped where a single user is mapped.
        degraded.push(
            "outside the hidden folders a sandbox reads the host's files with the rights of the \
             user who runs the daemon, supplementary groups included"
                .to_owned(),
        );
    }
    let named = [
        (Controller::Memory, "memory"),
        (Controller::Pids, "processes"),
        (Controller::Cpu, "processor time"),
    ];
    for (controller, name) in named {
        if !cgroups.has(controller) {
            degraded.push(format!(
                "no limit on {name}: no control group for it can be made here"
            ));
        }
    }
    if !cgroups.has(Controller::Freezer) {
        let sentence = "a disk is captured file by file while programs run: no control group here can \
                        have them stand still";
        degraded.push(sentence.to_owned());
    }
    Capabilities {
        snapshot: false,
        restore: false,
        fork: false,
        pty: false,
        memory_checkpoint: false,
        memory_checkpoint_reason: Some("no trial sandbox was made".to_owned()),
        confinement: false,
        exec_allowlist: false,
        landlock_abi: 0,
        http_policy: false,
        memory_limit: cgroups.has(Controller::Memory),
        process_limit: cgroups.has(Controller::Pids),
        cpu_limit: cgroups.has(Controller::Cpu),
        user_namespace: match users {
            Users::Shifted { base, count } => UserNamespace::ShiftedRange { base, count },
            Users::Single { .. } => UserNamespace::SingleUser,
        },
        host_root_writable: matches!(users, Users::Shifted { .. }),
        network: Network::LoopbackOnly,
        degraded,
    }
}
