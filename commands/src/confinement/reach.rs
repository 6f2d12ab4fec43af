//! What may be read and written, as lists of paths. Pure.

use agentd_protocol::FileFault;
use fluxvm_projections::WorkspaceMode;
use fluxvm_projections::WorkspaceRecord;

use super::Terms;
use crate::error::CommandError;

/// What programs are made of and what they look up. Which of it is there depends on the image.
const SYSTEM_READ: [&str; 9] = [
    "/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/sys",
];

/// What programs write to wherever they run: scratch files and harmless devices.
const SYSTEM_WRITE: [&str; 10] = [
    "/tmp",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];

/// Where commands write that are held to a list of programs and to nothing else: everywhere but where
/// programs, their libraries and the loader's settings lie.
const WRITE_BUT_PROGRAMS: [&str; 10] = [
    "/tmp", "/dev", "/home", "/media", "/mnt", "/proc", "/root", "/run", "/srv", "/var",
];

/// Whether a path is in the lists that every policy has.
pub(super) fn is_of_the_system(path: &str) -> bool {
    let lists = [&SYSTEM_READ[..], &SYSTEM_WRITE, &WRITE_BUT_PROGRAMS];
    lists.iter().any(|list| list.contains(&path))
}

/// Where programs, their libraries and the loader lie that a list of programs may name.
const PROGRAM_PLACES: [&str; 10] = [
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
];

/// What may be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    read: Vec<String>,
    write: Vec<String>,
    /// The folder that is only to be read, and what is in it.
    readonly: Option<String>,
    /// The field of the policy that says so.
    field: &'static str,
}

impl Reach {
    /// What a session's policy leaves; `None` when that is everything.
    pub(crate) fn of(terms: &Terms<'_>) -> Option<Self> {
        let readonly = terms.workspace.mode == WorkspaceMode::Readonly;
        let files = terms.policy.exec.as_ref();
        if files.is_none() && !readonly && terms.programs().is_empty() {
            return None;
        }
        let owned = |list: &[&str]| list.iter().map(|path| (*path).to_owned()).collect();
        let (mut read, mut write): (Vec<String>, Vec<String>) = match (files, readonly) {
            (None, false) => (vec!["/".to_owned()], owned(&WRITE_BUT_PROGRAMS)),
            _ => (owned(&SYSTEM_READ), owned(&SYSTEM_WRITE)),
        };
        let workspace = terms.workspace.path.clone();
        match readonly {
            true => read.push(workspace),
            false => write.push(workspace),
        }
        if let Some(files) = files {
            read.extend_from_slice(&files.read);
            write.extend_from_slice(&files.write);
        }
        // A place below one that may be written could be made a link to anywhere by the time the next
        // command starts; and it may be written as it is.
        let all = write.clone();
        let below = |path: &String, root: &String| path != root && inside(path, root);
        write.retain(|path| !all.iter().any(|root| below(path, root)));
        read.retain(|path| !all.iter().any(|root| inside(path, root)));
        write.dedup();
        Some(Self {
            read,
            write,
            readonly: readonly.then(|| terms.workspace.path.clone()),
            field: match (files, readonly) {
                (Some(_), _) => "policy.filesystem",
                (None, true) => "workspace.mode",
                (None, false) => "policy.process.enforce",
            },
        })
    }

    /// The field of the policy that says so.
    pub(crate) fn field(&self) -> &'static str {
        self.field
    }

    /// What may be read, and what may be written and read.
    pub(crate) fn into_lists(self) -> (Vec<String>, Vec<String>) {
        (self.read, self.write)
    }

    /// The path may be read. `place` is where it lies, which may be elsewhere than it is called.
    pub(crate) fn check_readable(&self, path: &str, place: &str) -> Result<(), CommandError> {
        let mut roots = self.read.iter().chain(&self.write);
        if roots.any(|root| inside(place, root)) {
            return Ok(());
        }
        let leads = match place == path {
            true => String::new(),
            false => format!(" (it leads to {place})"),
        };
        let field = self.field;
        Err(denied(format!(
            "{path}{leads} may not be read: {field} says what may, and it is not below any of that"
        )))
    }

    /// The path may be written.
    pub(crate) fn check_writable(&self, path: &str) -> Result<(), CommandError> {
        if let Some(workspace) = &self.readonly
            && inside(path, workspace)
        {
            return Err(denied(format!(
                "{path} lies in the workspace, which is only to be read: workspace.mode is readonly"
            )));
        }
        if self.write.iter().any(|root| inside(path, root)) {
            return Ok(());
        }
        let field = self.field;
        Err(denied(format!(
            "{path} may not be written: {field} says what may, and it is not below any of that"
        )))
    }

    /// The path may be removed: it lies in a folder that may be written.
    pub(crate) fn check_removable(&self, path: &str) -> Result<(), CommandError> {
        self.check_writable(path)?;
        if self.write.iter().any(|root| root == path) {
            return Err(denied(format!(
                "{path} itself may not be removed: {} says that what is in it may be written",
                self.field
            )));
        }
        Ok(())
    }
}

