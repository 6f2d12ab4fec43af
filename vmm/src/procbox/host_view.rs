//! Which parts of the host's root file system a sandbox sees, and which are hidden from it.
//!
//! The rule is one that people can keep in mind: a sandbox reads of the host what any unprivileged
//! user may read, and nothing from homes, temporary folders, sockets, removable media or this
//! system's own state. Reading rights are the kernel's work (the layer is mounted as nobody); this
//! module says what is hidden.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that every sandbox has empty and of its own, with their modes.
pub(super) const PRIVATE_FOLDERS: [(&str, u32); 8] = [
    ("/root", 0o700),
    ("/home", 0o755),
    ("/tmp", 0o1777),
    ("/var/tmp", 0o1777),
    ("/run", 0o755),
    ("/mnt", 0o755),
    ("/media", 0o755),
    ("/dev", 0o755),
];
/// Mount points of kernel file systems.
pub(super) const KERNEL_FOLDERS: [&str; 2] = ["/proc", "/sys"];
/// What is of no use inside or holds secrets of other systems, readable or not.
const HIDDEN: [&str; 14] = [
    "/boot",
    "/lost+found",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/ssh",
    "/var/lib/cloud",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/fluxvm",
    "/var/mail",
    "/var/spool",
];
/// Variables of the daemon's environment that name folders of its user.
const PRIVATE_VARIABLES: [&str; 7] = [
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
];
/// An ordinary user's sandbox has one overlay per folder of the host; more would make creation
/// slow.
const GRAFTS_MAX: usize = 48;
/// How deep a folder that cannot be taken whole is looked into.
const PLAN_DEPTH_MAX: usize = 5;
/// Entries looked at in one such folder.
const PLAN_ENTRIES_MAX: usize = 4096;

/// The paths hidden from every sandbox: sorted, absolute, each without one above it in the list.
pub(super) fn hidden_paths(masked: &[PathBuf]) -> Vec<PathBuf> {
    let mut all: BTreeSet<PathBuf> = HIDDEN.iter().map(PathBuf::from).collect();
    all.extend(masked.iter().cloned());
    all.extend(
        PRIVATE_VARIABLES
            .iter()
            .filter_map(std::env::var_os)
            .map(PathBuf::from),
    );
    // A private folder that is a link has its content elsewhere.
    all.extend(
        PRIVATE_FOLDERS
            .iter()
            .filter_map(|(path, _)| elsewhere(Path::new(path))),
    );
    let real: Vec<PathBuf> = all
        .iter()
        .filter_map(|path| fs::canonicalize(path).ok())
        .collect();
    all.extend(real);
    // A variable may name the root; hiding that would hide everything.
    all.retain(|path| path.is_absolute() && path.parent().is_some());
    let private = |path: &Path| {
        PRIVATE_FOLDERS
            .iter()
            .any(|(folder, _)| path.starts_with(folder))
    };
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in all {
        if !private(&path) && !kept.iter().any(|above| path.starts_with(above)) {
            kept.push(path);
        }
    }
    kept
}

fn elsewhere(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    (real != path).then_some(real)
}

/// How an ordinary user's sandbox is put together from the host's folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FolderPlan {
    /// Taken whole, each under an overlay of its own.
    pub(super) grafts: Vec<PathBuf>,
    /// Made anew, because something is mounted or hidden state lies somewhere below.
    pub(super) folders: Vec<PathBuf>,
    /// Links and small files in those.
    pub(super) entries: Vec<PathBuf>,
    /// Left out, with the number of folders beyond [`GRAFTS_MAX`].
    pub(super) left_out: usize,
}

/// Plans for this host. `state` is where the layers lie: no folder above it can be a layer itself.
pub(super) fn plan_folders(hidden: &[PathBuf], state: &Path) -> FolderPlan {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut obstacles: Vec<PathBuf> = mounts.lines().filter_map(mount_point).collect();
    obstacles.push(state.to_owned());
    let mut plan = FolderPlan::default();
    look(Path::new("/"), hidden, &obstacles, 0, &mut plan);
    plan
}

fn look(
    folder: &Path,
    hidden: &[PathBuf],
    obstacles: &[PathBuf],
    depth: usize,
    plan: &mut FolderPlan,
) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .take(PLAN_ENTRIES_MAX)
        .collect();
    paths.sort();
    for path in paths {
        let own = |name: &&str| path == Path::new(name);
        if hidden.contains(&path)
            || KERNEL_FOLDERS.iter().any(own)
            || PRIVATE_FOLDERS.iter().any(|(name, _)| own(name))
            || path == Path::new("/workspace")
        {
            continue;
        }
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !metadata.is_dir() {
            plan.entries.push(path);
            continue;
        }
        let below = |obstacle: &PathBuf| obstacle.starts_with(&path) && *obstacle != path;
        let whole = !obstacles.iter().any(below);
        // Nothing to show, or not for this user: a folder is enough, and costs no mount.
        let empty = fs::read_dir(&path).map_or(true, |mut entries| entries.next().is_none());
        if whole && empty {
            plan.folders.push(path);
            continue;
        }
        if whole && plan.grafts.len() < GRAFTS_MAX {
            plan.grafts.push(path);
        } else if !whole && depth < PLAN_DEPTH_MAX {
            plan.folders.push(path.clone());
            look(&path, hidden, obstacles, depth + 1, plan);
        } else {
            plan.left_out += 1;
        }
    }
}

/// The mount point of one line of `mountinfo`, with its octal escapes resolved.
fn mount_point(line: &str) -> Option<PathBuf> {
    let field = line.split(' ').nth(4)?;
    let mut text = field.to_owned();
    for (escape, plain) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        text = text.replace(escape, plain);
    }
    Some(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_path_covers_those_below_it() {
        let masked = ["/srv/state", "/srv/state/secrets", "/tmp/x", "/"].map(PathBuf::from);
        let hidden = hidden_paths(&masked);
        assert!(hidden.contains(&PathBuf::from("/srv/state")));
        assert!(!hidden.contains(&PathBuf::from("/srv/state/secrets")));
        assert!(
            !hidden.contains(&PathBuf::from("/tmp/x")),
            "/tmp is private anyway"
        );
        assert!(!hidden.contains(&PathBuf::from("/")));
    }

    #[test]
    fn a_mount_point_may_hold_spaces() {
        let line = r"1 2 0:1 / /a\040b rw - tmpfs x rw";
        assert_eq!(mount_point(line), Some(PathBuf::from("/a b")));
    }

    #[test]
    fn a_folder_with_something_mounted_below_is_looked_into() {
        let host = tempfile::tempdir().unwrap();
        for name in ["whole/x", "split/mounted/y", "split/other/z", "empty"] {
            fs::create_dir_all(host.path().join(name)).unwrap();
        }
        fs::write(host.path().join("split/file"), "").unwrap();
        let obstacles = [host.path().join("split/mounted")];
        let mut plan = FolderPlan::default();
        look(host.path(), &[], &obstacles, 0, &mut plan);
        let under = |names: &[&str]| {
            names
                .iter()
                .map(|n| host.path().join(n))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            plan.grafts,
            under(&["split/mounted", "split/other", "whole"])
        );
        assert_eq!(plan.folders, under(&["empty", "split"]));
        assert_eq!(plan.entries, under(&["split/file"]));
    }
}
