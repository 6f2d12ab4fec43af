//! System calls for which nix has no wrapper.
#![allow(
    unsafe_code,
    reason = "extended attributes and writeback have no safe wrapper here"
)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Longest value and longest list of names that are read: what the kernel's interface allows.
const XATTR_BYTES_MAX: usize = 64 * 1024;

/// Something in an open folder, as a path that follows no link in its last part.
pub(super) fn place(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<CString> {
    let mut path = format!("/proc/self/fd/{}/", folder.as_raw_fd()).into_bytes();
    path.extend_from_slice(if name.is_empty() { b"." } else { name });
    Ok(CString::new(path)?)
}

/// The names and values of extended attributes, sorted.
pub(super) fn xattrs(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = place(folder, name)?;
    // SAFETY: a null list of length zero asks for the size alone.
    let size = unsafe { libc::llistxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
    match size {
        0 => return Ok(Vec::new()),
        size if size < 0 => return unsupported_is_none(io::Error::last_os_error()),
        _ => {}
    }
    let mut names = vec![0_u8; XATTR_BYTES_MAX];
    // SAFETY: the buffer is passed with its length and outlives the call.
    let size = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let size = usize::try_from(size).map_err(|_| io::Error::last_os_error())?;
    names.truncate(size);
    let mut found = Vec::new();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        if let Some(value) = xattr(&path, name)? {
            found.push((name.to_vec(), value));
        }
    }
    found.sort();
    Ok(found)
}

fn unsupported_is_none<T>(error: io::Error) -> io::Result<Vec<T>> {
    match error.raw_os_error() {
        Some(libc::ENOTSUP) => Ok(Vec::new()),
        _ => Err(error),
    }
}

/// One attribute of a path. `None` when it has none of that name.
fn xattr(path: &CString, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let name = CString::new(name)?;
    let mut value = vec![0_u8; XATTR_BYTES_MAX];
    // SAFETY: the strings end with NUL, the buffer is passed with its length, and all outlive the
    // call.
    let size = unsafe {
        libc::lgetxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    match usize::try_from(size) {
        Ok(size) => {
            value.truncate(size);
            Ok(Some(value))
        }
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            error => Err(error),
        },
    }
}

/// Sets an extended attribute.
pub(super) fn set_xattr(
    folder: BorrowedFd<'_>,
    name: &[u8],
    attribute: &[u8],
    value: &[u8],
) -> io::Result<()> {
    let (path, attribute) = (place(folder, name)?, CString::new(attribute)?);
    // SAFETY: the strings end with NUL, the value is passed with its length, and all outlive the
    // call.
    let status = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            attribute.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    answer(status)
}

/// Has the kernel copy bytes from one file to the same place in another. Returns how many it did.
pub(super) fn copy_range(from: &File, to: &File, at: i64, length: usize) -> Result<usize, Errno> {
    let (mut from_at, mut to_at) = (at, at);
    // SAFETY: both positions are passed as pointers to values that outlive the call, which reads and
    // writes no other memory of this process.
    let copied = unsafe {
        libc::copy_file_range(
            from.as_fd().as_raw_fd(),
            &raw mut from_at,
            to.as_fd().as_raw_fd(),
            &raw mut to_at,
            length,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| Errno::last())
}

/// Has the kernel write a file's pages out, so that its mappings notice the next change; with
/// `wait` it returns when the device has them. Says nothing of the file's size or place.
pub(crate) fn write_back(file: &File, wait: Wait) -> io::Result<()> {
    let flags = match wait {
        Wait::No => libc::SYNC_FILE_RANGE_WRITE,
        Wait::ForDevice => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    // SAFETY: the call takes numbers.
    match answer(unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, flags) }) {
        // A file system in memory has nothing to write.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => Ok(()),
        other => other,
    }
}

/// Whether to wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    ForDevice,
}

fn answer(status: libc::c_int) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