/// Programs that the kernel lets start must not be what commands make of them.
pub(crate) fn check_programs(terms: &Terms<'_>) -> Result<(), CommandError> {
    let programs = terms.programs();
    let Some(reach) = Reach::of(terms).filter(|_| !programs.is_empty()) else {
        return Ok(());
    };
    let refuse = |field, message| Err(CommandError::Invalid { field, message });
    let written = |program: &&String| reach.write.iter().any(|root| inside(program, root));
    if let Some(program) = programs.iter().find(written) {
        let message = format!("{program} lies where commands may write, and so could be anything");
        return refuse("policy.process.enforce", message);
    }
    let holds_programs = |root: &&String| {
        let mut places = PROGRAM_PLACES.iter();
        places.any(|place| inside(root, place) || inside(place, root))
    };
    match reach.write.iter().find(holds_programs) {
        Some(root) if *root == terms.workspace.path => {
            let message = format!("programs lie in {root}: with a list of them it is no workspace");
            refuse("workspace.path", message)
        }
        Some(root) => {
            let message = format!("programs lie in {root}: with a list of them it is not written");
            refuse("policy.filesystem.write", message)
        }
        None => Ok(()),
    }
}

/// A workspace that is only to be read must not lie where everything is to be written, nor have such a
/// place in it.
pub(crate) fn check_workspace(
    workspace: &WorkspaceRecord,
    write: &[String],
) -> Result<(), CommandError> {
    if workspace.mode != WorkspaceMode::Readonly {
        return Ok(());
    }
    let path = workspace.path.as_str();
    let invalid = |field, root: &str| {
        let message = format!("the workspace {path} is only to be read, and {root} may be written");
        Err(CommandError::Invalid { field, message })
    };
    if let Some(root) = SYSTEM_WRITE.iter().find(|root| inside(path, root)) {
        return invalid("workspace.path", root);
    }
    let meets = |root: &&String| inside(path, root) || inside(root, path);
    match write.iter().find(meets) {
        Some(root) => invalid("policy.filesystem.write", root),
        None => Ok(()),
    }
}

fn denied(detail: String) -> CommandError {
    CommandError::File {
        fault: FileFault::Denied,
        detail,
    }
}

