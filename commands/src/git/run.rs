//! One call of git in a guest.

use std::sync::Arc;

use agentd_protocol::EntryKind;
use agentd_protocol::ExecPolicy;
use agentd_protocol::FileFault;
use fluxvm_projections::Session;
use fluxvm_vmm::Sandbox;

use super::GitFault;
use crate::capture;
use crate::capture::Captured;
use crate::capture::Fixed;
use crate::confinement;
use crate::confinement::Runs;
use crate::error::CommandError;
use crate::files;
use crate::files::GuestPath;
use crate::limits::GIT_LIST_BYTES_MAX;

/// What every call begins with: nothing that the repository's configuration names is run beside git.
const FIRST_WORDS: [&str; 13] = [
    "git",
    "--no-pager",
    "--literal-pathspecs",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "commit.gpgSign=false",
    "-c",
    "core.quotePath=false",
    "-c",
    "gc.auto=0",
];

/// The exit code of a git that could not do what it was asked.
pub(super) const EXIT_FATAL: i32 = 128;

/// A repository in a guest.
pub(super) struct Repository {
    sandbox: Arc<dyn Sandbox>,
    pub(super) path: String,
    /// What the session's policy takes from every call.
    confine: Option<Box<ExecPolicy>>,
}

impl Repository {
    /// The repository that a request names, or the workspace. Its folder must be there.
    pub(super) async fn open(
        session: &Session,
        sandbox: &Arc<dyn Sandbox>,
        repo: Option<&str>,
    ) -> Result<Self, CommandError> {
        let path = GuestPath::parse("repo", repo.unwrap_or(&session.workspace.path))?;
        confinement::check_git(session)?;
        match files::facts(session, sandbox.as_ref(), &path).await {
            Ok(facts) if facts.entry.kind == EntryKind::Dir => Ok(Self::at(session, sandbox, path)),
            Ok(_)
            | Err(CommandError::File {
                fault: FileFault::Absent | FileFault::NotAFolder,
                ..
            }) => Err(CommandError::Git {
                fault: GitFault::NoRepository,
                detail: format!("there is no folder {}", path.as_str()),
            }),
            Err(error) => Err(error),
        }
    }

    /// A repository that was opened before.
    pub(super) fn known(
        session: &Session,
        sandbox: &Arc<dyn Sandbox>,
        path: &str,
    ) -> Result<Self, CommandError> {
        Ok(Self::at(session, sandbox, GuestPath::parse("repo", path)?))
    }

    fn at(session: &Session, sandbox: &Arc<dyn Sandbox>, path: GuestPath) -> Self {
        Self {
            sandbox: Arc::clone(sandbox),
            path: path.into_string(),
            confine: confinement::of_session(session, Runs::Theirs),
        }
    }

    /// Runs git with these words, whatever its exit code.
    pub(super) async fn git(&self, words: &[&str]) -> Result<Captured, CommandError> {
        self.git_with(words, &[], GIT_LIST_BYTES_MAX).await
    }

    pub(super) async fn git_with(
        &self,
        words: &[&str],
        env: &[(&'static str, String)],
        stdout_bytes_max: usize,
    ) -> Result<Captured, CommandError> {
        let mut fixed = fixed(&self.path, words, env, stdout_bytes_max);
        fixed.confine.clone_from(&self.confine);
        let captured = capture::capture(self.sandbox.as_ref(), fixed).await?;
        let captured = captured.ok_or_else(|| CommandError::Git {
            fault: GitFault::Missing,
            detail: "the sandbox has no git; install it, or take an image that has it".to_owned(),
        })?;
        if captured.exit_code == EXIT_FATAL && captured.stderr.contains("not a git repository") {
            return Err(CommandError::Git {
                fault: GitFault::NoRepository,
                detail: format!("{} is in no git repository", self.path),
            });
        }
        Ok(captured)
    }

    /// Runs git with these words, which must work.
    pub(super) async fn must(&self, words: &[&str]) -> Result<Captured, CommandError> {
        succeeded(self.git(words).await?)
    }

    /// The commit that is checked out; `None` in an empty repository.
    pub(super) async fn head(&self) -> Result<Option<String>, CommandError> {
        let found = self
            .git(&["rev-parse", "--verify", "--quiet", "HEAD"])
            .await?;
        Ok((found.exit_code == 0).then(|| line(&found)))
    }

    /// The branch that is checked out; `None` where none is.
    pub(super) async fn branch(&self) -> Result<Option<String>, CommandError> {
        let found = self
            .git(&["symbolic-ref", "--quiet", "--short", "HEAD"])
            .await?;
        Ok((found.exit_code == 0).then(|| line(&found)))
    }
}

/// The first line of what was printed.
pub(super) fn line(captured: &Captured) -> String {
    let text = String::from_utf8_lossy(&captured.stdout);
    text.lines().next().unwrap_or_default().to_owned()
}

/// What was printed, or the failure in git's own words.
pub(super) fn succeeded(captured: Captured) -> Result<Captured, CommandError> {
    match captured.exit_code {
        0 => Ok(captured),
        code => Err(CommandError::Git {
            fault: GitFault::Failed,
            detail: match captured.stderr.as_str() {
                "" => format!("git ended with code {code}"),
                said => format!("git ended with code {code}: {said}"),
            },
        }),
    }
}

fn fixed(
    repo: &str,
    words: &[&str],
    env: &[(&'static str, String)],
    stdout_bytes_max: usize,
) -> Fixed {
    let mut all: Vec<String> = FIRST_WORDS.iter().map(|word| (*word).to_owned()).collect();
    all.extend(["-C".to_owned(), repo.to_owned()]);
    all.extend(words.iter().map(|word| (*word).to_owned()));
    let mut variables = vec![
        // Its words are read where its exit codes do not say enough.
        ("LC_ALL", "C".to_owned()),
        ("GIT_TERMINAL_PROMPT", "0".to_owned()),
        ("GIT_EDITOR", "true".to_owned()),
        // A look must not be in the way of a command that runs beside it.
        ("GIT_OPTIONAL_LOCKS", "0".to_owned()),
    ];
    variables.extend(env.iter().cloned());
    Fixed {
        words: all,
        env: variables,
        stdout_bytes_max,
        confine: None,
    }
}
