//! From a request to a command: everything that can be refused before a process exists.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use agentd_protocol::ExecPolicy;
use agentd_protocol::KillScope;
use agentd_protocol::PrincipalRef;
use agentd_protocol::ShellChoice;
use agentd_protocol::Slug;
use agentd_protocol::StartExtension;
use agentd_protocol::StartRequest;

use super::Refusal;
use super::Terms;
use super::principals::Files;
use crate::capabilities::can_power_off;
use crate::confine;
use crate::settings::Settings;
use crate::supervise::Command;

/// Longest time that a request can ask for: longer is the same as for ever.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Where programs are looked for when the command's environment has no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables that the daemon was started with, but for its own knobs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageEnvironment(BTreeMap<String, String>);

impl ImageEnvironment {
    /// Takes the pairs that are UTF-8 and not the daemon's own.
    pub(crate) fn snapshot() -> Self {
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            (!name.starts_with("AGENTD_")).then_some((name, value))
        });
        Self(pairs.collect())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// What a request's command is built on.
pub(super) struct Base<'a> {
    pub(super) settings: &'a Settings,
    pub(super) image: &'a ImageEnvironment,
    pub(super) launch: &'a BTreeMap<String, String>,
}

/// Refuses a request whose values cannot mean anything, known id or not.
pub(crate) fn check_shape(request: &StartRequest) -> Result<(), Refusal> {
    let malformed = |detail: &str| Err(Refusal::new(Slug::MalformedRequest, detail));
    if request
        .timeout_sec
        .is_some_and(|seconds| !seconds.is_finite() || seconds <= 0.0)
    {
        return malformed("`timeout_sec` is not a finite number above zero");
    }
    if request.command.is_empty() && request.shell == ShellChoice::Flag(false) {
        return malformed("`command` is empty and no shell is asked for");
    }
    if request.shell == ShellChoice::Named(String::new()) {
        return malformed("`shell` is empty");
    }
    if request
        .env
        .keys()
        .any(|name| name.is_empty() || name.contains('='))
    {
        return malformed("`env` has a name that is empty or holds an equals sign");
    }
    let policy_env = policy(request).map_or(&[][..], |policy| &policy.env);
    if policy_env
        .iter()
        .any(|(name, _)| name.is_empty() || name.contains('='))
    {
        return malformed("`confine.env` has a name that is empty or holds an equals sign");
    }
    if policy(request).is_some_and(|policy| policy.timeout_secs == Some(0)) {
        return malformed("`confine.timeout_secs` is zero");
    }
    Ok(())
}

/// How a request wants its exec to be stopped and read out.
pub(super) fn terms(request: &StartRequest, settings: &Settings) -> Terms {
    let x: StartExtension = request.x.clone().unwrap_or_default();
    let milliseconds =
        |value: Option<u64>| value.map(|value| Duration::from_millis(value).min(DURATION_MAX));
    let timeout = request.timeout_sec.map(|seconds| {
        Duration::try_from_secs_f64(seconds).map_or(DURATION_MAX, |asked| asked.min(DURATION_MAX))
    });
    let policy_timeout = policy(request).and_then(|policy| policy.timeout_secs);
    let policy_timeout = policy_timeout.map(Duration::from_secs);
    let timeout = timeout.into_iter().chain(policy_timeout).min();
    Terms {
        timeout,
        kill_grace: milliseconds(x.kill_grace_ms).unwrap_or(settings.kill_grace),
        output_linger: milliseconds(x.output_linger_ms).unwrap_or(settings.output_linger),
        // A terminal's shell puts every job into a group of its own.
        scope: x.scope.unwrap_or(if x.terminal.is_some() {
            KillScope::Tree
        } else {
            KillScope::Group
        }),
        reap_group_on_exit: request.reap_group_on_exit,
        poweroff_on_exit: request.poweroff_on_exit,
        stdin: request.stdin || x.terminal.is_some(),
    }
}

/// The policy of a start, if it has one.
pub(super) fn policy(request: &StartRequest) -> Option<&ExecPolicy> {
    request.x.as_ref()?.confine.as_deref()
}

/// The request with what its policy says about the user, the folder and the variables.
fn with_policy(request: &StartRequest) -> Cow<'_, StartRequest> {
    let Some(policy) = policy(request) else {
        return Cow::Borrowed(request);
    };
    let mut whole = request.clone();
    if let Some(run_as) = policy.run_as {
        whole.user = Some(PrincipalRef::Id(run_as.uid));
        whole.group = Some(PrincipalRef::Id(run_as.gid));
    }
    whole.cwd = whole.cwd.or_else(|| policy.cwd.clone());
    whole.env.extend(policy.env.iter().cloned());
    whole.inherit_image_env &= !policy.clean_env;
    Cow::Owned(whole)
}

