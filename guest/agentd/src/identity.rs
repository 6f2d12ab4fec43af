//! Giving a guest an identity of its own.
//!
//! Guests of one image start from one memory and one disk: without this they would share the
//! machine's id, the boot's id, the host name and the seed of randomness. It runs once, at the
//! winning run hook, and again whenever the host gives a guest that was copied a new identity. A
//! step that fails fails alone: a guest with a shared id is reported, not refused.
//!
//! What it changes belongs to the whole machine, so it only ever runs as the first process of one.

mod machine;

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use agentd_protocol::IdentityStep;
use agentd_protocol::IdentityStepOutcome;
use sha2::Digest;
use sha2::Sha256;

pub(crate) use machine::Machine;
pub(crate) use machine::OwnMachine;

/// Digits of the fresh id that the host name takes.
const HOSTNAME_DIGITS: usize = 12;

/// A clock that is closer to the host's is left alone: a request takes a moment, and programs
/// suffer more from a jump than from a second.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repair {
    pub(crate) steps: Vec<IdentityStep>,
}

impl Repair {
    /// Whether some step failed.
    pub(crate) fn is_degraded(&self) -> bool {
        self.steps
            .iter()
            .any(|step| step.outcome == IdentityStepOutcome::Failed)
    }
}

/// Whether this process may change the machine's identity: it is the machine's first.
pub(crate) fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Does every step of a launch.
pub(crate) fn repair(machine: &impl Machine) -> Repair {
    let mut bytes = [0; 16];
    let minted = machine.random(&mut bytes).map(|()| hexadecimal(&bytes));
    let with_id = |step: &dyn Fn(&str) -> io::Result<IdentityStepOutcome>| match &minted {
        Ok(id) => step(id),
        Err(error) => Err(io::Error::other(format!("there is no fresh id: {error}"))),
    };
    recorded(vec![
        ("machine-id", with_id(&|id| write_machine_id(machine, id))),
        (
            "hostname",
            with_id(&|id| name_host(machine, &name_from(id))),
        ),
        (
            "boot-id",
            with_id(&|id| cover_boot_id(machine, &dashed(id))),
        ),
        (
            "random-seed",
            forget(machine, "var/lib/systemd/random-seed"),
        ),
        (
            "cached-credential",
            forget(machine, "var/lib/dbus/machine-id"),
        ),
    ])
}

/// What a guest that was copied is to be from now on.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) entropy: Vec<u8>,
    pub(crate) machine_id: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) boot_id: Option<String>,
    pub(crate) since_epoch: Option<Duration>,
}

/// Does every step of a new identity. Randomness comes first: what is made of it afterwards is then
/// the guest's own.
pub(crate) fn renew(machine: &impl Machine, fresh: &Fresh) -> Repair {
    let stirred = machine.stir(&fresh.entropy);
    let id = match &fresh.machine_id {
        Some(id) => id.clone(),
        None => fresh_id(machine, &fresh.entropy),
    };
    let named = fresh.hostname.clone().unwrap_or_else(|| name_from(&id));
    recorded(vec![
        ("entropy", stirred.map(|()| IdentityStepOutcome::Repaired)),
        ("machine-id", write_machine_id(machine, &id)),
        ("hostname", rename_host(machine, &named)),
        (
            "boot-id",
            match &fresh.boot_id {
                Some(id) => cover_boot_id(machine, id),
                None => Ok(IdentityStepOutcome::NotApplicable),
            },
        ),
        (
            "random-seed",
            forget(machine, "var/lib/systemd/random-seed"),
        ),
        (
            "cached-credential",
            forget(machine, "var/lib/dbus/machine-id"),
        ),
        ("clock", step_clock(machine, fresh.since_epoch)),
    ])
}

fn recorded(steps: Vec<(&str, io::Result<IdentityStepOutcome>)>) -> Repair {
    let steps = steps.into_iter().map(|(name, done)| {
        let (outcome, error) = match done {
            Ok(outcome) => (outcome, None),
            Err(error) => (IdentityStepOutcome::Failed, Some(error.to_string())),
        };
        if let Some(error) = &error {
            tracing::warn!(step = name, error, "a step of identity repair failed");
        }
        IdentityStep {
            name: name.to_owned(),
            outcome,
            error,
        }
    });
    Repair {
        steps: steps.collect(),
    }
}

