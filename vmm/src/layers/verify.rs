//! Whether a layer on disk still is what was captured.
//!
//! **What is checked.** Every path of the manifest is there and nothing else is; kind, mode, owner,
//! size, time of modification, link target and attributes are as recorded; and the content of every
//! file has the recorded digest. The manifest itself is held against the digest that the checkpoint's
//! event carries. So what is restored is, byte for byte, what was captured.
//!
//! **What it costs.** Content is hashed once in a daemon's life. After that a file whose inode, size
//! and time of change are what they were when it was hashed is taken for unchanged: the kernel sets
//! that time at every change, and nobody can set it back without setting the host's clock back.

use std::collections::HashMap;
use std::os::fd::AsFd;

use nix::sys::stat::{FileStat, SFlag};

use super::digest;
use super::entry::{Entry, Node};
use super::manifest::Manifest;
use super::path::LayerPath;
use super::tree::{self, Tree, nanoseconds};
use super::xattr::Attributes;
use crate::snapshot::ContentDigest;

/// Inode and time of change of each path, in the manifest's order, when all of it was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature(Vec<(u64, i64)>);

/// Checks a layer. An error is a sentence about the first path that differs.
pub(crate) fn check(
    tree: &Tree,
    manifest: &Manifest,
    attributes: Attributes,
    before: Option<&Signature>,
) -> Result<Signature, String> {
    let mut signature = Vec::with_capacity(manifest.entries.len());
    let mut hashed: HashMap<u64, ContentDigest> = HashMap::new();
    let mut names_in_folders = 0_usize;
    let mut folder = None;
    for (number, (path, entry)) in manifest.entries.iter().enumerate() {
        let (parent, name) = path.split().unwrap_or_default();
        let open = match folder.take() {
            Some((at, open)) if at == parent => open,
            _ => tree
                .folder(&parent)
                .map_err(|errno| format!("{parent} cannot be opened: {errno}"))?,
        };
        let found = tree::stat(open.as_fd(), name).map_err(|errno| format!("{path}: {errno}"))?;
        let stat = found.ok_or_else(|| format!("{path} is missing"))?;
        let seen = (stat.st_ino, nanoseconds(stat.st_ctime, stat.st_ctime_nsec));
        let known = before.and_then(|before| before.0.get(number)) == Some(&seen);
        same_attributes(path, entry, &stat)?;
        if entry.is_folder() {
            let inside = tree
                .folder(path)
                .map_err(|errno| format!("{path}: {errno}"))?;
            let names = tree::names(inside.as_fd()).map_err(|errno| format!("{path}: {errno}"))?;
            names_in_folders += names.len();
        }
        if !known {
            same_content(
                path,
                entry,
                open.as_fd(),
                name,
                attributes,
                &mut hashed,
                &stat,
            )?;
        }
        signature.push(seen);
        folder = Some((parent, open));
    }
    // Each listed path is there, so more names than paths are names that are not listed.
    if names_in_folders + 1 != manifest.entries.len() {
        return Err("it holds paths that were not captured".to_owned());
    }
    Ok(Signature(signature))
}

fn same_attributes(path: &LayerPath, entry: &Entry, stat: &FileStat) -> Result<(), String> {
    let kind = match &entry.node {
        Node::File { .. } => SFlag::S_IFREG,
        Node::Folder { .. } => SFlag::S_IFDIR,
        Node::Link { .. } => SFlag::S_IFLNK,
        Node::Fifo => SFlag::S_IFIFO,
        Node::Socket => SFlag::S_IFSOCK,
        Node::Whiteout => SFlag::S_IFCHR,
    };
    if tree::kind(stat) != kind {
        return Err(format!("{path} is of another kind"));
    }
    if entry.is_whiteout() {
        return match tree::is_whiteout(stat) {
            true => Ok(()),
            false => Err(format!("{path} is a device")),
        };
    }
    let link = kind == SFlag::S_IFLNK;
    if !link && stat.st_mode & 0o7777 != entry.mode {
        return Err(format!("{path} has another mode"));
    }
    if (stat.st_uid, stat.st_gid) != (entry.uid, entry.gid) {
        return Err(format!("{path} has another owner"));
    }
    if nanoseconds(stat.st_mtime, stat.st_mtime_nsec) != entry.modified_ns {
        return Err(format!("{path} has another time of modification"));
    }
    match &entry.node {
        Node::File { bytes, .. } if u64::try_from(stat.st_size) != Ok(*bytes) => {
            Err(format!("{path} has another size"))
        }
        _ => Ok(()),
    }
}

fn same_content(
    path: &LayerPath,
    entry: &Entry,
    folder: std::os::fd::BorrowedFd<'_>,
    name: &[u8],
    attributes: Attributes,
    hashed: &mut HashMap<u64, ContentDigest>,
    stat: &FileStat,
) -> Result<(), String> {
    if entry.is_whiteout() {
        return Ok(());
    }
    let unreadable = |error: std::io::Error| format!("{path} cannot be read: {error}");
    let (opaque, own) = attributes.of(folder, name).map_err(unreadable)?;
    if own != entry.xattrs || opaque != matches!(entry.node, Node::Folder { opaque: true }) {
        return Err(format!("{path} has other attributes"));
    }
    match &entry.node {
        Node::File { digest, .. } => {
            let found = match hashed.get(&stat.st_ino) {
                Some(found) => *found,
                None => {
                    let file =
                        tree::open_file(folder, name).map_err(|errno| unreadable(errno.into()))?;
                    digest::of_file(&file).map_err(unreadable)?.1
                }
            };
            if stat.st_nlink > 1 {
                hashed.insert(stat.st_ino, found);
            }
            if found != *digest {
                return Err(format!("{path} has other content"));
            }
        }
        Node::Link { target } => {
            let found =
                tree::link_target(folder, name).map_err(|errno| unreadable(errno.into()))?;
            if found != target.as_bytes() {
                return Err(format!("{path} points elsewhere"));
            }
        }
        _ => {}
    }
    Ok(())
}
