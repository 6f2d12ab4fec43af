//! What every request can reach.

use std::cell::RefCell;
use std::rc::Rc;

use crate::auth::Bootstrap;
use crate::exec::Registry;
use crate::handlers::Handlers;
use crate::identity::Repair;
use crate::routes::HookLog;
use crate::routes::Renewing;
use crate::server::Connections;
use crate::settings::Settings;

/// The daemon's state. One thread owns it, so nothing in it needs a lock.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) settings: Rc<Settings>,
    pub(crate) bootstrap: RefCell<Bootstrap>,
    pub(crate) hook_log: RefCell<HookLog>,
    pub(crate) registry: Rc<Registry>,
    pub(crate) image_env_keys: usize,
    pub(crate) handlers: Handlers,
    /// What identity repair did, once it ran.
    pub(crate) repair: RefCell<Option<Repair>>,
    /// The identity that is being taken, for all who ask for the same one meanwhile.
    pub(crate) renewal: RefCell<Option<Renewing>>,
    /// Every connection that is served.
    pub(crate) connections: Connections,
}
