//! Limits of memory, processes and processor time.

use std::fs;
use std::os::unix::fs::MetadataExt;

use agentd_protocol::Enforcement;
use agentd_protocol::ExecPolicy;
use nix::sys::resource::Resource;
use nix::sys::resource::getrlimit;

/// One limit, soft and hard alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) resource: libc::__rlimit_resource_t,
    pub(crate) most: u64,
}

/// Whether the kernel counts a user's processes. It does not for whoever administers the machine:
/// root where user ids are those of the machine itself.
pub(super) fn counts_processes(uid: u32) -> bool {
    let own_ids = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
        let all = ["0", "0", "4294967295"];
        !map.split_ascii_whitespace().eq(all)
    });
    uid != 0 || own_ids
}

/// The limits that a policy asks for and the report promises.
pub(super) fn of(policy: &ExecPolicy, report: &Enforcement, uid: u32) -> Vec<Limit> {
    let named = |name: &str| report.not_enforced.iter().any(|missing| missing == name);
    let processes = policy.max_processes.filter(|_| !named("max_processes"));
    let asked = [
        (Resource::RLIMIT_AS, libc::RLIMIT_AS, policy.max_memory),
        (
            Resource::RLIMIT_NPROC,
            libc::RLIMIT_NPROC,
            processes.map(|most| most.saturating_add(tasks_of(uid))),
        ),
        (Resource::RLIMIT_CPU, libc::RLIMIT_CPU, policy.cpu_seconds),
    ];
    let limits = asked.into_iter().filter_map(|(named, resource, asked)| {
        let hard = getrlimit(named).map_or(u64::MAX, |(_, hard)| hard);
        Some(Limit {
            resource,
            most: asked?.min(hard),
        })
    });
    limits.collect()
}

/// Processes and threads that a user runs now.
fn tasks_of(uid: u32) -> u64 {
    let Ok(folder) = fs::read_dir("/proc") else {
        return 0;
    };
    let tasks = folder.flatten().filter_map(|entry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        let own = entry.metadata().ok()?.uid() == uid;
        let tasks = own.then(|| fs::read_dir(entry.path().join("task")).ok())??;
        u64::try_from(tasks.count()).ok()
    });
    tasks.sum()
}
