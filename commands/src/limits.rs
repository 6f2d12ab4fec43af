//! Every limit that commands impose, with its unit and its reason.

use std::time::Duration;

/// The longest agent label, in bytes: it is printed in tables and in every listing.
pub const AGENT_LABEL_BYTES_MAX: usize = 64;

/// The longest shell line, in bytes. The kernel takes at most 128 KiB for one argument, and the line is
/// one argument of the shell, with its closing zero.
pub const COMMAND_BYTES_MAX: usize = 131_071;

/// The time that a command gets when the caller names none, in milliseconds.
pub const EXEC_TIMEOUT_DEFAULT_MS: u64 = 30_000;

/// The longest time that a command can be given, in milliseconds: one day. What runs longer is a job.
pub const EXEC_TIMEOUT_MAX_MS: u64 = 86_400_000;

/// Bytes kept of one output stream of one command. Above it the rest is counted and dropped.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes that all running commands together may hold. A command that would go over it keeps what it has
/// and counts the rest as dropped, so that no guest can exhaust the host's memory.
pub const EXEC_OUTPUT_BYTES_TOTAL_MAX: usize = 512 * 1024 * 1024;

/// Commands that may run in one session at once: each costs the guest three processes and the host one
/// connection, and the guest serves 128 connections.
pub const EXECS_RUNNING_MAX: usize = 64;

/// How long the guest waits between asking a command to end and ending it. Short, so that a caller whose
/// time ran out is answered within two seconds.
pub const EXEC_KILL_GRACE: Duration = Duration::from_millis(1_000);

/// How long the guest reads on after a command ended while something it started keeps its output open.
pub const EXEC_OUTPUT_LINGER: Duration = Duration::from_millis(250);

/// How long beyond a command's own limit the host waits for the guest to say how it ended.
pub const EXEC_ANSWER_SLACK: Duration = Duration::from_secs(15);

/// The longest life that a session can be given, in seconds: ten years.
pub const TTL_SECONDS_MAX: u64 = 315_360_000;

/// The longest guest path, in bytes: the kernel's own limit, less its closing zero.
pub const GUEST_PATH_BYTES_MAX: usize = 4_095;

/// The longest name of one folder in a guest path, in bytes: what Linux file systems take.
pub const GUEST_NAME_BYTES_MAX: usize = 255;

/// The least memory that a sandbox can be given, in MiB: the guest daemon, a shell and some room.
pub const MEMORY_MB_MIN: u64 = 16;

/// The most memory that a sandbox can be given, in MiB: 1 TiB, more than any host of ours has.
pub const MEMORY_MB_MAX: u64 = 1_048_576;

/// The most CPUs that a sandbox can be given.
pub const CPUS_MAX: u32 = 512;

/// Processes that one sandbox may hold: enough for builds, not for a fork bomb.
pub const PROCESSES_MAX: u32 = 4_096;

/// Tasks of the guest's own in a sandbox, which a limit of a session's processes does not count: the guest
/// daemon with its threads, and one supervisor for each of a few commands at once.
pub const GUEST_PROCESSES: u64 = 32;

/// The smallest limit of a session's memory, in bytes: below it the guest daemon itself would not run.
pub const BUDGET_MEMORY_BYTES_MIN: u64 = MEMORY_MB_MIN * 1024 * 1024;

/// The longest tag of a checkpoint, in bytes: it is printed in tables and typed by people.
pub const TAG_BYTES_MAX: usize = 64;

/// Checkpoints that one session may have: each is a layer on disk and a row of its record.
pub const CHECKPOINTS_MAX: usize = 256;

/// Children of one fork.
pub const FORK_CHILDREN_MAX: u32 = 32;

/// Children of one session, over all its forks, the deleted ones too: each is an id in its record.
pub const CHILDREN_MAX: usize = 1_024;

/// Children that are made side by side: each keeps a CPU busy, and a machine has a few.
pub const FORK_CHILDREN_AT_ONCE: usize = 4;

/// Commands of one evaluation together, in bytes: all of them are one event.
pub const EVALUATE_BYTES_MAX: usize = 512 * 1_024;

/// Points that one session may keep.
pub const REWIND_POINTS_MAX: u32 = 50;

/// The longest text of what a point is taken before, in bytes: it is a row of a table.
pub const REWIND_LABEL_BYTES_MAX: usize = 1_024;

/// How long an engine may take to capture a sandbox. Memory is written to disk: this is a few GiB on a
/// slow one.
pub const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(120);

/// How long an engine may take to make a sandbox of a snapshot, for the same reason.
pub const REVIVE_TIME_MAX: Duration = Duration::from_secs(120);

