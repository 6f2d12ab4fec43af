//! Who asks, as far as rules care.

use fluxvm_eventstore::Actor;
use fluxvm_eventstore::CorrelationId;

/// The authenticated origin of a command or query. How it was authenticated is the server's matter.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The name that the ledger records.
    pub actor: Actor,
    /// The tenant that the caller is confined to; `None` sees everything.
    pub tenant: Option<String>,
    /// The request that this is part of.
    pub request: CorrelationId,
}

impl Caller {
    /// Whether the caller may know that something of this tenant exists.
    #[must_use]
    pub fn sees(&self, tenant: Option<&str>) -> bool {
        match &self.tenant {
            None => true,
            Some(own) => tenant == Some(own.as_str()),
        }
    }
}