/// Builds the command. Names are resolved in the order user, group, shell; the first that cannot
/// be is the answer.
pub(super) fn command(request: &StartRequest, base: &Base<'_>) -> Result<Command, Refusal> {
    let request = &*with_policy(request);
    let policy = policy(request);
    if request.poweroff_on_exit && !can_power_off() {
        let detail = "this daemon may not power the guest off";
        return Err(Refusal::new(Slug::PoweroffUnavailable, detail));
    }
    let daemon_uid = nix::unistd::geteuid().as_raw();
    let files = Files::read(request);
    let principal = files.resolve(request, &base.settings.default_user, daemon_uid)?;
    let daemon_gid = nix::unistd::getegid().as_raw();
    // Who stays who he is needs no change, which the kernel may not allow at all.
    let stays = principal.uid.is_none_or(|uid| uid == daemon_uid)
        && principal.gid.is_none_or(|gid| gid == daemon_gid);
    let (uid, gid) = if stays {
        (None, None)
    } else {
        (principal.uid, principal.gid)
    };
    let mut environment: BTreeMap<&str, &str> = BTreeMap::new();
    if request.inherit_image_env {
        environment.extend(text_pairs(&base.image.0));
    }
    if !policy.is_some_and(|policy| policy.clean_env) {
        environment.extend(
            principal
                .variables
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        environment.extend(text_pairs(base.launch));
    }
    environment.extend(text_pairs(&request.env));
    let path = environment.get("PATH").copied();
    let arguments = arguments(request, path, base.image)?;
    let program = arguments.first().map(String::as_str).unwrap_or_default();
    let programs = programs(program, path.unwrap_or(PATH_DEFAULT));
    let pairs = environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    Ok(Command {
        programs: c_strings(programs, "the program's path")?,
        environment: c_strings(pairs, "a variable")?,
        directory: c_strings(request.cwd.clone(), "the working directory")?.pop(),
        arguments: c_strings(arguments, "an argument")?,
        uid,
        gid,
        stdin: request.stdin,
        terminal: request.x.as_ref().and_then(|x| x.terminal),
        confinement: policy
            .map(|policy| confine::prepare(policy, uid.unwrap_or(daemon_uid)))
            .transpose()?,
    })
}

fn text_pairs(map: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    map.iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
}

fn arguments(
    request: &StartRequest,
    path: Option<&str>,
    image: &ImageEnvironment,
) -> Result<Vec<String>, Refusal> {
    let shell = match &request.shell {
        ShellChoice::Flag(false) => return Ok(request.command.clone()),
        ShellChoice::Flag(true) => "/bin/sh".to_owned(),
        ShellChoice::Named(name) => find_shell(name, path, image)?,
    };
    Ok(vec![shell, "-c".into(), request.command.join("\n")])
}

/// Where a program may lie: its own path if it has a slash, else each folder of `PATH`.
fn programs(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') || program.is_empty() {
        return vec![program.to_owned()];
    }
    let in_folder = |folder: &str| match folder {
        "" => program.to_owned(),
        folder => format!("{folder}/{program}"),
    };
    path.split(':').map(in_folder).collect()
}

fn find_shell(name: &str, path: Option<&str>, image: &ImageEnvironment) -> Result<String, Refusal> {
    let found = if name.contains('/') {
        (name.starts_with('/') && is_program(name)).then(|| name.to_owned())
    } else {
        let image_path = image.0.get("PATH").map(String::as_str);
        let folders = [path, image_path, Some("/bin:/usr/bin")];
        let folders = folders
            .into_iter()
            .flatten()
            .flat_map(|path| path.split(':'));
        let absolute = folders.filter(|folder| folder.starts_with('/'));
        absolute
            .map(|folder| format!("{folder}/{name}"))
            .find(|path| is_program(path))
    };
    found.ok_or_else(|| Refusal::new(Slug::UnknownShell, format!("no shell is found as {name:?}")))
}

