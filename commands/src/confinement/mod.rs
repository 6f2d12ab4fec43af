//! What a session's policy takes from everything that runs in it, and from what is done to its files from
//! outside.
//!
//! One place says what may be reached ([`Reach`]). Commands are held to it by the guest's kernel, from
//! their first instruction to their last descendant; the file routes, which the guest daemon serves
//! itself, are held to it by a decision before anything happens. So a token for files is no way around
//! what commands may not do.
//!
//! A list of programs without rules about files still keeps the folders of programs as they are: a
//! program that could be written over would be any program.

mod limits;
mod reach;
mod report;
mod trial;

use agentd_protocol::ExecPolicy;
use agentd_protocol::SeccompPolicy;
use fluxvm_projections::BudgetRecord;
use fluxvm_projections::Capabilities;
use fluxvm_projections::PolicyRecord;
use fluxvm_projections::Session;
use fluxvm_projections::SessionCreateStarted;
use fluxvm_projections::WorkspaceRecord;

pub(crate) use limits::machine_limits;
pub(crate) use reach::Reach;
pub(crate) use reach::check_programs;
pub(crate) use reach::check_workspace;
pub(crate) use report::is_refusal;
pub(crate) use report::record;
pub(crate) use trial::trial;

use crate::error::CommandError;

/// The version of Landlock that knows signals and abstract sockets. Where there is an older one, rules
/// about files are enforced all the same; nothing in a policy promises more.
const LANDLOCK_ABI_SCOPES: u32 = 6;

/// The stable code of a command that the guest cannot hold to its session's policy, and that did not run.
pub(crate) const CODE_REFUSED: &str = "confinement_refused";

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Something that a caller chose: the list of programs holds.
    Theirs,
    /// A fixed helper of ours, which needs programs of its own.
    Helper,
}

/// Everything of a session that decides how its commands are confined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) workspace: &'a WorkspaceRecord,
    pub(crate) policy: &'a PolicyRecord,
    pub(crate) budget: Option<&'a BudgetRecord>,
    pub(crate) capabilities: &'a Capabilities,
}

impl<'a> Terms<'a> {
    pub(crate) fn of(session: &'a Session) -> Self {
        Self {
            workspace: &session.workspace,
            policy: &session.policy,
            budget: session.budget.as_ref(),
            capabilities: &session.capabilities,
        }
    }

    /// Those of a session that is being made on an engine that can do this.
    pub(crate) fn asked(asked: &'a SessionCreateStarted, engine: &'a Capabilities) -> Self {
        Self {
            workspace: &asked.workspace,
            policy: &asked.policy,
            budget: asked.budget.as_ref(),
            capabilities: engine,
        }
    }

    fn programs(&self) -> &'a [String] {
        let process = self.policy.process.as_ref();
        process.map_or(&[], |process| process.programs.as_slice())
    }

    /// The caller agreed that rules about files may not be enforced. A list of programs has no such
    /// agreement.
    fn best_effort(&self) -> bool {
        let files = self.policy.exec.as_ref();
        files.is_some_and(|files| files.best_effort) && self.programs().is_empty()
    }
}

/// The policy that a command starts with; `None` where the session's says nothing that a kernel could
/// hold it to. Pure.
pub(crate) fn exec_policy(terms: &Terms<'_>, runs: Runs) -> Option<ExecPolicy> {
    let reach = Reach::of(terms);
    let limits = limits::of_commands(terms);
    if reach.is_none() && limits.is_none() {
        return None;
    }
    let holds_files = reach.is_some();
    let programs = match runs {
        Runs::Theirs => terms.programs(),
        Runs::Helper => &[],
    };
    let limits = limits.unwrap_or_default();
    let (read, write) = reach.map(Reach::into_lists).unzip();
    Some(ExecPolicy {
        read,
        write,
        execute: (!programs.is_empty()).then(|| programs.to_vec()),
        scope_ipc: holds_files && terms.capabilities.landlock_abi >= LANDLOCK_ABI_SCOPES,
        seccomp: holds_files.then_some(SeccompPolicy::Errno),
        max_processes: limits.processes,
        max_memory: limits.memory_bytes,
        best_effort: terms.best_effort(),
        ..ExecPolicy::default()
    })
}

/// The same, as a start carries it.
pub(crate) fn of_session(session: &Session, runs: Runs) -> Option<Box<ExecPolicy>> {
    exec_policy(&Terms::of(session), runs).map(Box::new)
}

