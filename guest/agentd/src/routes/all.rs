//! Every route, once: the router looks requests up here, and the schema is written from here, so
//! that what is published is what is served.

use agentd_protocol::Hook;
use agentd_protocol::paths::ExecVerb;

use super::table::Action;
use super::table::Audience;
use super::table::Content;
use super::table::Route;
use super::table::Status;
use super::table::Verb;

const fn status(code: u16, error: &'static str, meaning: &'static str) -> Status {
    Status {
        code,
        error: Some(error),
        meaning,
    }
}

const fn plain(code: u16, meaning: &'static str) -> Status {
    Status {
        code,
        error: None,
        meaning,
    }
}

const MALFORMED: Status = status(400, "malformed_request", "the request has another shape");
const UNKNOWN: Status = status(404, "unknown_exec", "no exec has this id");
const TOO_LONG: Status = plain(413, "the body is over its cap");
const ALWAYS: &[Status] = &[plain(200, "always")];
const OK: Status = plain(200, "done");

const fn hook(hook: Hook, path: &'static str, summary: &'static str) -> Route {
    Route {
        verb: Verb::Post,
        path,
        audience: Audience::Platform,
        action: Action::Hook(hook),
        summary,
        query: None,
        request: Content::Nothing,
        response: Content::Nothing,
        statuses: ALWAYS,
    }
}

const fn bearer(
    verb: Verb,
    path: &'static str,
    action: Action,
    summary: &'static str,
    statuses: &'static [Status],
) -> Route {
    Route {
        verb,
        path,
        audience: Audience::Bearer,
        action,
        summary,
        query: None,
        request: Content::Nothing,
        response: Content::Nothing,
        statuses,
    }
}

const fn exec(
    verb: Verb,
    path: &'static str,
    action: Action,
    summary: &'static str,
    statuses: &'static [Status],
    answer: &'static str,
) -> Route {
    Route {
        response: Content::Json(answer),
        ..bearer(verb, path, action, summary, statuses)
    }
}

const START_STATUSES: &[Status] = &[
    plain(200, "the command runs, or ran before under this id"),
    MALFORMED,
    status(400, "unknown_user", "`user` names nobody"),
    status(400, "unknown_group", "`group` names no group"),
    status(400, "unknown_shell", "`shell` names no program"),
    status(
        400,
        "poweroff_unavailable",
        "this daemon cannot power the guest off",
    ),
    status(
        400,
        "policy_unenforceable",
        "the policy cannot be enforced here, and is not best effort",
    ),
    TOO_LONG,
    status(
        500,
        "spawn_failed",
        "the command could not be started; nothing is registered",
    ),
];

const EXACT_STATUSES: &[Status] = &[
    OK,
    status(400, "malformed", "the query or the path means nothing"),
    status(400, "magic_link", "the path leads through a link of /proc"),
    status(400, "symlink", "a symbolic link is in the way of a change"),
    status(404, "absent", "nothing lies there"),
    status(409, "not_a_file", "what lies there is no regular file"),
    status(409, "not_a_folder", "a part of the path is no folder"),
    status(409, "not_empty", "the folder is not empty"),
    status(409, "size_mismatch", "other than the announced bytes came"),
    status(409, "checksum_mismatch", "the bytes have another digest"),
    status(409, "denied", "the file system forbids it"),
    status(413, "too_large", "more than the route takes"),
    status(500, "failed", "the file system failed"),
    status(507, "no_room", "the disk has no room beyond its reserve"),
];

