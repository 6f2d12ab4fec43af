//! Trying what this host can do, before anything is claimed.

use super::create::{self, Basis};
use super::engine::Engine;
use super::wire::{LaunchFacts, Lower};
use crate::error::{CreateError, ProbeError, SnapshotError};
use crate::layers::{Entry, LayerPath, LayerRef, Node, Published};
use crate::spec::{SandboxId, SandboxSpec};

/// The version of Landlock from which on the right to write a file is whole: before it, a file could be
/// emptied without it.
const LANDLOCK_ABI_MIN: u32 = 3;

impl Engine {
    /// Makes a trial sandbox and writes down what it had to do without. A full disk is written down
    /// too: whoever has to delete something needs a daemon for it.
    pub(super) fn prove(&mut self) -> Result<(), ProbeError> {
        let host_root = match self.trial(self.host_root(), Vec::new()) {
            Ok(facts) => {
                self.note(&facts);
                return Ok(());
            }
            Err(error) if error.is_out_of_space() => {
                self.note_no_space(&error);
                return Ok(());
            }
            Err(error) => error,
        };
        // Without the host's root, images may still do: this host is then good for those. The
        // images folder is an image enough to try.
        let image = self.trial(Ok(self.images_as_an_image()), Vec::new());
        if matches!(&image, Err(error) if !error.is_out_of_space()) {
            return Err(ProbeError::Trial(host_root));
        }
        self.capabilities.host_root_writable = false;
        self.capabilities
            .degraded
            .push(format!("only named images can be used: {host_root}"));
        self.no_host_root = Some(host_root.to_string());
        match image {
            Ok(facts) => self.note(&facts),
            Err(error) => self.note_no_space(&error),
        }
        Ok(())
    }

    /// What was not tried is not claimed.
    fn note_no_space(&mut self, error: &CreateError) {
        tracing::warn!(%error, "no trial sandbox could be made: going on without");
        self.capabilities.host_root_writable = false;
        self.capabilities.degraded.push(format!(
            "the trial sandbox could not be made: no space ({error}); delete sessions or free space"
        ));
    }

    /// Makes a sandbox on this much, as far as its guest daemon, and removes it again.
    fn trial(
        &self,
        lower: Result<(String, Lower), CreateError>,
        layers: Vec<LayerRef>,
    ) -> Result<LaunchFacts, CreateError> {
        let spec = SandboxSpec::new(SandboxId::random());
        let mut basis = Basis::image(self.with_skeleton(lower?)?);
        basis.layers = layers;
        let started = create::start(self, &spec, basis, true)?;
        let facts = started.facts().clone();
        started.discard();
        Ok(facts)
    }

    /// Makes a layer with one of everything that is not a file, and a trial sandbox on it: what
    /// works then is what is claimed.
    pub(super) fn prove_snapshots(&mut self) {
        if !self.tried {
            return;
        }
        let proven = self.trial_layer().and_then(|published| {
            let lower = match &self.no_host_root {
                None => self.host_root(),
                Some(_) => Ok(self.images_as_an_image()),
            };
            let trial = self.trial(lower, vec![published.layer]);
            trial.map(drop).map_err(|error| error.to_string())
        });
        let capabilities = &mut self.capabilities;
        match proven {
            Ok(()) => {
                capabilities.snapshot = true;
                capabilities.restore = true;
                capabilities.fork = true;
                capabilities.memory_checkpoint = self.criu.is_ok();
                capabilities.memory_checkpoint_reason = self.criu.clone().err();
            }
            Err(why) => {
                let sentence = format!("no snapshots can be taken: {why}");
                capabilities.memory_checkpoint_reason = Some(sentence.clone());
                capabilities.degraded.push(sentence);
                self.no_snapshots = Some(why);
            }
        }
    }

    fn trial_layer(&self) -> Result<Published, String> {
        let text = |error: SnapshotError| error.to_string();
        let mut draft = self
            .store
            .draft(self.owners(), self.attributes())
            .map_err(text)?;
        let mut hiding = draft.plain_folder();
        hiding.node = Node::Folder { opaque: true };
        let link = Node::Link {
            target: LayerPath::from("nowhere"),
        };
        let mut pointing = draft.plain_folder();
        pointing.node = link;
        draft.add(LayerPath::root(), draft.plain_folder());
        draft.add(LayerPath::from("workspace"), hiding);
        draft.add(LayerPath::from("workspace/gone"), Entry::whiteout(None));
        draft.add(LayerPath::from("workspace/link"), pointing);
        self.store.publish(draft).map_err(text)
    }

    fn images_as_an_image(&self) -> (String, Lower) {
        let lower = Lower::Image(self.options.images_dir.clone());
        (self.image_skeleton.clone(), lower)
    }

    fn note(&mut self, facts: &LaunchFacts) {
        self.tried = true;
        let degraded = &mut self.capabilities.degraded;
        if let Some(why) = &facts.owners_not_shifted {
            self.capabilities.host_root_writable = false;
            degraded.push(format!(
                "files from below belong to nobody inside and cannot be changed ({why})"
            ));
        }
        if let Some(why) = &facts.no_sysfs {
            degraded.push(format!("/sys is empty inside ({why})"));
        }
        let confines = facts.landlock_abi >= LANDLOCK_ABI_MIN && facts.seccomp;
        self.capabilities.landlock_abi = facts.landlock_abi;
        self.capabilities.confinement = confines;
        self.capabilities.exec_allowlist = confines;
        if !confines {
            degraded.push(format!(
                "commands cannot be confined to files or programs: Landlock is at version {} (needed: \
                 {LANDLOCK_ABI_MIN}), call filters {}",
                facts.landlock_abi,
                if facts.seccomp { "are there" } else { "are not there" },
            ));
        }
        if !facts.missing_devices.is_empty() {
            degraded.push(format!(
                "missing inside: {}",
                facts.missing_devices.join(", ")
            ));
        }
        if let Some(left_out) = self
            .plan
            .as_ref()
            .map(|plan| plan.left_out)
            .filter(|n| *n > 0)
        {
            degraded.push(format!(
                "{left_out} of the host's folders are not seen inside"
            ));
        }
    }
}
