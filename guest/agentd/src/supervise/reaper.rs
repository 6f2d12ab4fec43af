//! The duty of PID 1: whoever ends below it is reaped, known or not.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;
use std::rc::Weak;

use libc::pid_t;
use tokio::signal::unix::Signal;

use super::Family;
use super::Fate;
use super::system::reap_one;

/// Fates of unknown children kept for a family that registers a moment too late.
const RECENT_MAX: usize = 256;

/// Reaps every child of this process and tells the families concerned.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    families: RefCell<HashMap<pid_t, Weak<Family>>>,
    recent: RefCell<VecDeque<(pid_t, Fate)>>,
}

impl Reaper {
    /// Has a family told of its supervisor's and its leader's end, if that falls to this process.
    pub(crate) fn register(&self, family: &Rc<Family>) {
        let pids = [family.supervisor(), family.leader()];
        for pid in pids {
            self.families
                .borrow_mut()
                .insert(pid, Rc::downgrade(family));
        }
        self.recent.borrow_mut().retain(|&(pid, fate)| {
            let ours = pids.contains(&pid);
            if ours {
                self.families.borrow_mut().remove(&pid);
                family.note_reaped(pid, fate);
            }
            !ours
        });
    }

    /// Reaps whoever has ended.
    pub(crate) fn reap_all(&self) {
        while let Some((pid, fate)) = reap_one() {
            let family = self.families.borrow_mut().remove(&pid);
            match family.and_then(|family| family.upgrade()) {
                Some(family) => {
                    family.note_reaped(pid, fate);
                    if family.has_ended() {
                        // Its supervisor reaped the leader, whose pid may be anybody's now.
                        self.families.borrow_mut().remove(&family.leader());
                    }
                }
                None => {
                    let mut recent = self.recent.borrow_mut();
                    if recent.len() == RECENT_MAX {
                        recent.pop_front();
                    }
                    recent.push_back((pid, fate));
                }
            }
        }
    }

    /// Reaps for as long as this process lives.
    pub(crate) async fn run(self: Rc<Self>, mut child_exited: Signal) {
        loop {
            self.reap_all();
            if child_exited.recv().await.is_none() {
                return;
            }
        }
    }
}
