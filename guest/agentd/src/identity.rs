//! Giving a guest an identity of its own.
//!
//! Guests of one image start from one memory and one disk: without this they would share the
//! machine's id, the boot's id, the host name and the seed of randomness. It runs once, at the
//! winning run hook, and a step that fails fails alone: a guest with a shared id is reported, not
//! refused.
//!
//! What it changes belongs to the whole machine, so it only ever runs as the first process of one.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use agentd_protocol::IdentityStep;
use agentd_protocol::IdentityStepOutcome;
use nix::mount::MsFlags;
use nix::mount::mount;

/// Digits of the fresh id that the host name takes.
const HOSTNAME_DIGITS: usize = 12;

/// What identity repair needs of a machine.
pub(crate) trait Machine {
    /// The root of its files.
    fn root(&self) -> &Path;
    /// Fills a buffer with randomness.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
    /// Names the machine.
    fn set_hostname(&self, name: &str) -> io::Result<()>;
    /// Has `source` seen in the place of `target`.
    fn cover(&self, target: &Path, source: &Path) -> io::Result<()>;
}

/// The machine that this process is the first of.
#[derive(Debug)]
pub(crate) struct OwnMachine;

impl Machine for OwnMachine {
    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
    }

    fn set_hostname(&self, name: &str) -> io::Result<()> {
        Ok(nix::unistd::sethostname(name)?)
    }

    fn cover(&self, target: &Path, source: &Path) -> io::Result<()> {
        let none: Option<&str> = None;
        Ok(mount(Some(source), target, none, MsFlags::MS_BIND, none)?)
    }
}

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

/// Does every step.
pub(crate) fn repair(machine: &impl Machine) -> Repair {
    let mut bytes = [0; 16];
    let minted = machine.random(&mut bytes).map(|()| hexadecimal(&bytes));
    let with_id = |step: &dyn Fn(&str) -> io::Result<IdentityStepOutcome>| match &minted {
        Ok(id) => step(id),
        Err(error) => Err(io::Error::other(format!("there is no fresh id: {error}"))),
    };
    let steps = [
        ("machine-id", with_id(&|id| write_machine_id(machine, id))),
        ("hostname", with_id(&|id| name_host(machine, id))),
        ("boot-id", with_id(&|id| cover_boot_id(machine, id))),
        (
            "random-seed",
            forget(machine, "var/lib/systemd/random-seed"),
        ),
        (
            "cached-credential",
            forget(machine, "var/lib/dbus/machine-id"),
        ),
    ];
    let steps = steps.map(|(name, done)| {
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
        steps: steps.into(),
    }
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

fn name_host(machine: &impl Machine, id: &str) -> io::Result<IdentityStepOutcome> {
    let digits = id.get(..HOSTNAME_DIGITS).unwrap_or(id);
    machine.set_hostname(&format!("microvm-{digits}"))?;
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
    writeln!(file, "{}", dashed(id))?;
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
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Model {
        root: tempfile::TempDir,
        random: bool,
        hostname: RefCell<Option<String>>,
        covered: RefCell<Vec<PathBuf>>,
    }

    impl Model {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            for folder in ["etc", "run", "var/lib/systemd", "var/lib/dbus"] {
                fs::create_dir_all(root.path().join(folder)).unwrap();
            }
            Self {
                root,
                random: true,
                hostname: RefCell::default(),
                covered: RefCell::default(),
            }
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, path: &str) -> Option<String> {
            fs::read_to_string(self.root.path().join(path)).ok()
        }
    }

    impl Machine for Model {
        fn root(&self) -> &Path {
            self.root.path()
        }

        fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
            bytes.fill(0xab);
            if self.random {
                Ok(())
            } else {
                Err(io::ErrorKind::Unsupported.into())
            }
        }

        fn set_hostname(&self, name: &str) -> io::Result<()> {
            *self.hostname.borrow_mut() = Some(name.to_owned());
            Ok(())
        }

        fn cover(&self, target: &Path, _source: &Path) -> io::Result<()> {
            self.covered.borrow_mut().push(target.to_owned());
            Ok(())
        }
    }

    fn outcomes(repair: &Repair) -> Vec<(&str, IdentityStepOutcome)> {
        let steps = repair.steps.iter();
        steps
            .map(|step| (step.name.as_str(), step.outcome))
            .collect()
    }

    #[test]
    fn every_shared_id_is_replaced_and_every_seed_forgotten() {
        use IdentityStepOutcome::Repaired;
        let model = Model::new();
        model.write("etc/machine-id", "shared\n");
        model.write("proc/sys/kernel/random/boot_id", "shared\n");
        model.write("var/lib/systemd/random-seed", "shared");
        model.write("var/lib/dbus/machine-id", "shared");
        let repair = repair(&model);
        assert!(!repair.is_degraded());
        let names = [
            "machine-id",
            "hostname",
            "boot-id",
            "random-seed",
            "cached-credential",
        ];
        assert_eq!(outcomes(&repair), names.map(|name| (name, Repaired)));
        let id = "ab".repeat(16);
        assert_eq!(model.read("etc/machine-id"), Some(format!("{id}\n")));
        assert_eq!(
            model.hostname.borrow().as_deref(),
            Some("microvm-abababababab")
        );
        assert_eq!(
            model.read("run/agentd-boot-id").as_deref(),
            Some("abababab-abab-abab-abab-abababababab\n")
        );
        assert_eq!(model.covered.borrow().len(), 1);
        assert_eq!(model.read("var/lib/systemd/random-seed"), None);
        assert_eq!(model.read("var/lib/dbus/machine-id"), None);
    }

    #[test]
    fn what_is_not_there_does_not_apply_and_without_randomness_only_ids_fail() {
        use IdentityStepOutcome::{Failed, NotApplicable, Repaired};
        let mut model = Model::new();
        let found = repair(&model);
        let after_two = [NotApplicable; 3];
        let outcome = |repair: &Repair| repair.steps.iter().map(|s| s.outcome).collect::<Vec<_>>();
        assert_eq!(outcome(&found)[2..], after_two);
        model.random = false;
        model.write("var/lib/dbus/machine-id", "shared");
        let found = repair(&model);
        assert!(found.is_degraded());
        assert_eq!(
            outcome(&found),
            [Failed, Failed, Failed, NotApplicable, Repaired]
        );
    }
}
