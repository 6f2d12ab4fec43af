//! The processes of a sandbox, seen from the host.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::layers::LayerPath;

/// The host's ids of every process inside, in namespaces that were made inside too where a group
/// tells of them.
pub(super) fn of(first: u32, groups: &[PathBuf]) -> io::Result<Vec<u32>> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let (host, own) = (namespace("self")?, namespace(&first.to_string())?);
    // A group lists what was started in it, and nothing inside can leave it.
    let listed = groups
        .iter()
        .find_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
    if let Some(text) = listed {
        // The program that made the sandbox may not have ended yet.
        let inside = |pid: &&str| namespace(pid).is_ok_and(|found| found != host);
        let pids = text.lines().filter(inside);
        return Ok(pids.filter_map(|pid| pid.parse().ok()).collect());
    }
    let all = fs::read_dir("/proc")?.flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    let inside = names.filter(|pid| namespace(pid).is_ok_and(|found| found == own));
    Ok(inside.filter_map(|pid| pid.parse().ok()).collect())
}

/// Files that these processes can change through a mapping, as they are named inside.
pub(super) fn mapped_files(pids: &[u32]) -> HashSet<LayerPath> {
    let mut found = HashSet::new();
    for pid in pids {
        // One that has ended has no mappings any more.
        let Ok(maps) = fs::read(Path::new("/proc").join(pid.to_string()).join("maps")) else {
            continue;
        };
        found.extend(
            maps.split(|byte| *byte == b'\n')
                .filter_map(writable_shared),
        );
    }
    found
}

/// The path of one line of `maps`, if what is written there reaches a file.
fn writable_shared(line: &[u8]) -> Option<LayerPath> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let rights = fields.nth(1)?;
    if rights.get(1) != Some(&b'w') || rights.get(3) != Some(&b's') {
        return None;
    }
    let path = fields.nth(3)?.trim_ascii_start();
    let path = path.strip_prefix(b"/")?;
    let lines = String::from_utf8_lossy(path).contains("\\012");
    let path = match lines {
        true => String::from_utf8_lossy(path)
            .replace("\\012", "\n")
            .into_bytes(),
        false => path.to_vec(),
    };
    Some(LayerPath::from(path.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_shared_mappings_of_files_count() {
        let line = |rights: &str, path: &str| {
            format!("7f00-7f10 {rights} 00000000 00:2a 1234                       {path}")
        };
        let path = |text: String| writable_shared(text.as_bytes());
        assert_eq!(
            path(line("rw-s", "/workspace/a b")),
            Some(LayerPath::from("workspace/a b"))
        );
        for (rights, file) in [
            ("rw-p", "/x"),
            ("r--s", "/x"),
            ("rw-s", "[heap]"),
            ("rw-s", ""),
        ] {
            assert_eq!(path(line(rights, file)), None, "{rights} {file}");
        }
    }
}
