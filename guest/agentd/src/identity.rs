//! Giving a guest an identity of its own.
//!
//! Guests of one image start from one memory and one disk: without this they would share the
//! machine's id, the boot's id, the host name and the seed of randomness. It runs once, at the
//! winning run hook, and again whenever the host gives a guest that was copied a new identity. A
//! step that fails fails alone: a guest with a shared id is reported, not refused.
//!
//! What it changes belongs to the whole machine, so it only ever runs as the first process of one.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use agentd_protocol::IdentityStep;
use agentd_protocol::IdentityStepOutcome;
use nix::mount::MsFlags;
use nix::mount::mount;
use nix::sys::time::TimeSpec;
use nix::time::ClockId;
use nix::time::clock_settime;
use sha2::Digest;
use sha2::Sha256;

use crate::supervise::stir_randomness;

/// Digits of the fresh id that the host name takes.
const HOSTNAME_DIGITS: usize = 12;

/// A clock that is closer to the host's is left alone: a request takes a moment, and programs
/// suffer more from a jump than from a second.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

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
    /// Mixes bytes into the kernel's randomness.
    fn stir(&self, bytes: &[u8]) -> io::Result<()>;
    /// The time, since the epoch.
    fn time(&self) -> Duration;
    /// Sets the clock.
    fn set_time(&self, since_epoch: Duration) -> io::Result<()>;
    /// Its name.
    fn hostname(&self) -> io::Result<String>;
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

    fn stir(&self, bytes: &[u8]) -> io::Result<()> {
        stir_randomness(bytes)
    }

    fn time(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default()
    }

    fn set_time(&self, since_epoch: Duration) -> io::Result<()> {
        let time = TimeSpec::from_duration(since_epoch);
        Ok(clock_settime(ClockId::CLOCK_REALTIME, time)?)
    }

    fn hostname(&self) -> io::Result<String> {
        let name = nix::unistd::gethostname()?;
        name.into_string()
            .map_err(|_| io::ErrorKind::InvalidData.into())
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
mod tests {
    use std::cell::Cell;
    use std::cell::RefCell;

    use super::*;

    struct Model {
        root: tempfile::TempDir,
        random: bool,
        hostname: RefCell<Option<String>>,
        covered: RefCell<Vec<PathBuf>>,
        stirred: RefCell<Vec<u8>>,
        time: Cell<Duration>,
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
                stirred: RefCell::default(),
                time: Cell::new(Duration::from_secs(1000)),
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

        fn stir(&self, bytes: &[u8]) -> io::Result<()> {
            self.stirred.borrow_mut().extend_from_slice(bytes);
            Ok(())
        }

        fn time(&self) -> Duration {
            self.time.get()
        }

        fn set_time(&self, since_epoch: Duration) -> io::Result<()> {
            self.time.set(since_epoch);
            Ok(())
        }

        fn hostname(&self) -> io::Result<String> {
            Ok("parent".into())
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

    fn fresh(entropy: u8) -> Fresh {
        Fresh {
            entropy: vec![entropy; 32],
            machine_id: None,
            hostname: None,
            boot_id: None,
            since_epoch: None,
        }
    }

    #[test]
    fn copies_of_one_machine_differ_by_the_hosts_randomness_alone() {
        let ids = [1, 2].map(|entropy| {
            let model = Model::new();
            let renewed = renew(&model, &fresh(entropy));
            assert!(!renewed.is_degraded());
            assert_eq!(*model.stirred.borrow(), vec![entropy; 32]);
            model.read("etc/machine-id").unwrap()
        });
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| id.len() == 33), "{ids:?}");
    }

    #[test]
    fn a_new_identity_is_what_the_host_says_in_every_file_that_names_the_machine() {
        let model = Model::new();
        model.write("etc/machine-id", "shared\n");
        model.write("etc/hostname", "parent\n");
        model.write(
            "etc/hosts",
            "127.0.0.1\tlocalhost parent\n::1 parents parent\n",
        );
        model.write("proc/sys/kernel/random/boot_id", "shared\n");
        let mut asked = fresh(1);
        asked.machine_id = Some("cd".repeat(16));
        asked.hostname = Some("child".into());
        asked.boot_id = Some("of-this-boot".into());
        asked.since_epoch = Some(Duration::from_millis(5_000_250));
        let renewed = renew(&model, &asked);
        assert!(!renewed.is_degraded(), "{renewed:?}");
        let names: Vec<&str> = outcomes(&renewed).into_iter().map(|step| step.0).collect();
        let expected = [
            "entropy",
            "machine-id",
            "hostname",
            "boot-id",
            "random-seed",
            "cached-credential",
            "clock",
        ];
        assert_eq!(names, expected);
        let line = |path| model.read(path).unwrap();
        assert_eq!(line("etc/machine-id"), format!("{}\n", "cd".repeat(16)));
        assert_eq!(line("etc/hostname"), "child\n");
        assert_eq!(
            line("etc/hosts"),
            "127.0.0.1\tlocalhost child\n::1 parents child\n"
        );
        assert_eq!(line("run/agentd-boot-id"), "of-this-boot\n");
        assert_eq!(model.hostname.borrow().as_deref(), Some("child"));
        assert_eq!(model.time.get(), Duration::from_millis(5_000_250));
    }

    #[test]
    fn a_clock_that_is_nearly_right_is_left_alone() {
        let model = Model::new();
        let mut asked = fresh(1);
        asked.since_epoch = Some(Duration::from_millis(1_000_900));
        let clock = renew(&model, &asked).steps.pop().unwrap();
        assert_eq!(clock.outcome, IdentityStepOutcome::NotApplicable);
        assert_eq!(model.time.get(), Duration::from_secs(1000));
    }
}
