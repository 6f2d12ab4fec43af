//! System calls for which nix has no wrapper.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::unistd::Pid;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const MOUNT_ATTR_NODEV: u64 = 0x0000_0004;
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// The kernel's capability header and data, version 3.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// One half of a capability set, for each of the three kinds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

/// The permitted and effective capabilities of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) effective: u64,
    pub(crate) permitted: u64,
}

fn result(value: libc::c_long) -> Result<libc::c_long, Errno> {
    if value < 0 {
        Err(Errno::last())
    } else {
        Ok(value)
    }
}

/// Forks into new namespaces. Returns `None` in the child.
///
/// The process must have one thread: only then may the child go on as if nothing had happened.
pub(crate) fn clone_process(flags: libc::c_int) -> Result<Option<Pid>, Errno> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with no stack given, clone is fork: the child gets a copy of
    // everything, and this process has one thread, so no lock is held by a thread that is not
    // copied.
    let pid = result(unsafe { libc::syscall(libc::SYS_clone, flags, 0_u64, 0_u64, 0_u64, 0_u64) })?;
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::EOVERFLOW)?;
    Ok((pid != 0).then(|| Pid::from_raw(pid)))
}

/// A descriptor that stands for a child that has not been waited for.
pub(crate) fn pidfd_open(pid: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two numbers.
    let fd = result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, libc::PIDFD_NONBLOCK) })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A detached copy of one mount, without those below it.
pub(crate) fn open_tree(path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    let fd = result(unsafe {
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags)
    })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Shows the files of a detached mount under the owners of a user namespace, without device nodes.
pub(crate) fn shift_owners(tree: BorrowedFd<'_>, users: BorrowedFd<'_>) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: MOUNT_ATTR_IDMAP | MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users.as_raw_fd()).map_err(|_| Errno::EBADF)?,
    };
    // SAFETY: the empty path is NUL-terminated, and the structure is passed with its own size.
    result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Attaches a detached mount at a path.
pub(crate) fn move_mount(tree: BorrowedFd<'_>, path: &CStr) -> Result<(), Errno> {
    // SAFETY: both paths are NUL-terminated strings that outlive the call.
    result(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
    .map(drop)
}

/// This process's capabilities.
pub(crate) fn capabilities() -> Result<Capabilities, Errno> {
    let header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 fills two data structures, and two are there.
    result(unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) })?;
    let [low, high] = data;
    Ok(Capabilities {
        effective: u64::from(low.effective) | u64::from(high.effective) << 32,
        permitted: u64::from(low.permitted) | u64::from(high.permitted) << 32,
    })
}

/// Sets them. Nothing is inherited by programs through the third set.
pub(crate) fn set_capabilities(wanted: Capabilities) -> Result<(), Errno> {
    let header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let half = |shift: u32| CapData {
        effective: u32::try_from(wanted.effective >> shift & 0xffff_ffff).unwrap_or(0),
        permitted: u32::try_from(wanted.permitted >> shift & 0xffff_ffff).unwrap_or(0),
        inheritable: 0,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 reads two data structures, and two are there.
    result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Leaves the session keyring of whoever started this: a guest must not possess the host's keys.
pub(crate) fn leave_keyring() -> Result<(), Errno> {
    // SAFETY: a null name asks for a fresh anonymous keyring; no memory is read.
    result(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_JOIN_SESSION_KEYRING,
            std::ptr::null::<u8>(),
        )
    })
    .map(drop)
}

/// The version of the kernel's Landlock; 0 where there is none.
pub(crate) fn landlock_abi() -> u32 {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the call reads nothing and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Whether the kernel takes call filters.
pub(crate) fn filters_calls() -> bool {
    const ACTION_AVAILABLE: libc::c_uint = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads one number from a live place.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, ACTION_AVAILABLE, 0, &raw const action) };
    answer == 0
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> Result<(), Errno> {
    // SAFETY: closing descriptors touches no memory; the caller uses none of them afterwards.
    result(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}

/// Sets the user and group ids for file access alone.
pub(crate) fn set_file_access_ids(uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: these calls take two numbers and touch no memory.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
    // They answer with the old value and no error, so the new one is asked for.
    // SAFETY: as above; an id that cannot exist changes nothing.
    let now = unsafe { (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)) };
    let wanted = (i32::try_from(uid), i32::try_from(gid));
    if (Ok(now.0), Ok(now.1)) == wanted {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Turns the loopback interface on.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid value of that plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(libc::c_short::MAX);
    // SAFETY: SIOCSIFFLAGS reads an ifreq, and the pointer is to one that outlives the call.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    result(libc::c_long::from(status)).map(drop)
}

/// Gives every signal its default meaning and blocks none.
pub(crate) fn reset_signals() {
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL is a valid disposition; numbers that cannot be changed are refused
        // harmlessly.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    let _ = nix::sys::signal::SigSet::empty().thread_set_mask();
}
