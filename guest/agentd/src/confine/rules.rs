//! What a command may reach, as a Landlock rule set.
#![allow(unsafe_code)] // asking for the kernel's version exists only as a raw call

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr;

use agentd_protocol::Enforcement;
use agentd_protocol::ExecPolicy;
use agentd_protocol::PortPolicy;
use agentd_protocol::Slug;
use landlock::ABI;
use landlock::Access;
use landlock::AccessFs;
use landlock::AccessNet;
use landlock::BitFlags;
use landlock::CompatLevel;
use landlock::Compatible;
use landlock::NetPort;
use landlock::PathBeneath;
use landlock::PathFd;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetCreated;
use landlock::RulesetCreatedAttr;
use landlock::Scope;
use nix::sys::stat::SFlag;
use nix::sys::stat::fstat;

use crate::exec::Refusal;

/// Paths in one list: each is an open and a rule, and the kernel walks them at every access.
const PATHS_MAX: usize = 4096;

/// Where a program given by its bare name may lie.
const PROGRAM_FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Programs without which nothing starts, and folders of loaders with the beginning of their names.
const ALWAYS_EXECUTABLE: [&str; 2] = ["/bin/sh", "/bin/true"];
const LOADER_FOLDERS: [&str; 4] = ["/lib64", "/lib", "/usr/lib64", "/usr/lib"];
const LOADER_NAMES: [&str; 3] = ["ld-linux", "ld-musl", "ld.so"];

