//! Whether sessions were ever let have more than their budgets, worked out of their events alone.
//!
//! A budget is kept by reserving: a command that starts counts at once, with the time that it was let
//! have, until it is known how long it took. So each start can be held against what had been given out
//! before it, by someone who was not there and trusts nobody.
//!
//! A budget binds the session that it was given to, and that session together with every one that was
//! forked from it: children share what is left. The second needs the whole ledger; the export of one
//! session shows the first.

mod said;
mod totals;

use std::collections::HashMap;

use said::Limits;
use serde::Deserialize;
use totals::Change;
use totals::Run;
use totals::Totals;
use totals::Whose;

use super::FaultCode;
use crate::EventId;
use crate::RecordedEvent;
use crate::StreamName;

/// A limit of a session's budget, and how much of it was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetUse {
    /// The session's stream.
    pub stream: StreamName,
    /// The limit's name in the budget.
    pub name: &'static str,
    /// The limit; those in seconds are given in milliseconds.
    pub limit: u64,
    /// The most that was used or reserved of it at any time, in the same unit. It can be more than a
    /// limit on tokens or cost, or on time with `on_exhaust: refuse-next`: these refuse the next command.
    pub most: u64,
}

/// A fault, without the place where it shows.
pub(super) type Finding = (FaultCode, String);

/// The sessions that have a budget, as far as their events were seen.
#[derive(Default)]
pub(super) struct Budgets {
    accounts: HashMap<StreamName, Account>,
}

struct Account {
    limits: Limits,
    own: Totals,
    /// Of the session and of all that were forked from it.
    family: Totals,
    /// Others with a budget were forked from it.
    shared: bool,
    /// The oldest of its ancestors that is here, if it has one.
    root: Option<StreamName>,
    open: HashMap<EventId, Run>,
    /// By the limit's place in the list of measures.
    most: Vec<(&'static str, u64, u64)>,
}

impl Account {
    fn new(limits: Limits, root: Option<StreamName>) -> Account {
        Account {
            limits,
            own: Totals::default(),
            family: Totals::default(),
            shared: false,
            root,
            open: HashMap::new(),
            most: Vec::new(),
        }
    }

    /// Notes the highest use, and names the limits that are passed.
    fn hold(&mut self, whose: Whose, starts: bool, found: &mut Vec<Finding>) {
        let totals = match whose {
            Whose::Own => &self.own,
            Whose::Family => &self.family,
        };
        for measure in totals.measures(&self.limits, whose) {
            let (name, limit, used) = (measure.name, measure.limit, measure.used);
            match self.most.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, _, most)) => *most = used.max(*most),
                None => self.most.push((name, limit, used)),
            }
            let passed = if measure.needs_rest {
                starts && used >= limit
            } else {
                used > limit
            };
            if passed {
                let whom = match whose {
                    Whose::Own => "the session",
                    Whose::Family => "the session with those forked from it",
                };
                let unit = if name.ends_with("_seconds") {
                    " ms"
                } else {
                    ""
                };
                let detail =
                    format!("{name} is {limit}{unit}, and {whom} is let have {used}{unit}");
                found.push((FaultCode::BudgetExceeded, detail));
            }
        }
    }
}

impl Budgets {
    /// Takes the next event in, and says what is wrong with it.
    pub(super) fn take(&mut self, event: &RecordedEvent) -> Vec<Finding> {
        let mut found = Vec::new();
        let kind = event.header.kind.as_str();
        let outcome = match kind {
            "session.create.started" => self.ask(event),
            "session.create" => self.create(event),
            // All that it said is erased, its budget too.
            "session.erased" => {
                self.accounts.remove(&event.header.stream);
                Ok(())
            }
            _ => self.count(event, kind, &mut found),
        };
        if let Err(error) = outcome {
            found.push((FaultCode::BudgetForm, error.to_string()));
        }
        found
    }