fn is_program(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn c_strings<I>(strings: I, what: &str) -> Result<Vec<CString>, Refusal>
where
    I: IntoIterator<Item = String>,
{
    let strings = strings.into_iter().map(CString::new);
    strings.collect::<Result<_, _>>().map_err(|_| {
        Refusal::new(
            Slug::SpawnFailed,
            format!("{what} holds a NUL, which no process can take"),
        )
    })
}

#[cfg(test)]
mod tests {
    use agentd_protocol::ExecId;

    use super::*;

    fn request(command: &[&str]) -> StartRequest {
        StartRequest::new(ExecId::new("e").unwrap(), command.iter().copied())
    }

    #[test]
    fn a_time_limit_that_means_nothing_is_refused_and_a_huge_one_is_for_ever() {
        for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut request = request(&["true"]);
            request.timeout_sec = Some(nonsense);
            assert!(check_shape(&request).is_err(), "{nonsense}");
        }
        let mut request = request(&["true"]);
        request.timeout_sec = Some(1e300);
        assert_eq!(check_shape(&request), Ok(()));
        assert_eq!(
            terms(&request, &Settings::default()).timeout,
            Some(DURATION_MAX)
        );
    }

    #[test]
    fn the_extension_overrules_the_defaults() {
        let mut request = request(&["true"]);
        assert_eq!(
            terms(&request, &Settings::default()).scope,
            KillScope::Group
        );
        request.x = Some(StartExtension {
            kill_grace_ms: Some(5),
            output_linger_ms: Some(0),
            scope: Some(KillScope::Tree),
            ..StartExtension::default()
        });
        let terms = terms(&request, &Settings::default());
        assert_eq!(terms.kill_grace, Duration::from_millis(5));
        assert_eq!(terms.output_linger, Duration::ZERO);
        assert_eq!(terms.scope, KillScope::Tree);
    }

    #[test]
    fn a_command_without_a_shell_is_not_empty_and_one_with_a_shell_may_be() {
        assert!(check_shape(&request(&[])).is_err());
        let mut scripted = request(&[]);
        scripted.shell = ShellChoice::Flag(true);
        assert_eq!(check_shape(&scripted), Ok(()));
    }

    #[test]
    fn layers_of_the_environment_overrule_each_other_upwards() {
        let image = ImageEnvironment(BTreeMap::from([
            ("A".to_owned(), "image".to_owned()),
            ("B".to_owned(), "image".to_owned()),
        ]));
        let launch = BTreeMap::from([
            ("B".to_owned(), "launch".to_owned()),
            ("C".to_owned(), "launch".to_owned()),
        ]);
        let settings = Settings::default();
        let base = Base {
            settings: &settings,
            image: &image,
            launch: &launch,
        };
        let mut request = request(&["true"]);
        request.env.insert("C".into(), "request".into());
        request.inherit_image_env = true;
        let has = |command: &Command, pair: &str| {
            command
                .environment
                .iter()
                .any(|entry| entry.to_str() == Ok(pair))
        };
        let built = command(&request, &base).unwrap();
        for pair in ["A=image", "B=launch", "C=request"] {
            assert!(has(&built, pair), "{pair}");
        }
        request.inherit_image_env = false;
        assert!(!has(&command(&request, &base).unwrap(), "A=image"));
    }

    #[test]
    fn programs_are_looked_for_along_the_path() {
        assert_eq!(programs("ls", "/a::/b"), ["/a/ls", "ls", "/b/ls"]);
        assert_eq!(programs("./ls", "/a"), ["./ls"]);
        assert_eq!(programs("", "/a"), [""]);
    }

    #[test]
    fn a_shell_is_found_by_name_or_by_absolute_path() {
        let image = ImageEnvironment::default();
        assert!(find_shell("sh", None, &image).is_ok_and(|path| path.ends_with("/sh")));
        assert_eq!(find_shell("/bin/sh", None, &image).unwrap(), "/bin/sh");
        for unknown in ["bin/sh", "no-such-shell", "/etc", "/etc/passwd"] {
            let refusal = find_shell(unknown, Some("relative"), &image).unwrap_err();
            assert_eq!(refusal.slug, Slug::UnknownShell, "{unknown}");
        }
    }

    #[test]
    fn a_nul_is_refused_as_a_failed_start() {
        let settings = Settings::default();
        let image = ImageEnvironment::default();
        let launch = BTreeMap::new();
        let base = Base {
            settings: &settings,
            image: &image,
            launch: &launch,
        };
        let mut cwd = request(&["true"]);
        cwd.cwd = Some("/\0".into());
        let mut env = request(&["true"]);
        env.env.insert("A".into(), "\0".into());
        for request in [request(&["true", "a\0b"]), cwd, env] {
            assert_eq!(
                command(&request, &base).unwrap_err().slug,
                Slug::SpawnFailed
            );
        }
    }
}
