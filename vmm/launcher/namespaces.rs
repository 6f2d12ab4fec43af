//! The launcher's own namespaces and groups, and the map of users.

use std::fs;
use std::path::PathBuf;

use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::Users;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::credentials;
use crate::fault::{Context, Failure, at};

/// Puts this process, and so everything it starts, under the sandbox's limits.
pub(crate) fn join_cgroups(files: &[PathBuf]) -> Result<(), Failure> {
    at(CreateStage::JoinCgroup)?;
    for file in files {
        fs::write(file, "0").stage(CreateStage::JoinCgroup, || {
            format!("joining {}", file.display())
        })?;
    }
    Ok(())
}

/// Leaves the host's mount namespace; an ordinary user first becomes root of a user namespace.
pub(crate) fn enter_own(users: &Users) -> Result<(), Failure> {
    const STAGE: CreateStage = CreateStage::LauncherNamespace;
    at(STAGE)?;
    match *users {
        Users::Shifted { .. } => {
            credentials::give_up_surplus().stage(STAGE, || "giving up surplus rights".into())?;
            unshare(CloneFlags::CLONE_NEWNS).stage(STAGE, || "a mount namespace".into())?;
        }
        Users::Single { uid, gid } => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
                .stage(STAGE, || "a user and a mount namespace".into())?;
            write_map("/proc/self/setgroups", "deny")?;
            write_map("/proc/self/uid_map", &format!("0 {uid} 1"))?;
            write_map("/proc/self/gid_map", &format!("0 {gid} 1"))?;
        }
    }
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .stage(STAGE, || "making the mounts private".into())
}

/// Maps the users of the first process to their range on the host.
pub(crate) fn map_users(pid: u32, base: u32, count: u32) -> Result<(), Failure> {
    at(CreateStage::UserMap)?;
    let map = format!("0 {base} {count}");
    write_map(&format!("/proc/{pid}/gid_map"), &map)?;
    write_map(&format!("/proc/{pid}/uid_map"), &map)
}

fn write_map(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).stage(CreateStage::UserMap, || {
        format!("writing {text:?} to {path}")
    })
}
