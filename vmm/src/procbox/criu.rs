//! The program that keeps and brings back processes: where it is, and whether it is good enough.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first version that knows the vDSO of today's kernels.
const VERSION_MIN: (u32, u32) = (4, 1);
/// From this kernel on, sockets no longer have options that older versions insist on reading.
const KERNEL_STRICT: (u32, u32) = (6, 16);
const VERSION_MIN_STRICT: (u32, u32) = (4, 2);
/// Where it is looked for, in order, when nobody says.
const PLACES: [&str; 4] = [
    "/usr/local/lib/fluxvm/criu/criu",
    "/usr/local/sbin/criu",
    "/usr/sbin/criu",
    "/usr/bin/criu",
];
/// Names one for whoever starts the daemon; an empty one says that there is none.
const VARIABLE: &str = "FLUXVM_CRIU";

/// Finds CRIU where `make setup` and distributions put it.
pub fn find_criu() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return (!named.is_empty()).then(|| PathBuf::from(named));
    }
    let own =
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/lib/fluxvm/criu/criu"));
    let places = PLACES.iter().map(PathBuf::from).chain(own);
    let found: Vec<PathBuf> = places.filter(|place| place.exists()).collect();
    let good = found.iter().find(|place| usable(place).is_ok());
    good.or(found.first()).cloned()
}

/// Whether the program is one that works. An error is a sentence.
pub(super) fn usable(program: &Path) -> Result<(), String> {
    let place = program.display();
    let asked = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let said = asked.map_err(|error| format!("{place} cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let needed = version_needed();
    match version(&text) {
        Some(found) if found >= needed => Ok(()),
        Some((major, minor)) => Err(format!(
            "{place} is CRIU {major}.{minor}, and this kernel needs {}.{} or newer (`make setup` \
             brings it)",
            needed.0, needed.1
        )),
        None => Err(format!("{place} does not say its version")),
    }
}

/// The version that this kernel needs.
fn version_needed() -> (u32, u32) {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match numbers(&kernel) {
        Some(kernel) if kernel < KERNEL_STRICT => VERSION_MIN,
        _ => VERSION_MIN_STRICT,
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    numbers(
        text.lines()
            .find_map(|line| line.strip_prefix("Version: "))?,
    )
}

fn numbers(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("Version: 4.1.1\nGitID: x\n"), Some((4, 1)));
        assert_eq!(version("Version: 3.17\n"), Some((3, 17)));
        assert_eq!(version("something else"), None);
        assert!((4, 10) > VERSION_MIN && (3, 19) < VERSION_MIN);
    }
}