/// All routes. The first of a path decides nothing over the others: they share their audience.
pub(super) const ROUTES: &[Route] = &[
    hook(
        Hook::Ready,
        "/aws/lambda-microvms/runtime/v1/ready",
        "image build: the daemon answers",
    ),
    hook(
        Hook::Validate,
        "/aws/lambda-microvms/runtime/v1/validate",
        "image build: the daemon still answers",
    ),
    Route {
        request: Content::Json("RunHookEnvelope"),
        statuses: &[
            plain(200, "installed now, or before by the same launch"),
            plain(400, "the envelope or the payload has another shape"),
            plain(
                408,
                "the envelope did not arrive in time; the connection closes",
            ),
            plain(409, "another launch came first; nothing changed"),
            plain(413, "the envelope is too long; the connection closes"),
        ],
        ..hook(
            Hook::Run,
            "/aws/lambda-microvms/runtime/v1/run",
            "installs the token, the launch environment and the identity, once",
        )
    },
    hook(
        Hook::Suspend,
        "/aws/lambda-microvms/runtime/v1/suspend",
        "runs the image's suspend handler",
    ),
    hook(
        Hook::Resume,
        "/aws/lambda-microvms/runtime/v1/resume",
        "runs the image's resume handler",
    ),
    hook(
        Hook::Terminate,
        "/aws/lambda-microvms/runtime/v1/terminate",
        "runs the image's terminate handler; the server goes on",
    ),
    Route {
        audience: Audience::Open,
        ..exec(
            Verb::Get,
            "/v1/health",
            Action::Health,
            "liveness, bootstrap state, activity",
            &[plain(200, "always")],
            "Health",
        )
    },
    Route {
        audience: Audience::Open,
        response: Content::Media("application/json"),
        ..bearer(
            Verb::Get,
            "/v1/schema",
            Action::Schema,
            "this document",
            &[plain(200, "always")],
        )
    },
    exec(
        Verb::Get,
        "/v1/discovery",
        Action::Discovery,
        "what the image configures",
        &[OK],
        "Discovery",
    ),
    exec(
        Verb::Get,
        "/v1/procs",
        Action::Procs,
        "every exec's process group and its live members",
        &[OK],
        "Procs",
    ),
    Route {
        request: Content::Json("IdentityRequest"),
        ..exec(
            Verb::Post,
            "/v1/x/identity",
            Action::Identity,
            "takes a new token and identity, once for each number; ends every other connection",
            &[
                plain(200, "taken now, or before by the same request"),
                MALFORMED,
                status(
                    409,
                    "generation_conflict",
                    "the guest has a later identity, or another one of this number",
                ),
                TOO_LONG,
            ],
            "IdentityState",
        )
    },
    Route {
        request: Content::Json("QuiesceRequest"),
        ..exec(
            Verb::Post,
            "/v1/x/quiesce",
            Action::Quiesce,
            "ends every other connection, and holds what their readers have still to get",
            &[OK, MALFORMED, TOO_LONG],
            "QuiesceState",
        )
    },
    Route {
        query: Some("TunnelQuery"),
        ..bearer(
            Verb::Get,
            "/v1/tcp",
            Action::Tunnel,
            "a WebSocket that relays to a port inside the guest",
            &[
                plain(101, "upgraded; the close code tells the outcome"),
                MALFORMED,
            ],
        )
    },
    Route {
        request: Content::Json("StartRequest"),
        ..exec(
            Verb::Post,
            "/v1/exec/start",
            Action::Start,
            "starts a command, once for each id",
            START_STATUSES,
            "StartedState",
        )
    },
    Route {
        request: Content::Json("StartRequest"),
        response: Content::Media("text/event-stream"),
        ..bearer(
            Verb::Post,
            "/v1/x/exec/run",
            Action::Run,
            "starts a command and follows its output from the first byte",
            START_STATUSES,
        )
    },
    exec(
        Verb::Get,
        "/v1/exec/{id}",
        Action::Exec(ExecVerb::Poll),
        "the state, and the result once there is one; changes nothing",
        &[OK, UNKNOWN],
        "ExecState",
    ),
    Route {
        query: Some("StreamQuery"),
        response: Content::Media("text/event-stream"),
        ..bearer(
            Verb::Get,
            "/v1/exec/{id}/stream",
            Action::Exec(ExecVerb::Stream),
            "follows the output from a byte offset",
            &[OK, MALFORMED, UNKNOWN],
        )
    },
    Route {
        request: Content::Json("StdinRequest"),
        ..exec(
            Verb::Post,
            "/v1/exec/{id}/stdin",
            Action::Stdin,
            "writes to standard input, or ends it",
            &[
                OK,
                MALFORMED,
                UNKNOWN,
                status(
                    408,
                    "stdin_write_timeout",
                    "the command did not take the bytes in time",
                ),
                status(
                    409,
                    "stdin_not_requested",
                    "the start did not ask for an input",
                ),
                status(
                    409,
                    "stdin_gap",
                    "the write's offset is behind what the command took",
                ),
                status(410, "stdin_closed", "the input is closed"),
                status(
                    413,
                    "stdin_write_too_large",
                    "more bytes than one write may carry",
                ),
                status(500, "stdin_write_failed", "the kernel refused the bytes"),
            ],
            "StdinState",
        )
    },
    Route {
        request: Content::Json("TerminalSize"),
        ..exec(
            Verb::Post,
            "/v1/x/exec/{id}/resize",
            Action::Resize,
            "gives the exec's terminal another size",
            &[
                OK,
                MALFORMED,
                UNKNOWN,
                status(
                    409,
                    "no_terminal",
                    "the start did not ask for a terminal, or it is gone",
                ),
                TOO_LONG,
            ],
            "ResizeState",
        )
    },
    Route {
        query: Some("AckQuery"),
        ..exec(
            Verb::Post,
            "/v1/exec/{id}/ack",
            Action::Exec(ExecVerb::Ack),
            "releases the output and answers with the result for the last time",
            &[
                OK,
                UNKNOWN,
                status(409, "still_running", "there is no result yet"),
                status(409, "already_acked", "it was released before"),
            ],
            "ExecState",
        )
    },
    Route {
        query: Some("KillQuery"),
        ..exec(
            Verb::Post,
            "/v1/exec/{id}/kill",
            Action::Exec(ExecVerb::Kill),
            "ends the process group and answers when it is gone",
            &[OK, UNKNOWN],
            "KillState",
        )
    },
    Route {
        query: Some("FileReadQuery"),
        response: Content::Media("application/octet-stream"),
        ..bearer(
            Verb::Get,
            "/v1/fs/file",
            Action::ReadFile,
            "reads a file, or a range of its lines",
            &[
                OK,
                plain(400, "the query means nothing, or the path is no file"),
                plain(404, "nothing lies there"),
                plain(500, "the file system refused"),
            ],
        )
    },
    Route {
        query: Some("FileWriteQuery"),
        request: Content::Media("application/octet-stream"),
        ..bearer(
            Verb::Put,
            "/v1/fs/file",
            Action::WriteFile,
            "writes one file",
            &[
                plain(204, "written"),
                plain(400, "the query means nothing, or the path cannot be a file"),
                TOO_LONG,
                plain(500, "the file system refused"),
                plain(507, "the disk has no room beyond its reserve"),
            ],
        )
    },
    Route {
        query: Some("PathQuery"),
        response: Content::Media("application/x-tar"),
        ..bearer(
            Verb::Get,
            "/v1/fs/tar",
            Action::ReadTree,
            "a folder as an archive",
            &[
                OK,
                plain(400, "the path is no folder"),
                plain(404, "nothing lies there"),
                plain(413, "more members or bytes than an archive may hold"),
                plain(500, "the file system refused"),
            ],
        )
    },
    Route {
        query: Some("PathQuery"),
        request: Content::Media("application/x-tar"),
        ..bearer(
            Verb::Put,
            "/v1/fs/tar",
            Action::WriteTree,
            "unpacks an archive below a folder, and nowhere else",
            &[
                plain(204, "unpacked"),
                plain(
                    400,
                    "a relative path, a body that was cut off, or a member that is refused",
                ),
                plain(
                    413,
                    "the body, the members or their bytes are over their cap",
                ),
                plain(500, "no archive, or the file system refused"),
                plain(507, "the disk has no room beyond its reserve"),
            ],
        )
    },
    Route {
        query: Some("PathQuery"),
        ..exec(
            Verb::Get,
            "/v1/x/fs/stat",
            Action::Facts,
            "what lies at a path, and what lies in it",
            EXACT_STATUSES,
            "FileFacts",
        )
    },
    Route {
        query: Some("SliceQuery"),
        response: Content::Media("application/octet-stream"),
        ..bearer(
            Verb::Get,
            "/v1/x/fs/range",
            Action::Slice,
            "a part of a file; the header x-fluxvm-file has the facts of the whole",
            EXACT_STATUSES,
        )
    },
    Route {
        query: Some("PlaceQuery"),
        request: Content::Media("application/octet-stream"),
        ..exec(
            Verb::Put,
            "/v1/x/fs/place",
            Action::Place,
            "replaces a file as a whole or not at all; follows no link",
            EXACT_STATUSES,
            "Placed",
        )
    },
    Route {
        query: Some("RemoveQuery"),
        ..exec(
            Verb::Post,
            "/v1/x/fs/remove",
            Action::Remove,
            "removes a file, a link or a tree; follows no link",
            EXACT_STATUSES,
            "Removed",
        )
    },
];
