//! `fluxvm-procbox`: makes the namespaces and mounts of one sandbox, starts its guest daemon and
//! ends.
//!
//! It is a program of its own, with one thread, so that it may fork and allocate freely between
//! fork and exec, and so that the daemon's own namespaces and credentials never change. Everything
//! it mounts lies in mount namespaces that end with the sandbox: a host's mount table never shows
//! one.
//!
//! It speaks one short dialogue over its standard input ([`fluxvm_vmm::procbox::wire`]) and is of
//! no use by hand.

#![allow(
    unsafe_code,
    reason = "namespaces and mounts have system calls without safe wrappers"
)]

mod child;
mod control;
mod credentials;
mod criu;
mod fault;
mod mounts;
mod namespaces;
mod restore;
mod sys;

use std::os::fd::AsFd;
use std::process::ExitCode;

use control::Control;
use fault::{Failure, at};
use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::{LaunchFacts, LaunchReport, LaunchRequest, Request, Users};
use nix::sys::stat::{Mode, umask};

fn main() -> ExitCode {
    if let Some(code) = criu::as_hook() {
        return code;
    }
    let Ok((control, request, fds)) = Control::receive_request() else {
        // Nobody to tell: whoever starts this without a control socket gets an exit code.
        return ExitCode::from(2);
    };
    let request = match request {
        Request::Launch(request) => request,
        Request::Criu(request) => return criu::run(&request),
    };
    let made = match &request.memory {
        None => launch(&control, &request, fds),
        Some(memory) => restore::restore(&control, &request, memory, &fds.log),
    };
    let report = match made {
        Ok(facts) => LaunchReport::Ready(facts),
        Err(failure) => LaunchReport::Failed(failure.into()),
    };
    match control.send(&report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The whole of it, in order. Whatever fails, the first process does not outlive the failure.
fn launch(
    control: &Control,
    request: &LaunchRequest,
    fds: control::Descriptors,
) -> Result<LaunchFacts, Failure> {
    let mut facts = LaunchFacts::default();
    // What is made for the sandbox is for all of its users, however private the daemon's own files
    // are.
    umask(Mode::from_bits_truncate(0o022));
    namespaces::join_cgroups(&request.cgroup_procs)?;
    namespaces::enter_own(&request.users)?;
    mounts::enter_scratch(&request.folder)?;
    let first = child::spawn(request, fds)?;
    let reported = sys::pidfd_open(first.pid())
        .and_then(|pidfd| control.send_spawned(first.pid(), pidfd.as_fd()));
    reported.map_err(|errno| {
        Failure::new(
            CreateStage::SandboxNamespace,
            "reporting the first process",
            errno,
        )
    })?;
    if let Users::Shifted { base, count } = request.users {
        namespaces::map_users(first.pid(), base, count)?;
    }
    mounts::build_root(request, first.pid(), &mut facts)?;
    mounts::devices(&mut facts)?;
    at(CreateStage::MountNamespace)?;
    first.release()?;
    if let Err(failure) = control.wait_for_go() {
        // The daemon may have given up because the first process did.
        return Err(first.end().unwrap_or(failure));
    }
    if request.spare_first_process {
        first.spare();
    }
    first.release()?;
    first.wait_until_started(&mut facts)?;
    Ok(facts)
}