    /// How much of each limit was given out, by session.
    pub(super) fn into_uses(self) -> Vec<BudgetUse> {
        let uses = self.accounts.into_iter().flat_map(|(stream, account)| {
            let of_limit = move |(name, limit, most)| BudgetUse {
                stream: stream.clone(),
                name,
                limit,
                most,
            };
            account.most.into_iter().map(of_limit)
        });
        let mut uses: Vec<BudgetUse> = uses.collect();
        uses.sort_by(|a, b| (&a.stream, a.name).cmp(&(&b.stream, b.name)));
        uses
    }

    fn ask(&mut self, event: &RecordedEvent) -> serde_json::Result<()> {
        let Some(asked) = said::<said::Asked>(event)? else {
            return Ok(());
        };
        if let Some(limits) = asked.budget {
            self.open(event, limits, None);
        }
        Ok(())
    }

    fn create(&mut self, event: &RecordedEvent) -> serde_json::Result<()> {
        let created = said::<said::Created>(event)?.and_then(|created| created.forked);
        let Some(forked) = created else {
            return Ok(());
        };
        if let Some(limits) = forked.asked.budget {
            let parent = StreamName::parse(&format!("session/{}", forked.origin.parent)).ok();
            let root = parent.and_then(|parent| {
                let account = self.accounts.get(&parent)?;
                Some(account.root.clone().unwrap_or(parent))
            });
            if let Some(account) = root.as_ref().and_then(|root| self.accounts.get_mut(root)) {
                account.shared = true;
            }
            self.open(event, limits, root);
        }
        Ok(())
    }

    fn open(&mut self, event: &RecordedEvent, limits: Limits, root: Option<StreamName>) {
        let mut account = Account::new(limits, root);
        // So that a limit that nothing was used of is named too.
        account.hold(Whose::Own, false, &mut Vec::new());
        self.accounts
            .entry(event.header.stream.clone())
            .or_insert(account);
    }

    fn count(
        &mut self,
        event: &RecordedEvent,
        kind: &str,
        found: &mut Vec<Finding>,
    ) -> serde_json::Result<()> {
        let Some(account) = self.accounts.get_mut(&event.header.stream) else {
            return Ok(());
        };
        let Some(change) = account.change(event, kind)? else {
            return Ok(());
        };
        let starts = matches!(change, Change::Start(_));
        account.own.add(change);
        account.hold(Whose::Own, starts, found);
        let root = match account.root.clone() {
            Some(root) => self.accounts.get_mut(&root),
            None => Some(account),
        };
        if let Some(root) = root {
            root.family.add(change);
            if root.shared {
                root.hold(Whose::Family, starts, found);
            }
        }
        Ok(())
    }
}

impl Account {
    fn change(&mut self, event: &RecordedEvent, kind: &str) -> serde_json::Result<Option<Change>> {
        Ok(match kind {
            "exec.started" | "job.start" => {
                let granted = said::<said::Started>(event)?.and_then(|it| it.timeout_ms);
                let run = if kind == "job.start" {
                    Run::Job(granted)
                } else {
                    Run::Exec(granted)
                };
                self.open.insert(event.header.event_id, run);
                Some(Change::Start(run))
            }
            "fork" | "session.branch_child" => {
                said::<said::Children>(event)?.map(|it| Change::Children(it.count))
            }
            "usage.report" => said::<said::Reported>(event)?.map(|used| Change::Usage {
                input_tokens: used.input_tokens,
                output_tokens: used.output_tokens,
                cost_microusd: used.cost_microusd,
            }),
            // Whatever names a start as its cause and ends it.
            "exec" | "job.exit" => match self.closed(event) {
                Some(run) => {
                    let took = said::<said::Ended>(event)?.map(|it| it.duration_ms);
                    Some(Change::End(run, took))
                }
                None => None,
            },
            "exec.failed" | "job.failed" | "lifecycle.interrupted" => {
                self.closed(event).map(|run| Change::End(run, None))
            }
            _ => None,
        })
    }

    fn closed(&mut self, event: &RecordedEvent) -> Option<Run> {
        self.open.remove(&event.header.causation_id?)
    }
}

/// What a payload says, unless it is erased.
fn said<'a, T: Deserialize<'a>>(event: &'a RecordedEvent) -> serde_json::Result<Option<T>> {
    event
        .payload_bytes()
        .map(serde_json::from_slice)
        .transpose()
}