/// An id of the host's fresh randomness and whatever the machine has: two copies of one machine
/// differ by the first, whatever the second gives them.
fn fresh_id(machine: &impl Machine, entropy: &[u8]) -> String {
    let mut own = [0; 16];
    let _ = machine.random(&mut own);
    let mixed = Sha256::new()
        .chain_update(b"machine-id")
        .chain_update(own)
        .chain_update(entropy)
        .finalize();
    hexadecimal(mixed.get(..16).unwrap_or_default())
}

fn name_from(id: &str) -> String {
    format!("microvm-{}", id.get(..HOSTNAME_DIGITS).unwrap_or(id))
}

fn at(machine: &impl Machine, path: &str) -> PathBuf {
    machine.root().join(path)
}

fn write_machine_id(machine: &impl Machine, id: &str) -> io::Result<IdentityStepOutcome> {
    let path = at(machine, "etc/machine-id");
    remove(&path)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(path)?;
    writeln!(file, "{id}")?;
    Ok(IdentityStepOutcome::Repaired)
}

fn name_host(machine: &impl Machine, name: &str) -> io::Result<IdentityStepOutcome> {
    machine.set_hostname(name)?;
    Ok(IdentityStepOutcome::Repaired)
}

/// Names the machine, in the files too that its old name is in: a machine that does not find its
/// own name among the hosts waits for a name server with every other command.
fn rename_host(machine: &impl Machine, name: &str) -> io::Result<IdentityStepOutcome> {
    let old = machine.hostname()?;
    machine.set_hostname(name)?;
    for path in ["etc/hostname", "etc/hosts"] {
        let path = at(machine, path);
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let renamed = replace_word(&text, &old, name);
        if renamed != text {
            fs::write(&path, renamed)?;
        }
    }
    Ok(IdentityStepOutcome::Repaired)
}

/// Text with every word `old` in it replaced.
fn replace_word(text: &str, old: &str, new: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| match word.strip_prefix(old) {
            Some(rest) if rest.trim_end().is_empty() => format!("{new}{rest}"),
            _ => word.to_owned(),
        })
        .collect()
}

/// Sets a clock that is off by so much that the guest must have stood still.
fn step_clock(
    machine: &impl Machine,
    since_epoch: Option<Duration>,
) -> io::Result<IdentityStepOutcome> {
    let Some(now) = since_epoch else {
        return Ok(IdentityStepOutcome::NotApplicable);
    };
    if machine.time().abs_diff(now) < CLOCK_TOLERANCE {
        return Ok(IdentityStepOutcome::NotApplicable);
    }
    machine.set_time(now)?;
    Ok(IdentityStepOutcome::Repaired)
}

/// The kernel's boot id cannot be written, so another file is put over it.
fn cover_boot_id(machine: &impl Machine, id: &str) -> io::Result<IdentityStepOutcome> {
    let target = at(machine, "proc/sys/kernel/random/boot_id");
    if !target.exists() {
        return Ok(IdentityStepOutcome::NotApplicable);
    }
    let source = at(machine, "run/agentd-boot-id");
    remove(&source)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&source)?;
    writeln!(file, "{id}")?;
    machine.cover(&target, &source)?;
    Ok(IdentityStepOutcome::Repaired)
}

/// Deletes a file that the next boot, or nobody, makes anew.
fn forget(machine: &impl Machine, path: &str) -> io::Result<IdentityStepOutcome> {
    Ok(if remove(&at(machine, path))? {
        IdentityStepOutcome::Repaired
    } else {
        IdentityStepOutcome::NotApplicable
    })
}

/// Removes a file; `false` when there was none.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `8-4-4-4-12`, as the kernel writes ids.
fn dashed(id: &str) -> String {
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    let parts = parts.map(|(from, to)| id.get(from..to).unwrap_or_default());
    parts.join("-")
}

#[cfg(test)]
mod tests;
