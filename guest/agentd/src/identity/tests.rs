//! Identity, over a model of a machine.

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