/// Whether git may be started for a caller. Pure.
pub(crate) fn check_git(session: &Session) -> Result<(), CommandError> {
    let programs = Terms::of(session).programs();
    let is_git = |program: &String| program.rsplit('/').next() == Some("git");
    if programs.is_empty() || programs.iter().any(is_git) {
        return Ok(());
    }
    Err(CommandError::Refused {
        code: "policy_refused",
        reason: "git is none of the programs that policy.process.enforce lets start: name it in \
                 policy.process.allow for the git routes"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::Expect;
    use expect_test::expect;
    use fluxvm_projections::FilesystemRecord;
    use fluxvm_projections::ProcessRecord;
    use fluxvm_projections::WorkspaceMode;

    use super::*;
    use crate::testing::session;

    fn check(change: impl FnOnce(&mut Session), runs: Runs, expected: &Expect) {
        let mut session = session();
        session.capabilities.landlock_abi = 7;
        change(&mut session);
        let policy = of_session(&session, runs);
        expected.assert_eq(&serde_json::to_string(&policy).unwrap());
    }

    fn files(session: &mut Session, read: &[&str], write: &[&str]) {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        session.policy.exec = Some(FilesystemRecord {
            read: owned(read),
            write: owned(write),
            best_effort: false,
        });
    }

    fn programs(session: &mut Session, programs: &[&str]) {
        session.policy.process = Some(ProcessRecord {
            allow: vec!["x".into()],
            programs: programs.iter().map(ToString::to_string).collect(),
            ..ProcessRecord::default()
        });
    }

    #[test]
    fn a_session_without_rules_starts_commands_as_before() {
        check(|_| {}, Runs::Theirs, &expect!["null"]);
    }

    #[test]
    fn rules_about_files_come_beside_the_systems_own() {
        check(
            |session| files(session, &["/opt/data"], &["/data/out"]),
            Runs::Theirs,
            &expect![[
                r#"{"read":["/bin","/sbin","/usr","/lib","/lib32","/lib64","/etc","/proc","/sys","/opt/data"],"write":["/tmp","/dev/null","/dev/zero","/dev/full","/dev/random","/dev/urandom","/dev/tty","/dev/ptmx","/dev/pts","/dev/shm","/workspace","/data/out"],"scope_ipc":true,"seccomp":"errno","allow_unix":true,"isolation":"off"}"#
            ]],
        );
    }

    #[test]
    fn a_workspace_that_is_only_to_be_read_turns_the_defaults_on() {
        check(
            |session| session.workspace.mode = WorkspaceMode::Readonly,
            Runs::Theirs,
            &expect![[
                r#"{"read":["/bin","/sbin","/usr","/lib","/lib32","/lib64","/etc","/proc","/sys","/workspace"],"write":["/tmp","/dev/null","/dev/zero","/dev/full","/dev/random","/dev/urandom","/dev/tty","/dev/ptmx","/dev/pts","/dev/shm"],"scope_ipc":true,"seccomp":"errno","allow_unix":true,"isolation":"off"}"#
            ]],
        );
    }

    #[test]
    fn a_list_of_programs_keeps_their_folders_as_they_are_and_helpers_are_not_held_to_it() {
        let expected = expect![[
            r#"{"read":["/"],"write":["/tmp","/dev","/home","/media","/mnt","/proc","/root","/run","/srv","/var","/workspace"],"execute":["git"],"scope_ipc":true,"seccomp":"errno","allow_unix":true,"isolation":"off"}"#
        ]];
        check(
            |session| programs(session, &["git"]),
            Runs::Theirs,
            &expected,
        );
        let mut session = session();
        programs(&mut session, &["git"]);
        let helper = of_session(&session, Runs::Helper).unwrap();
        assert!(helper.execute.is_none() && helper.write.is_some());
        assert!(!helper.scope_ipc, "an older kernel knows no scopes");
    }

    #[test]
    fn only_rules_about_files_can_be_best_effort() {
        let mut session = session();
        files(&mut session, &[], &[]);
        session.policy.exec.as_mut().unwrap().best_effort = true;
        assert!(of_session(&session, Runs::Theirs).unwrap().best_effort);
        programs(&mut session, &["git"]);
        assert!(!of_session(&session, Runs::Theirs).unwrap().best_effort);
    }

    #[test]
    fn git_runs_where_it_is_listed_or_nothing_is() {
        let mut session = session();
        assert!(check_git(&session).is_ok());
        for (listed, runs) in [("git", true), ("/usr/bin/git", true), ("digit", false)] {
            programs(&mut session, &[listed]);
            assert_eq!(check_git(&session).is_ok(), runs, "{listed}");
        }
    }
}