/// Commands that one replay runs again.
pub const REPLAY_STEPS_MAX: usize = 500;

/// How long the expiry sweeper sleeps when no session is due: then it looks for what could not be removed.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// How long it sleeps at least, so that a session that cannot be ended does not keep it busy.
pub const SWEEP_RETRY: Duration = Duration::from_millis(20);

/// How long a stored answer is given again.
pub const IDEMPOTENCY_TTL_SECONDS: i64 = 86_400;

/// The largest answer that is stored for an idempotency key, in bytes.
pub const IDEMPOTENCY_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How often a decision is made anew when another one won the race for the stream. Each loss means that
/// somebody else got ahead, so that only a storm beyond all use reaches this.
pub const DECIDE_ATTEMPTS_MAX: usize = 1_000;

/// The longest reason of a redaction or a hold, in characters: it is read by people, and kept for ever.
pub const REASON_CHARS_MAX: usize = 512;

/// The most idempotency answers that one redaction erases: a request has one key, and a key one answer.
pub const REDACTED_ANSWERS_MAX: usize = 64;

/// Entries of one list in a policy: each is held against every piece of every command.
pub const POLICY_LIST_MAX: usize = 128;

/// The longest pattern of a policy, in characters.
pub const POLICY_PATTERN_CHARS_MAX: usize = 512;

/// The longest host of a policy, in bytes: what a name can have.
pub const POLICY_HOST_BYTES_MAX: usize = 253;

/// Session tokens that live at once in one session.
pub const TOKENS_LIVE_MAX: usize = 32;

/// How long a session token lives when nobody says, in seconds.
pub const TOKEN_TTL_SECONDS_DEFAULT: u64 = 3_600;

/// The longest life of a session token, in seconds: one day.
pub const TOKEN_TTL_SECONDS_MAX: u64 = 86_400;

/// The longest label of a session token, in characters: it is printed in tables.
pub const TOKEN_LABEL_CHARS_MAX: usize = 64;

/// Refusals of one session token that are recorded: what its holder tried is known by then, and the ledger
/// is not filled by it.
pub const TOKEN_REFUSALS_RECORDED_MAX: u64 = 100;

/// How long an approval can be decided and used, in seconds.
pub const APPROVAL_SECONDS: i64 = 600;

/// The longest that a request waits for an approval, in seconds.
pub const APPROVAL_WAIT_SECONDS_MAX: u64 = 120;

/// Approval requests of one session that are open at once: more than people can look at.
pub const APPROVALS_OPEN_MAX: usize = 32;

/// The longest note of one who decides, in characters.
pub const APPROVAL_NOTE_CHARS_MAX: usize = 1_024;

/// The largest number in one report of usage: a thousand million tokens, or a thousand dollars.
pub const USAGE_REPORT_MAX: u64 = 1_000_000_000;

/// People who may have to agree to one command.
pub const APPROVERS_MAX: u32 = 5;

/// Sessions that one retention erases: they are named in one event. Whoever has more asks again.
pub const RETENTION_SESSIONS_MAX: usize = 1_000;

/// Jobs that may run in one session at once: each holds a connection to the guest for as long as it
/// runs, and commands need theirs beside them.
pub const JOBS_RUNNING_MAX: usize = 32;

/// Bytes kept of each output stream of a job when the caller names no limit.
pub const JOB_OUTPUT_BYTES_DEFAULT: u64 = 16 * 1024 * 1024;

/// The most bytes of each output stream of a job that can be kept. A streamed command keeps as much, so
/// that a reader that keeps up gets everything that it can.
pub const JOB_OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Bytes of a job's output that the guest holds until they are on the host's disk: while no daemon runs,
/// a job can write that much before it waits.
pub const JOB_HOLD_BYTES: u64 = 2 * 1024 * 1024;

/// Bytes that reach the host's disk between two acknowledgements: few enough that the job never waits for
/// one, and many enough that they cost nothing.
pub const JOB_ACKNOWLEDGE_BYTES: u64 = JOB_HOLD_BYTES / 4;

/// Bytes of output that are written to the host's disk at once.
pub const JOB_BATCH_BYTES: usize = 512 * 1024;

/// Bytes of one write to a job's standard input.
pub const JOB_STDIN_BYTES_MAX: usize = 48 * 1024;

/// The shortest and the longest time that nobody may be writing to a job's standard input before it
/// counts as broken off, in milliseconds: a daemon that starts anew has to fit in, and a day is for ever.
pub const JOB_STDIN_LOST_MS_MIN: u64 = 1_000;
/// See [`JOB_STDIN_LOST_MS_MIN`].
pub const JOB_STDIN_LOST_MS_MAX: u64 = 86_400_000;

