//! One attempt, and how a table of them is tried.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::SESSIONS;
use serde_json::Value;
use serde_json::json;

/// What has to stop an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// The sandbox's own namespaces: what is outside has no name inside.
    Namespace,
    /// The layer over the host's root that hides homes, scratch files, sockets and state.
    Mask,
    /// The rights of nobody, with which the host's root is read.
    RightsOfNobody,
    /// The rights that no command has, root's included, and that of root over its own namespace only.
    Capabilities,
    /// The kernel itself, of its first process.
    FirstProcess,
    /// The guest daemon's token.
    GuestToken,
    /// The guest daemon, which hands nothing of its own on to a command.
    GuestDaemon,
    /// File and program rules in the kernel.
    Landlock,
    /// Landlock's scopes: signals and abstract sockets.
    Scope,
    /// The filter of calls.
    CallFilter,
}

impl Layer {
    /// Whether what a line said is what it says when this layer stopped it.
    pub(crate) fn stopped(self, said: &str) -> bool {
        self.says().iter().any(|word| said.contains(word))
    }

    /// What a line says when this layer stopped it: one of these.
    fn says(self) -> &'static [&'static str] {
        match self {
            Self::Namespace => &[
                "No such",
                "refused",
                "not found",
                "cannot find",
                "ESRCH",
                "ENOENT",
                "ECONNREFUSED",
                "EINVAL",
                "does not exist",
                "not mounted",
                "EPERM",
            ],
            Self::Mask => &["No such file"],
            Self::RightsOfNobody => &["Permission denied"],
            Self::Capabilities => &[
                "not permitted",
                "ermission denied",
                "Read-only",
                "EPERM",
                "EACCES",
                "must be superuser",
                "nonexistent",
                "No such file",
                "ENOSYS",
            ],
            Self::FirstProcess => &["alive"],
            Self::GuestToken => &["401"],
            Self::GuestDaemon => &["nothing left"],
            Self::Landlock => &[
                "ermission denied",
                "cross-device",
                "EACCES",
                "EXDEV",
                "not permitted",
                "EPERM",
            ],
            Self::Scope => &["not permitted", "EPERM"],
            Self::CallFilter => &["not permitted", "EPERM", "ENOSYS"],
        }
    }
}

/// How a row shows that its line could have worked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    /// The same line works in a session without a policy.
    WithoutPolicy,
    /// This line works in the same session: the means are there, only what they are used on is not.
    Means(&'static str),
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) name: &'static str,
    pub(crate) layer: Layer,
    pub(crate) line: &'static str,
    pub(crate) control: Control,
}

/// Python that makes raw calls: `call(number, …)` and `did(libc.name(…))` answer the result, or end the
/// program with the error's name on standard error.
pub(crate) const CALLS: &str = r#"
import ctypes, errno, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
arm = platform.machine() == "aarch64"
N = {"add_key": 217 if arm else 248, "finit_module": 273 if arm else 313, "userfaultfd": 282 if arm else 323}
def did(got):
    if got < 0:
        sys.exit(errno.errorcode.get(ctypes.get_errno(), "?"))
    return got
def call(*words):
    return did(libc.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words]))
"#;

/// Puts what the rows use into a session's scratch folder, where every policy lets it be read.
pub(crate) fn equip(api: &Api, id: &str) {
    let body = json!({"path": "/tmp/calls.py", "content_base64": encoded(CALLS)});
    let url = format!("{SESSIONS}/{id}/files/content");
    let answer = api.send("PUT", &url, &[], body.to_string().as_bytes());
    let _ = answer.expect(200);
}

fn encoded(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Tries every row in a session, with a session without a policy beside it.
pub(crate) fn all_are_stopped(api: &Api, id: &str, free: &str, attempts: &[Attempt]) {
    let mut broken = Vec::new();
    for attempt in attempts {
        if let Err(why) = is_stopped(api, id, free, attempt) {
            broken.push(format!("{} ({:?}): {why}", attempt.name, attempt.layer));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert_eq!(
        api.exec(id, "echo on").text(),
        "on\n",
        "the sandbox lives on"
    );
    assert_eq!(api.get("/healthz").status, 200, "the daemon lives on");
}

fn is_stopped(api: &Api, id: &str, free: &str, attempt: &Attempt) -> Result<(), String> {
    let answer = run(api, id, attempt.line);
    let said = said(&answer);
    if answer["exit_code"] == 0 {
        return Err(format!("it worked: {said}"));
    }
    if !attempt.layer.stopped(&said) {
        return Err(format!("something else stopped it: {said}"));
    }
    let (where_to, line) = match attempt.control {
        Control::WithoutPolicy => (free, attempt.line),
        Control::Means(line) => (id, line),
    };
    let control = run(api, where_to, line);
    match control["exit_code"] == 0 {
        true => Ok(()),
        false => Err(format!("its control does not work: {control}")),
    }
}

fn run(api: &Api, id: &str, line: &str) -> Value {
    let body = json!({"command": line, "timeout_seconds": 20});
    api.try_exec(id, &body).expect(200)
}

fn said(answer: &Value) -> String {
    format!("{} {}", answer["stdout"], answer["stderr"])
}
