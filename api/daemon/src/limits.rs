//! Every limit of the server, with its unit and its reason.

use std::time::Duration;

/// The largest request body, in bytes. The longest command is 128 KiB, which JSON can write six times as
/// long.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The largest body of a file's write, in bytes: the largest file in base64, its path, and some room.
pub(crate) const FILE_BODY_BYTES_MAX: usize = 2_100_000;

/// How long a client may take to send a body.
pub(crate) const BODY_READ_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a client may take to send one part of an upload: 4 MiB at 35 KiB/s.
pub(crate) const PART_READ_TIME_MAX: Duration = Duration::from_secs(120);

/// What is read and thrown away of a body that nobody wanted, in bytes, so that the client reads the
/// answer and not a reset connection.
pub(crate) const DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long that may take.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a client may take to send the head of a request. It is also how long a connection may idle
/// between two requests.
pub(crate) const HEAD_READ_TIME_MAX: Duration = Duration::from_secs(30);

/// The largest head of a request, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Header lines of one request.
pub(crate) const HEADERS_MAX: usize = 100;

/// Connections that are served at once; more wait in the kernel's queue.
pub(crate) const CONNECTIONS_MAX: usize = 1_024;

/// How long a client that has stopped reading keeps its connection. Without it such clients would hold
/// stream slots and answers for ever.
pub(crate) const WRITE_STALL_TIME_MAX: Duration = Duration::from_secs(60);

/// Live event streams at once.
pub(crate) const STREAMS_MAX: usize = 64;

/// Streams of one session's jobs at once: two readers of each job that may run in it. One session takes
/// none from another.
pub(crate) const JOB_STREAMS_SESSION_MAX: usize = 64;

/// Streams of jobs of all sessions at once: each holds a connection and a frame of both outputs in memory,
/// 640 KiB at most.
pub(crate) const JOB_STREAMS_MAX: usize = 256;

const _: () = assert!(JOB_STREAMS_SESSION_MAX >= 2 * fluxvm_commands::limits::JOBS_RUNNING_MAX);
const _: () = assert!(
    JOB_STREAMS_MAX <= CONNECTIONS_MAX / 2,
    "others need connections too"
);

/// Bytes of one output stream of a job in one frame, and read from the disk at once.
pub(crate) const JOB_FRAME_BYTES: usize = 128 * 1024;

/// Bytes of each output stream of a job in one answer to a poll.
pub(crate) const JOB_PAGE_BYTES: usize = 256 * 1024;

/// How long the rest of a body is read and thrown away that was passed on as it came, whatever its size: a
/// client that sends all of it before it reads the answer is let finish, and an endless one is cut.
pub(crate) const STREAMED_DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// The largest standard input of a command that comes with an `Idempotency-Key`, in bytes: it has to be
/// digested whole before the command may start. Without a key there is no limit.
pub(crate) const KEYED_STDIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long one event stream lasts. A client resumes with `Last-Event-ID` where it was.
pub(crate) const STREAM_TIME_MAX: Duration = Duration::from_secs(3_600);

/// How often a silent event stream says that it is alive, so that no proxy takes it for dead.
pub(crate) const STREAM_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long a stream of an ended session, resumed behind its last entry, looks for one more.
pub(crate) const STREAM_LAST_LOOK: Duration = Duration::from_millis(200);

/// Events that are put into one chunk of a stream or listing, so that a long history does not cost a
/// write each.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;

/// Lines of an export that are read ahead of a slow client, in chunks.
pub(crate) const EXPORT_CHUNKS_AHEAD: usize = 4;

/// Exports at once: each holds a reader of the whole ledger and a thread.
pub(crate) const EXPORTS_MAX: usize = 4;

/// How long requests that run may take to be answered once the daemon was told to stop.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(5);

/// How long the last answers may take to leave after that.
pub(crate) const STOP_FLUSH: Duration = Duration::from_secs(1);

/// The longest `Idempotency-Key`, in bytes.
pub(crate) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// The largest answer that is kept for an idempotency key, in bytes.
pub(crate) const IDEMPOTENCY_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The shortest token that a config may name, in bytes: below it, guessing becomes thinkable.
pub(crate) const TOKEN_BYTES_MIN: usize = 16;

/// The longest token, in bytes.
pub(crate) const TOKEN_BYTES_MAX: usize = 512;

/// The longest name of a token or tenant, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Characters of a path that are recorded when a session token is not for it.
pub(crate) const PATH_CHARS_RECORDED_MAX: usize = 256;

/// Actors whose rates are watched before those that were silent are forgotten.
pub(crate) const RATE_ACTORS_MAX: usize = 4_096;

/// The largest config file, in bytes.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

const _: () = assert!(
    BODY_BYTES_MAX >= 6 * 131_071,
    "the longest command must fit its body"
);

const _: () = assert!(
    FILE_BODY_BYTES_MAX as u64
        >= fluxvm_commands::limits::FILE_WRITE_BYTES_MAX.div_ceil(3) * 4 + 32_768,
    "the largest file and its path must fit their body"
);
