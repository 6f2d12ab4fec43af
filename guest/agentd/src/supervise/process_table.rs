//! Who is alive, read from `/proc`.
//!
//! A zombie is dead, unless threads of it still run: PID 1 sees zombies that answer signals, so
//! asking the kernel whether a group can be signalled is not asking whether it lives.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::io::Read;

use agentd_protocol::limits::SURVIVOR_COMMAND_BYTES_MAX;
use libc::pid_t;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: pid_t,
    pub(crate) parent: pid_t,
    pub(crate) group: pid_t,
    pub(crate) alive: bool,
    /// When it was born, in the kernel's ticks: a pid that is used again has another one.
    pub(crate) born: u64,
}

/// A look at all processes.
pub(crate) enum Scan {
    /// Everybody who was there at its beginning was read.
    Whole(ProcessTable),
    /// Somebody ended meanwhile.
    Torn,
}

/// All processes at about one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessTable {
    processes: Vec<Process>,
}

impl ProcessTable {
    /// Reads every process's record. One that vanishes meanwhile is not listed.
    pub(crate) fn read() -> Self {
        let Ok(folder) = fs::read_dir("/proc") else {
            return Self::default();
        };
        let pids = folder
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().to_str()?.parse::<pid_t>().ok());
        let mut record = Vec::with_capacity(512);
        let processes = pids
            .filter_map(|pid| read_process(pid, &mut record))
            .collect();
        Self { processes }
    }

    /// Reads every process's record, and says when one vanished. A record that cannot be read or
    /// understood is an error.
    pub(crate) fn scan() -> io::Result<Scan> {
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<pid_t>().ok()) else {
                continue;
            };
            let record = match fs::read(format!("/proc/{pid}/stat")) {
                Ok(record) => record,
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        || error.raw_os_error() == Some(libc::ESRCH) =>
                {
                    return Ok(Scan::Torn);
                }
                Err(error) => return Err(error),
            };
            let process = parse_stat(pid, &record)
                .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not understood")))?;
            processes.push(process);
        }
        Ok(Scan::Whole(Self { processes }))
    }

    /// The live descendants of `roots`.
    pub(crate) fn descendants(&self, roots: &[pid_t]) -> Vec<Process> {
        let mut children: BTreeMap<pid_t, Vec<&Process>> = BTreeMap::new();
        for process in &self.processes {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut open = roots.to_vec();
        while let Some(parent) = open.pop() {
            // Taken out, so that no record, however odd, is walked twice.
            for child in children.remove(&parent).unwrap_or_default() {
                open.push(child.pid);
                if child.alive {
                    found.push(*child);
                }
            }
        }
        found
    }

    /// The live members of a process group.
    pub(crate) fn group(&self, group: pid_t) -> Vec<Process> {
        self.processes
            .iter()
            .filter(|p| p.group == group && p.alive)
            .copied()
            .collect()
    }

    /// The process with this pid, if it lives.
    pub(crate) fn live(&self, pid: pid_t) -> Option<Process> {
        self.processes
            .iter()
            .find(|process| process.pid == pid && process.alive)
            .copied()
    }
}

fn read_process(pid: pid_t, record: &mut Vec<u8>) -> Option<Process> {
    record.clear();
    fs::File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read_to_end(record)
        .ok()?;
    parse_stat(pid, record)
}

/// Reads `pid (name) state ppid pgrp … num_threads …`. A name may hold anything, parentheses and
/// newlines included, so fields are counted after the last closing one.
fn parse_stat(pid: pid_t, record: &[u8]) -> Option<Process> {
    let name_end = record.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(record.get(name_end + 1..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // Field 20 of the whole record; the fifteenth after the group, which is field 5.
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    // Field 22: one field lies in between.
    let born = fields.nth(1)?.parse().ok()?;
    let alive = match state {
        "Z" => threads > 1,
        "X" | "x" => false,
        _ => true,
    };
    Some(Process {
        pid,
        parent,
        group,
        alive,
        born,
    })
}

/// A process's command line, arguments joined by spaces and cut; its name when it has none.
pub(crate) fn command_line(pid: pid_t) -> String {
    let mut bytes = Vec::new();
    let limit = u64::try_from(SURVIVOR_COMMAND_BYTES_MAX).unwrap_or(u64::MAX);
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(limit).read_to_end(&mut bytes);
    }
    if bytes.is_empty()
        && let Ok(file) = fs::File::open(format!("/proc/{pid}/comm"))
    {
        let _ = file.take(limit).read_to_end(&mut bytes);
    }
    let joined: Vec<u8> = bytes
        .into_iter()
        .map(|b| if b == 0 { b' ' } else { b })
        .collect();
    let text = String::from_utf8_lossy(&joined);
    let mut cut = text.trim_end();
    while cut.len() > SURVIVOR_COMMAND_BYTES_MAX {
        // A replaced byte takes three, so the text can be longer than what was read.
        let shorter = cut.char_indices().next_back().map_or(0, |(index, _)| index);
        cut = cut.get(..shorter).unwrap_or_default();
    }
    cut.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: &str, threads: u32) -> Option<Process> {
        let rest = "0 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let record = format!("7 ({name}) {state} 3 5 {rest} {threads} 0 99");
        parse_stat(7, record.as_bytes())
    }

    #[test]
    fn a_name_cannot_forge_fields() {
        let expected = Process {
            pid: 7,
            parent: 3,
            group: 5,
            alive: true,
            born: 99,
        };
        for name in ["sh", "a) R 1 1", "(", "x\ny"] {
            assert_eq!(stat(name, "S", 1), Some(expected), "{name:?}");
        }
    }

    #[test]
    fn a_zombie_is_dead_unless_a_thread_of_it_runs() {
        assert!(!stat("z", "Z", 1).unwrap().alive);
        assert!(stat("z", "Z", 2).unwrap().alive);
        assert!(!stat("z", "X", 1).unwrap().alive);
    }

    #[test]
    fn descendants_are_walked_through_the_dead_and_never_twice() {
        let process = |pid, parent, alive| Process {
            pid,
            parent,
            group: pid,
            alive,
            born: 0,
        };
        let table = ProcessTable {
            processes: vec![
                process(2, 1, true),
                process(3, 2, false),
                process(4, 3, true),
                process(5, 9, true),
                process(9, 5, true),
            ],
        };
        let pids = |roots: &[pid_t]| -> Vec<pid_t> {
            table
                .descendants(roots)
                .iter()
                .map(|process| process.pid)
                .collect()
        };
        assert_eq!(pids(&[2]), [4]);
        assert_eq!(pids(&[1]), [2, 4]);
        assert_eq!(pids(&[5]), [9, 5]);
    }

    #[test]
    fn this_process_is_seen_alive_with_its_command_line() {
        let pid = pid_t::try_from(std::process::id()).unwrap();
        assert!(ProcessTable::read().live(pid).is_some());
        assert!(!command_line(pid).is_empty());
        assert!(command_line(pid).len() <= SURVIVOR_COMMAND_BYTES_MAX);
    }
}
