//! Working with the rights of nobody for a moment.
//!
//! An overlay file system works on its layers with the credentials of whoever mounted it. Mounting
//! the host's root as a layer with the rights of nobody is therefore what keeps the host's private
//! files private: root inside a sandbox then reads what any unprivileged user of the host may read.

use nix::errno::Errno;
use nix::unistd::setgroups;

use crate::sys::{Capabilities, capabilities, set_capabilities, set_file_access_ids};

/// An id that owns nothing: below every shifted range, and not an owner in one.
const NOBODY: u32 = 65_534;
const CAP_MKNOD: u64 = 1 << 27;
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Gives up for good what no step here needs and a mount would keep: supplementary groups, and
/// making device nodes (else root inside could have the overlay copy up a host's block device as
/// its own).
pub(crate) fn give_up_surplus() -> Result<(), Errno> {
    setgroups(&[])?;
    let now = capabilities()?;
    set_capabilities(Capabilities {
        effective: now.effective & !CAP_MKNOD,
        permitted: now.permitted & !CAP_MKNOD,
    })
}

/// Runs `mount` as nobody who may mount.
pub(crate) fn as_nobody<T>(mount: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let full = capabilities()?;
    set_file_access_ids(NOBODY, NOBODY)?;
    let only_mount = Capabilities {
        effective: CAP_SYS_ADMIN,
        permitted: full.permitted,
    };
    let answer = set_capabilities(only_mount).and_then(|()| mount());
    // Being root again is not optional: every later step counts on it.
    set_capabilities(full)?;
    set_file_access_ids(0, 0)?;
    set_capabilities(full)?;
    answer
}