/// The version of the kernel's Landlock; 0 where there is none.
pub(crate) fn landlock_abi() -> u32 {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the call reads nothing and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Refuses what means nothing.
pub(super) fn check(policy: &ExecPolicy) -> Result<(), Refusal> {
    let malformed = |detail: String| Err(Refusal::new(Slug::MalformedRequest, detail));
    let lists = [
        ("read", &policy.read),
        ("write", &policy.write),
        ("execute", &policy.execute),
    ];
    for (name, list) in lists {
        let entries = list.as_deref().unwrap_or_default();
        if entries.len() > PATHS_MAX {
            return malformed(format!("`{name}` has more than {PATHS_MAX} entries"));
        }
        let bare = |entry: &str| name == "execute" && !entry.contains('/') && !entry.is_empty();
        let whole = |entry: &String| entry.starts_with('/') || bare(entry);
        if !entries.iter().all(whole) {
            return malformed(format!("`{name}` has an entry that is no absolute path"));
        }
        let literal = |entry: &String| !entry.contains(['*', '?', '\0']);
        if !entries.iter().all(literal) {
            return malformed(format!("`{name}` has an entry that is a pattern"));
        }
    }
    Ok(())
}

/// Makes the rule set of what the report promises; `None` when there is nothing to hold back.
/// Entries that are not there are added to the report.
pub(super) fn ruleset(
    policy: &ExecPolicy,
    report: &mut Enforcement,
) -> Result<Option<OwnedFd>, String> {
    let files = match report.landlock_abi {
        0..=3 => ABI::V3,
        4 => ABI::V4,
        _ => ABI::V5,
    };
    let handled = match (report.filesystem, report.execute) {
        (true, _) => AccessFs::from_all(files),
        (false, true) => AccessFs::Execute.into(),
        (false, false) => BitFlags::EMPTY,
    };
    let mut ports: BitFlags<AccessNet> = BitFlags::EMPTY;
    if report.tcp_connect {
        ports |= AccessNet::ConnectTcp;
    }
    if report.tcp_bind {
        ports |= AccessNet::BindTcp;
    }
    if handled.is_empty() && ports.is_empty() && !report.scope_signal {
        return Ok(None);
    }
    let mut made = || {
        let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        if !handled.is_empty() {
            ruleset = ruleset.handle_access(handled)?;
        }
        if !ports.is_empty() {
            ruleset = ruleset.handle_access(ports)?;
        }
        if report.scope_signal {
            ruleset = ruleset.scope(Scope::from_all(ABI::V6))?;
        }
        let ruleset = allow_ports(ruleset.create()?, policy, report)?;
        allow_files(ruleset, policy, handled, report)
    };
    made().map(Into::into).map_err(|error| error.to_string())
}

fn allow_ports(
    mut ruleset: RulesetCreated,
    policy: &ExecPolicy,
    report: &Enforcement,
) -> Result<RulesetCreated, landlock::RulesetError> {
    for (held, ports, access) in [
        (
            report.tcp_connect,
            &policy.tcp_connect,
            AccessNet::ConnectTcp,
        ),
        (report.tcp_bind, &policy.tcp_bind, AccessNet::BindTcp),
    ] {
        if let (true, PortPolicy::Ports(ports)) = (held, ports) {
            for port in ports {
                ruleset = ruleset.add_rule(NetPort::new(*port, access))?;
            }
        }
    }
    Ok(ruleset)
}

fn allow_files(
    mut ruleset: RulesetCreated,
    policy: &ExecPolicy,
    handled: BitFlags<AccessFs>,
    report: &mut Enforcement,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let mut allow = |paths: &[String], access: BitFlags<AccessFs>, absent: &mut Vec<String>| {
        let access = access & handled;
        for path in paths.iter().filter(|_| !access.is_empty()) {
            match PathFd::new(path) {
                Ok(opened) => {
                    let access = if is_folder(&opened) {
                        access
                    } else {
                        access & AccessFs::from_file(ABI::V5)
                    };
                    let rule = PathBeneath::new(opened, access);
                    (&mut ruleset).add_rule(rule).map(drop)?;
                }
                Err(_) => absent.push(path.clone()),
            }
        }
        Ok::<_, landlock::RulesetError>(())
    };
    let mut absent = Vec::new();
    let execute: BitFlags<AccessFs> = AccessFs::Execute.into();
    // With a list of programs, no tree makes executable what lies in it.
    let of_trees = if report.execute {
        BitFlags::EMPTY
    } else {
        execute
    };
    let read = of_trees | AccessFs::ReadFile | AccessFs::ReadDir;
    let write = (handled & !execute) | of_trees;
    allow(
        policy.read.as_deref().unwrap_or_default(),
        read,
        &mut absent,
    )?;
    allow(
        policy.write.as_deref().unwrap_or_default(),
        write,
        &mut absent,
    )?;
    if report.execute {
        let mut programs: Vec<String> = Vec::new();
        for entry in policy.execute.as_deref().unwrap_or_default() {
            let found = places(entry);
            if found.is_empty() {
                absent.push(entry.clone());
            }
            programs.extend(found);
        }
        programs.extend(always_executable());
        // The kernel reads what it executes.
        let program = execute | AccessFs::ReadFile;
        allow(&programs, program, &mut Vec::new())?;
    }
    report.absent = absent;
    Ok(ruleset)
}

/// Of what was opened, whatever lies at its path by now.
fn is_folder(opened: &PathFd) -> bool {
    let mode = fstat(opened.as_fd()).map(|stat| SFlag::from_bits_truncate(stat.st_mode));
    mode.is_ok_and(|mode| mode & SFlag::S_IFMT == SFlag::S_IFDIR)
}

/// Where a program lies.
fn places(entry: &str) -> Vec<String> {
    let candidates: Vec<String> = if entry.starts_with('/') {
        vec![entry.to_owned()]
    } else {
        let folders = PROGRAM_FOLDERS.iter();
        folders.map(|folder| format!("{folder}/{entry}")).collect()
    };
    let is_there = |path: &String| Path::new(path).is_file();
    candidates.into_iter().filter(is_there).collect()
}

fn always_executable() -> Vec<String> {
    let mut programs = ALWAYS_EXECUTABLE.map(str::to_owned).to_vec();
    for folder in LOADER_FOLDERS {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let loaders = names.filter(|name| LOADER_NAMES.iter().any(|known| name.starts_with(known)));
        programs.extend(loaders.map(|name| format!("{folder}/{name}")));
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_absolute_paths_and_programs_may_be_bare_names() {
        let check_lists = |read: &[&str], execute: &[&str]| {
            let list = |entries: &[&str]| Some(entries.iter().map(|e| (*e).to_owned()).collect());
            let policy = ExecPolicy {
                read: list(read),
                execute: list(execute),
                ..ExecPolicy::default()
            };
            check(&policy).err().map(|refusal| refusal.detail)
        };
        assert_eq!(check_lists(&["/usr", "/"], &["git", "/bin/ls"]), None);
        for (read, execute, named) in [
            (&["usr"][..], &[][..], "`read`"),
            (&["/usr/**"], &[], "`read`"),
            (&[""], &[], "`read`"),
            (&[], &["./ls"], "`execute`"),
            (&[], &["g*t"], "`execute`"),
            (&[], &[""], "`execute`"),
        ] {
            let detail = check_lists(read, execute).unwrap();
            assert!(detail.contains(named), "{detail}");
        }
    }

    #[test]
    fn without_the_loader_and_the_shell_nothing_starts() {
        let programs = always_executable();
        assert!(programs.iter().any(|path| path == "/bin/sh"));
        assert!(places("sh").iter().any(|path| path.ends_with("/sh")));
        assert!(places("no-such-program").is_empty());
    }
}
