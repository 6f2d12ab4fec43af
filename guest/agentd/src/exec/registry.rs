//! Which execs there are. One id is one exec: asking again finds it, it never starts a second.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use agentd_protocol::ExecId;
use agentd_protocol::Procs;
use agentd_protocol::Slug;
use agentd_protocol::StartRequest;
use agentd_protocol::limits::HOLD_BYTES_MAX;
use tokio::time::Instant;

use super::Exec;
use super::ImageEnvironment;
use super::Output;
use super::Refusal;
use super::check_shape;
use super::drive::Drivers;
use super::drive::drive;
use super::plan;
use crate::settings::Settings;
use crate::supervise::ProcessTable;

/// How often acknowledged execs are looked through for old ones.
const COLLECT_INTERVAL: Duration = Duration::from_secs(30);

/// A clock that jumps, as it does for a copy of a guest, takes one of these from a hold's time.
const HOLD_TICK: Duration = Duration::from_millis(100);

/// All execs of this guest.
#[derive(Debug)]
pub(crate) struct Registry {
    settings: Rc<Settings>,
    image: ImageEnvironment,
    drivers: Rc<Drivers>,
    execs: RefCell<HashMap<ExecId, Rc<Exec>>>,
    begun: Cell<u64>,
    holds: Cell<u64>,
}

impl Registry {
    pub(crate) fn new(
        settings: Rc<Settings>,
        image: ImageEnvironment,
        drivers: Rc<Drivers>,
    ) -> Self {
        Self {
            settings,
            image,
            drivers,
            execs: RefCell::default(),
            begun: Cell::new(0),
            holds: Cell::new(0),
        }
    }

