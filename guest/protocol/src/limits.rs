//! The numbers that both sides count on. Those with an environment knob are defaults.

use std::time::Duration;

/// Bytes of a request body on a bearer route.
pub const BODY_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Captured bytes per output stream that a poll returns; more sets `truncated`.
pub const OUTPUT_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Bytes that an exec's replay ring retains, both streams together.
pub const STREAM_BUFFER_BYTES: u64 = 1024 * 1024;

/// Bytes that an exec may ask to have held for a reader that comes back.
pub const HOLD_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How long output pipes are read after the leader's exit while others still hold them.
pub const OUTPUT_LINGER: Duration = Duration::from_secs(5);

/// How long an acknowledged exec stays known.
pub const EXEC_TTL: Duration = Duration::from_secs(900);

/// Time between SIGTERM and SIGKILL.
pub const KILL_GRACE: Duration = Duration::from_secs(10);

/// Silence after which an event stream carries a comment.
pub const SSE_KEEPALIVE: Duration = Duration::from_secs(15);

/// Raw bytes in one `output` event. Four thirds of it, base64, stays far below the frame cap.
pub const OUTPUT_EVENT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one event-stream frame that a reader accepts before it gives up.
pub const SSE_FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a lifecycle hook's body: a 4 KiB payload with room for JSON's escapes.
pub const HOOK_ENVELOPE_BYTES_MAX: usize = 32 * 1024;

/// Time in which a lifecycle hook's body must arrive.
pub const HOOK_ENVELOPE_DEADLINE: Duration = Duration::from_secs(5);

/// Hook requests that health lists; later ones are only counted.
pub const HOOK_LOG_ENTRIES_MAX: usize = 64;

/// Bytes of the run hook's payload that the platform forwards.
pub const RUN_HOOK_PAYLOAD_BYTES_MAX: usize = 4096;

/// Bytes of a refused request's body that are read so that its connection stays usable.
pub const DRAIN_BYTES_MAX: usize = 64 * 1024;

/// Time in which a refused request's body is read.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// Connections served at once, streams included.
pub const CONNECTIONS_MAX: usize = 128;

/// Time in which request headers must arrive, on a fresh or on an idle kept-alive connection.
pub const HEADER_DEADLINE: Duration = Duration::from_secs(5);

/// Decoded bytes of one write to standard input.
pub const STDIN_WRITE_BYTES_MAX: u64 = 1024 * 1024;

/// Time in which a command must take the bytes of one write to its standard input.
pub const STDIN_WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// Members of an archive, either way.
pub const TAR_MEMBERS_MAX: u64 = 100_000;

/// Bytes of an archive's files together, either way.
pub const TAR_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// Entries of a folder that one listing names: some hundred bytes each make a megabyte or two.
pub const LISTED_ENTRIES_MAX: usize = 10_000;

/// Bytes of one slice of a file: it is in memory as a whole.
pub const SLICE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Bytes of a file that is put in its place: 2 GiB, the largest upload of the host's API.
pub const PLACED_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Levels of a tree that is removed; each holds a descriptor while what is below it goes.
pub const REMOVED_LEVELS_MAX: usize = 256;

/// Bytes that file writes leave free.
pub const DISK_RESERVE_BYTES: u64 = 256 * 1024 * 1024;

/// Bytes written between two looks at how many are left.
pub const DISK_PROBE_BYTES: u64 = 8 * 1024 * 1024;

/// Time for a workload's hook handler and the reading of its output.
pub const HOOK_HANDLER_TIMEOUT: Duration = Duration::from_secs(20);

/// Least and most that an image can ask for instead.
pub const HOOK_HANDLER_TIMEOUT_SECS: std::ops::RangeInclusive<u64> = 1..=55;

/// Survivors that an exit event lists by name; all of them are counted.
pub const SURVIVORS_LISTED_MAX: usize = 32;

/// Bytes of a survivor's command line.
pub const SURVIVOR_COMMAND_BYTES_MAX: usize = 256;

/// Fresh randomness that a new identity brings along: less would not fill the kernel's pool of 256
/// bits, more would help nobody.
pub const ENTROPY_BYTES: std::ops::RangeInclusive<usize> = 32..=512;

/// How long the output of what was followed is held for a host that ended its connections.
pub const QUIESCE_HOLD: Duration = Duration::from_secs(10);

/// The most that can be asked for instead: what is held stands still.
pub const QUIESCE_HOLD_MAX: Duration = Duration::from_secs(300);

/// How long other connections may take to end before a quiesced guest answers all the same.
pub const QUIESCE_WAIT_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(OUTPUT_EVENT_BYTES_MAX / 3 * 4 + 1024 < SSE_FRAME_BYTES_MAX);
const _: () = assert!(RUN_HOOK_PAYLOAD_BYTES_MAX * 6 < HOOK_ENVELOPE_BYTES_MAX);
