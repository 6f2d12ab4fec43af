//! What commands can never be allowed, taken away before any of them exists; and whether this
//! daemon may power the guest off.

use caps::CapSet;
use caps::Capability;

use crate::identity::is_first_process;

/// Rights that reach past the guest's files and processes.
const DROPPED: [Capability; 7] = [
    Capability::CAP_SYS_MODULE,
    Capability::CAP_SYS_RAWIO,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_BOOT,
    Capability::CAP_PERFMON,
    Capability::CAP_BPF,
];

/// The rights could not be taken away, so that starting would be a broken promise.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DropError {
    #[error("{0}")]
    Refused(#[from] caps::errors::CapsError),
    #[error("{0} can still be inherited")]
    Kept(Capability),
    #[error("the inheritable or the ambient set is not empty")]
    NotEmpty,
}

/// Has no command inherit the rights that reach past the guest, root's included.
pub(crate) fn drop_inherited() -> Result<(), DropError> {
    drop_each(&DROPPED)
}

/// Keeps commands from looking into this daemon: root may trace and read whoever has no right that
/// root lacks, and from here on this daemon has one more than any command.
pub(crate) fn guard_self() -> Result<(), DropError> {
    drop_each(&[Capability::CAP_SYS_PTRACE])
}

/// Has no command inherit these rights. This process keeps what it has. To be called while there is
/// one thread: a set belongs to a thread.
fn drop_each(rights: &[Capability]) -> Result<(), DropError> {
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    for &capability in rights {
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    for &capability in rights {
        if caps::has_cap(None, CapSet::Bounding, capability)? {
            return Err(DropError::Kept(capability));
        }
    }
    let empty = |set| caps::read(None, set).map(|capabilities| capabilities.is_empty());
    if empty(CapSet::Inheritable)? && empty(CapSet::Ambient)? {
        Ok(())
    } else {
        Err(DropError::NotEmpty)
    }
}

/// Whether powering off can work now. Only the first process of a guest may mean the guest.
pub(crate) fn can_power_off() -> bool {
    let has = |set| caps::has_cap(None, set, Capability::CAP_SYS_BOOT).unwrap_or(false);
    is_first_process() && has(CapSet::Effective) && has(CapSet::Permitted)
}
