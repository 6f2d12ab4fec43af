//! What a report comes to, in a word and in a sentence.

use fluxvm_verify::Fault;
use fluxvm_verify::FaultCode;
use fluxvm_verify::Report;
use fluxvm_verify::Scope;

use crate::render::count;

/// What it all comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Sound, and signed for.
    Ok,
    /// Sound in itself, and the caller asked for no signature.
    Unsigned,
    /// Nothing is wrong, but what was held against it takes a proof that was not given.
    NotProven,
    /// There are faults.
    Broken,
}

impl Verdict {
    pub(super) fn of(report: &Report) -> Verdict {
        let unproven = |fault: &Fault| fault.code == FaultCode::AgainstUnproven;
        match (report.is_clean(), report.is_signed()) {
            (true, true) => Verdict::Ok,
            (true, false) => Verdict::Unsigned,
            (false, _) if report.faults.iter().all(unproven) => Verdict::NotProven,
            (false, _) => Verdict::Broken,
        }
    }

    /// As programs read it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Unsigned => "unsigned",
            Verdict::NotProven => "not_proven",
            Verdict::Broken => "broken",
        }
    }
}

/// The last line for people.
pub(super) fn verdict(report: &Report) -> String {
    let between = match report.scope {
        Some(Scope::OneStream(_)) => "the stream's versions follow one another without a gap",
        _ => "the chain has no gap from the first event to the head",
    };
    match Verdict::of(report) {
        Verdict::Ok => format!("OK: every event is what was hashed, and {between}."),
        Verdict::Unsigned => unsigned(report),
        Verdict::NotProven => {
            "NOT PROVEN: the export holds together, but not that it is of a ledger that goes \
            through the checkpoint. Pass the proof that is named above as --consistency."
                .to_owned()
        }
        Verdict::Broken => broken(report),
    }
}

fn unsigned(report: &Report) -> String {
    let binds = match report.held {
        Some(held) => format!("nothing binds this to the ledger behind event {held}"),
        None => "nothing binds this to the ledger".to_owned(),
    };
    format!(
        "UNSIGNED: {binds}. The hashes fit together, which whoever wrote the file can bring about."
    )
}

fn broken(report: &Report) -> String {
    let total = usize::try_from(report.faults_total).unwrap_or(usize::MAX);
    let listed = report.faults.len();
    let more = if listed < total {
        format!(" ({listed} of them listed)")
    } else {
        String::new()
    };
    format!("BROKEN: {}{more}.", count(total, "fault"))
}