/// The longest that a request waits for a job's output, in milliseconds.
pub const JOB_WAIT_MS_MAX: u64 = 25_000;

/// Bytes of one portion of a command's standard input on its way to the guest.
pub const EXEC_STDIN_PORTION_BYTES: usize = 512 * 1024;

const _: () = assert!(JOBS_RUNNING_MAX + EXECS_RUNNING_MAX <= 96);
/// The largest file that one write takes, in bytes: it is in memory as a whole. Larger ones are uploaded.
pub const FILE_WRITE_BYTES_MAX: u64 = 1_500_000;

/// The largest part of a file that one answer carries, in bytes: it is in memory as a whole.
pub const RANGE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The largest file that is read without asking for a part of it, in bytes.
pub const FILE_READ_BYTES_MAX: u64 = RANGE_BYTES_MAX;

/// Writes, removals, uploads and git verbs that may be under way in one session at once: each holds one
/// of the 128 connections that a guest serves.
pub const FILE_WORK_RUNNING_MAX: usize = 32;

/// The largest upload, in bytes.
pub const UPLOAD_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// The largest part of an upload, in bytes: what is lost when a connection breaks.
pub const UPLOAD_PART_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Parts of one upload: each is a file, and the largest upload has 512 of the largest parts.
pub const UPLOAD_PARTS_MAX: usize = 8_192;

/// Open uploads of one session.
pub const UPLOADS_OPEN_MAX: usize = 8;

/// Open uploads of all sessions: what they may take of the host's disk has an end.
pub const UPLOADS_OPEN_HOST_MAX: usize = 64;

/// How long an upload stays open, in seconds: a day, as for an idempotency key.
pub const UPLOAD_AGE_MAX_SECONDS: i64 = 86_400;

/// Bytes of an upload that are in memory and in one blob at a time. The names of all blobs of the largest
/// upload still fit into one event.
pub const UPLOAD_PIECE_BYTES: usize = 8 * 1024 * 1024;

/// Uploads that are put in their place at once: each holds two pieces in memory.
pub const UPLOADS_COMPLETING_MAX: usize = 4;

/// How long a fixed command, such as one call of git, may run in a guest.
pub const CAPTURE_TIME_MAX: Duration = Duration::from_secs(60);

/// What is kept of what a fixed command complains, in bytes: it becomes a sentence.
pub const CAPTURE_STDERR_BYTES_MAX: usize = 4 * 1024;

/// The longest diff that is answered, in bytes.
pub const GIT_DIFF_BYTES_MAX: usize = 256 * 1024;

/// The longest status or log that is read, in bytes.
pub const GIT_LIST_BYTES_MAX: usize = 1024 * 1024;

/// The longest commit message, in bytes. It is one argument, and it is kept for ever.
pub const GIT_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The longest name of a branch, in bytes: it becomes a file's name, with `.lock` behind it.
pub const GIT_BRANCH_BYTES_MAX: usize = 200;

/// The commits that one log shows at most.
pub const GIT_LOG_MAX: u64 = 200;

/// The commits that a log shows when nobody says how many.
pub const GIT_LOG_DEFAULT: u64 = 20;

const _: () = assert!(UPLOAD_BYTES_MAX <= agentd_protocol::limits::PLACED_BYTES_MAX);
const _: () = assert!(RANGE_BYTES_MAX <= agentd_protocol::limits::SLICE_BYTES_MAX);
const _: () = assert!(
    FILE_WRITE_BYTES_MAX <= RANGE_BYTES_MAX,
    "a write can be read back"
);

/// Paths of one workspace that are listed to be compared: each is a few hundred bytes of memory.
pub const TREE_PATHS_MAX: usize = 200_000;

/// Paths that one comparison lists: an answer is read by people, or by programs of theirs.
pub const DIFF_PATHS_MAX: usize = 5_000;

/// The longest file that is compared line by line, in bytes.
pub const DIFF_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The longest file whose writer is looked for, in bytes: two of its contents are held at once.
pub const BLAME_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The longest text of one comparison, all files together, in bytes.
pub const DIFF_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Paths that one promotion carries.
pub const PROMOTE_CHANGES_MAX: usize = 2_000;

/// Bytes of files that one promotion carries: what a guest takes at once.
pub const PROMOTE_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Bytes of the names of all paths of one promotion: they are in its event, and an event has 4 MiB.
pub const PROMOTE_PATHS_BYTES_MAX: usize = 1024 * 1024;