    /// Finds or begins the exec that a request names. It is registered when this returns, so that
    /// a reader can attach before the first byte; whether it runs is [`Exec::started`]'s answer.
    pub(crate) fn begin(
        self: &Rc<Self>,
        request: &StartRequest,
        launch: &BTreeMap<String, String>,
    ) -> Result<Rc<Exec>, Refusal> {
        check_shape(request)?;
        if let Some(known) = self.execs.borrow().get(&request.exec_id) {
            return Ok(Rc::clone(known));
        }
        let base = plan::Base {
            settings: &self.settings,
            image: &self.image,
            launch,
        };
        let command = plan::command(request, &base)?;
        let terms = plan::terms(request, &self.settings);
        let settings = &self.settings;
        let policy_max = plan::policy(request).and_then(|policy| policy.max_output_bytes);
        let output_max = policy_max.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        });
        let output_max = settings.output_bytes_max.min(output_max);
        let output = match request.x.as_ref().and_then(|x| x.hold_bytes) {
            Some(bytes) => {
                let bytes = bytes.clamp(1, HOLD_BYTES_MAX);
                Output::held(usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            None => Output::new(settings.stream_buffer_bytes, output_max),
        };
        let number = self.begun.get();
        self.begun.set(number + 1);
        let mut exec = Exec::new(request.exec_id.clone(), number, terms, output);
        exec.enforcement = command
            .confinement
            .as_ref()
            .map(|confinement| Box::new(confinement.report.clone()));
        let exec = Rc::new(exec);
        self.execs
            .borrow_mut()
            .insert(request.exec_id.clone(), Rc::clone(&exec));
        let registry = Rc::clone(self);
        let begun = Rc::clone(&exec);
        // A task of its own: a caller that goes away must not leave half an exec behind.
        tokio::task::spawn_local(async move {
            let id = begun.id.clone();
            if !drive(begun, command, Rc::clone(&registry.drivers)).await {
                registry.execs.borrow_mut().remove(&id);
            }
        });
        Ok(exec)
    }

    /// The exec with this id. One that is still being started is not known yet, unless the caller
    /// waits for it.
    pub(crate) async fn find(&self, id: &ExecId) -> Result<Rc<Exec>, Refusal> {
        let unknown = || Refusal::new(Slug::UnknownExec, id.as_str());
        let found = self
            .execs
            .borrow()
            .get(id)
            .map(Rc::clone)
            .ok_or_else(unknown)?;
        found.started().await.map_err(|_| unknown())?;
        Ok(found)
    }

    /// How many execs are registered, and whether some has no result yet.
    pub(crate) fn activity(&self) -> (usize, bool) {
        (self.execs.borrow().len(), self.running() > 0)
    }

    /// Holds the output of every exec that is being followed, for readers that are about to lose
    /// their connections and come back. Returns for how many execs.
    ///
    /// Time counts while the guest runs: one that is frozen, or copied and started days later, has
    /// as much left as it had.
    pub(crate) fn hold_followed(self: &Rc<Self>, time: Duration) -> usize {
        let number = self.holds.get() + 1;
        self.holds.set(number);
        let held: Vec<Rc<Exec>> = self
            .execs
            .borrow()
            .values()
            .filter(|exec| exec.output.borrow_mut().hold(number))
            .cloned()
            .collect();
        let count = held.len();
        if count > 0 {
            tokio::task::spawn_local(async move {
                let ticks = time.as_millis() / HOLD_TICK.as_millis();
                for _ in 0..ticks {
                    tokio::time::sleep(HOLD_TICK).await;
                }
                for exec in held {
                    exec.output.borrow_mut().release(number);
                    exec.room_made.notify_one();
                }
            });
        }
        count
    }

    /// Execs that have no result yet.
    pub(crate) fn running(&self) -> usize {
        let execs = self.execs.borrow();
        let running = |exec: &&Rc<Exec>| exec.output.borrow().exit().is_none();
        execs.values().filter(running).count()
    }

    /// The account of processes: every exec that started, in the order of the starts.
    pub(crate) fn procs(&self) -> Procs {
        let table = ProcessTable::read();
        let mut execs: Vec<Rc<Exec>> = self.execs.borrow().values().cloned().collect();
        execs.sort_unstable_by_key(|exec| exec.number);
        Procs {
            procs: execs.iter().map(|exec| exec.proc_group(&table)).collect(),
        }
    }

    /// Forgets acknowledged execs after their time, for as long as the daemon lives.
    pub(crate) async fn collect_for_ever(self: Rc<Self>) {
        let mut ticks = tokio::time::interval(COLLECT_INTERVAL);
        loop {
            ticks.tick().await;
            self.collect(Instant::now());
        }
    }

    /// Forgets execs that were acknowledged long before `now`. One that was not is never forgotten.
    fn collect(&self, now: Instant) {
        let ttl = self.settings.exec_ttl;
        let old = |at: Instant| now.saturating_duration_since(at) >= ttl;
        self.execs
            .borrow_mut()
            .retain(|_, exec| !exec.acked_at.get().is_some_and(old));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Terms;
    use crate::supervise::SpawnContext;

    #[test]
    fn only_acknowledged_execs_are_forgotten_and_only_after_their_time() {
        let settings = Rc::new(Settings::default());
        let context = SpawnContext::prepare().unwrap();
        let image = ImageEnvironment::default();
        let reaper = Rc::default();
        let drivers = Rc::new(Drivers { context, reaper });
        let registry = Registry::new(Rc::clone(&settings), image, drivers);
        let acked_at = Instant::now();
        for (name, acked) in [("acked", true), ("waiting", false)] {
            let id = ExecId::new(name).unwrap();
            let request = StartRequest::new(id.clone(), ["true"]);
            let terms: Terms = plan::terms(&request, &settings);
            let exec = Exec::new(id.clone(), 0, terms, Output::new(1, 1));
            exec.acked_at.set(acked.then_some(acked_at));
            registry.execs.borrow_mut().insert(id, Rc::new(exec));
        }
        registry.collect(acked_at + settings.exec_ttl - Duration::from_secs(1));
        assert_eq!(registry.activity().0, 2);
        registry.collect(acked_at + settings.exec_ttl);
        let left: Vec<String> = registry
            .execs
            .borrow()
            .keys()
            .map(ExecId::to_string)
            .collect();
        assert_eq!(left, ["waiting"]);
    }
}
