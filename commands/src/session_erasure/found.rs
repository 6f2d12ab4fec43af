//! Keys that were destroyed by nobody who asked.
//!
//! Whoever may write to the keys' folder can erase a session without the daemon. That cannot be undone, and
//! must not go unsaid: the start that finds it records it, once.

use fluxvm_eventstore::Append;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::StreamAppend;
use fluxvm_projections::Event;
use fluxvm_projections::LedgerKeyFoundDestroyed;
use fluxvm_projections::SessionId;
use uuid::Uuid;

use crate::book;
use crate::book::Entry;
use crate::engine::Inner;
use crate::engine::system;
use crate::error::CommandError;
use crate::holds::ledger_stream;

/// What a session's id becomes the id of this command by, so that it is recorded once.
const COMMAND: u128 = 0x6b65_795f_666f_756e_645f_6465_7374_726f;

/// Records each key that the ledger found to be destroyed.
pub(crate) async fn record(inner: &Inner) -> Result<(), CommandError> {
    let found = inner.book.ledger().info().keys_found_destroyed;
    for session in found.iter().filter_map(SessionId::of_stream) {
        let caller = system("recovery")?;
        let hold = inner.book.world().holds.covering(Some(session)).cloned();
        let hold = hold.map(|hold| hold.seq);
        let event = Event::LedgerKeyFoundDestroyed(LedgerKeyFoundDestroyed { session, hold });
        let append = Append {
            command_id: CommandId::new(Uuid::from_u128(session.0.as_u128() ^ COMMAND)),
            correlation_id: caller.request,
            actor: caller.actor,
            streams: vec![StreamAppend {
                stream: ledger_stream()?,
                expected: ExpectedVersion::Any,
                events: vec![book::encode(&Entry::new(event))?],
                attachments: Vec::new(),
                kept: Vec::new(),
                sealed_for: None,
            }],
        };
        inner.book.ledger().append(append).await?;
    }
    Ok(())
}