/// The path is this one, or lies below it.
fn inside(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use fluxvm_projections::FilesystemRecord;
    use fluxvm_projections::ProcessRecord;
    use fluxvm_projections::Session;

    use super::*;
    use crate::testing::session;

    fn reach(change: impl FnOnce(&mut Session)) -> Reach {
        let mut session = session();
        change(&mut session);
        Reach::of(&Terms::of(&session)).unwrap()
    }

    fn with_files(session: &mut Session) {
        session.policy.exec = Some(FilesystemRecord {
            read: vec!["/opt/data".into()],
            write: vec!["/data/out".into()],
            best_effort: false,
        });
    }

    fn refusal(result: Result<(), CommandError>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.code(), "file_denied");
        error.to_string()
    }

    #[test]
    fn everything_may_be_reached_where_nothing_is_said() {
        assert_eq!(Reach::of(&Terms::of(&session())), None);
    }

    #[test]
    fn what_is_not_below_a_listed_path_is_refused_by_path_and_rule() {
        let reach = reach(with_files);
        for path in ["/opt/data", "/opt/data/a", "/etc/passwd", "/workspace/a"] {
            assert!(reach.check_readable(path, path).is_ok(), "{path}");
        }
        for path in ["/", "/opt", "/opt/database", "/root/x", "/srv"] {
            let said = refusal(reach.check_readable(path, path));
            assert!(said.contains(path) && said.contains("policy.filesystem"));
        }
        let through = refusal(reach.check_readable("/workspace/link", "/root/key"));
        assert!(through.contains("/workspace/link") && through.contains("/root/key"));
        for path in ["/data/out/a", "/tmp/a", "/workspace"] {
            assert!(reach.check_writable(path).is_ok(), "{path}");
        }
        for path in ["/opt/data/a", "/data", "/data/outer", "/usr/bin/git"] {
            let said = refusal(reach.check_writable(path));
            assert!(said.contains(path) && said.contains("policy.filesystem"));
        }
        assert!(reach.check_removable("/data/out/a").is_ok());
        assert!(refusal(reach.check_removable("/data/out")).contains("itself"));
    }

    #[test]
    fn a_workspace_that_is_only_to_be_read_is_not_written_and_all_else_is() {
        let reach = reach(|session| session.workspace.mode = WorkspaceMode::Readonly);
        for inside in ["/workspace", "/workspace/a/b"] {
            assert!(refusal(reach.check_writable(inside)).contains("readonly"));
            assert!(reach.check_readable(inside, inside).is_ok());
        }
        assert!(reach.check_writable("/tmp/workspace/a").is_ok());
        assert!(reach.check_writable("/workspace2/a").is_err());
    }

    #[test]
    fn a_place_in_a_place_that_may_be_written_is_no_place_of_its_own() {
        let reach = reach(|session| {
            session.policy.exec = Some(FilesystemRecord {
                read: vec!["/workspace/data".into(), "/opt".into()],
                write: vec!["/workspace/out".into(), "/data".into(), "/data/out".into()],
                best_effort: false,
            });
        });
        let (read, write) = reach.into_lists();
        assert!(write.ends_with(&["/workspace".to_owned(), "/data".to_owned()]));
        assert_eq!(read.last().map(String::as_str), Some("/opt"));
        assert!(!read.contains(&"/workspace/data".to_owned()));
    }

    #[test]
    fn a_listed_program_lies_where_no_command_writes() {
        let check = |program: &str, write: Option<&str>, workspace: &str| {
            let mut session = session();
            session.workspace.path = workspace.into();
            session.policy.process = Some(ProcessRecord {
                programs: vec![program.into()],
                ..ProcessRecord::default()
            });
            session.policy.exec = write.map(|path| FilesystemRecord {
                read: Vec::new(),
                write: vec![path.into()],
                best_effort: false,
            });
            let refused = check_programs(&Terms::of(&session)).err();
            refused.and_then(|error| error.field())
        };
        assert_eq!(check("git", None, "/workspace"), None);
        assert_eq!(check("/usr/bin/git", Some("/data"), "/workspace"), None);
        assert_eq!(check("/opt/tool", Some("/data"), "/workspace"), None);
        for program in ["/workspace/tool", "/tmp/tool", "/data/tool"] {
            let field = check(program, Some("/data"), "/workspace");
            assert_eq!(field, Some("policy.process.enforce"), "{program}");
        }
        for write in ["/", "/usr", "/usr/local", "/bin", "/usr/lib/x"] {
            let field = check("git", Some(write), "/workspace");
            assert_eq!(field, Some("policy.filesystem.write"), "{write}");
        }
        assert_eq!(check("git", None, "/usr/lib/w"), Some("workspace.path"));
    }

    #[test]
    fn a_workspace_cannot_be_only_read_where_something_may_be_written() {
        let mut workspace = session().workspace;
        workspace.mode = WorkspaceMode::Readonly;
        let check = |path: &str, write: &[&str]| {
            let workspace = WorkspaceRecord {
                path: path.into(),
                ..workspace.clone()
            };
            let write: Vec<String> = write.iter().map(ToString::to_string).collect();
            let refused = check_workspace(&workspace, &write).err();
            refused.and_then(|error| error.field())
        };
        assert_eq!(check("/workspace", &["/data"]), None);
        assert_eq!(check("/tmp/w", &[]), Some("workspace.path"));
        for write in ["/", "/workspace", "/workspace/out"] {
            assert_eq!(
                check("/workspace", &[write]),
                Some("policy.filesystem.write")
            );
        }
        workspace.mode = WorkspaceMode::Clone;
        assert!(check_workspace(&workspace, &["/workspace".to_owned()]).is_ok());
    }
}
