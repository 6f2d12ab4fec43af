//! What a supervisor tells: fixed records over a pipe.
//!
//! ```text
//! kind: i32 ne | first: i32 ne | second: i32 ne
//! ```
//!
//! Both ends are the same program, so native byte order is the right one. `Leading` comes from the
//! leader itself. Everything else comes from the supervisor: `Started` or `SpawnFailed`, then how
//! the leader ended. The end of the pipe means that nothing of the exec is left, unless the
//! supervisor was killed before it told how the leader ended.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 12;

const KIND_LEADING: i32 = 6;
const KIND_STARTED: i32 = 1;
const KIND_SPAWN_FAILED: i32 = 2;
const KIND_EXITED: i32 = 3;
const KIND_SIGNALLED: i32 = 4;
const KIND_DESCENDANTS_REMAIN: i32 = 5;

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnStage {
    Fork,
    Descriptors,
    Group,
    User,
    Directory,
    Confinement,
    Exec,
}

impl SpawnStage {
    const ALL: [Self; 7] = [
        Self::Fork,
        Self::Descriptors,
        Self::Group,
        Self::User,
        Self::Directory,
        Self::Confinement,
        Self::Exec,
    ];

    fn code(self) -> i32 {
        match self {
            Self::Fork => 0,
            Self::Descriptors => 1,
            Self::Group => 2,
            Self::User => 3,
            Self::Directory => 4,
            Self::Exec => 5,
            Self::Confinement => 6,
        }
    }

    /// What was being done, for people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fork => "no process could be made",
            Self::Descriptors => "the standard streams could not be set",
            Self::Group => "the group could not be taken",
            Self::User => "the user could not be taken",
            Self::Directory => "the working directory could not be entered",
            Self::Confinement => "the policy could not be put in force",
            Self::Exec => "the program could not be executed",
        }
    }
}

/// One thing that a supervisor tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The leader is about to execute the program; its own word, since a program's first act may be
    /// to kill the supervisor.
    Leading { leader: i32 },
    /// The program runs.
    Started,
    /// The command could not be started, and nothing of it is left.
    SpawnFailed { stage: SpawnStage, errno: i32 },
    /// The leader exited with a code.
    Exited { code: i32 },
    /// A signal ended the leader.
    Signalled { signal: i32 },
    /// The leader is gone and others are not.
    DescendantsRemain,
}

impl Record {
    /// The record's bytes. Allocates nothing: a forked child calls it.
    pub(crate) fn encode(self) -> [u8; RECORD_BYTES] {
        let (kind, first, second) = match self {
            Self::Leading { leader } => (KIND_LEADING, leader, 0),
            Self::Started => (KIND_STARTED, 0, 0),
            Self::SpawnFailed { stage, errno } => (KIND_SPAWN_FAILED, stage.code(), errno),
            Self::Exited { code } => (KIND_EXITED, code, 0),
            Self::Signalled { signal } => (KIND_SIGNALLED, signal, 0),
            Self::DescendantsRemain => (KIND_DESCENDANTS_REMAIN, 0, 0),
        };
        let [a, b, c, d] = kind.to_ne_bytes();
        let [e, f, g, h] = first.to_ne_bytes();
        let [i, j, k, l] = second.to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    fn decode(bytes: [u8; RECORD_BYTES]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let first = i32::from_ne_bytes([e, f, g, h]);
        let second = i32::from_ne_bytes([i, j, k, l]);
        Some(match i32::from_ne_bytes([a, b, c, d]) {
            KIND_LEADING => Self::Leading { leader: first },
            KIND_STARTED => Self::Started,
            KIND_SPAWN_FAILED => {
                let stage = SpawnStage::ALL
                    .into_iter()
                    .find(|stage| stage.code() == first)?;
                Self::SpawnFailed {
                    stage,
                    errno: second,
                }
            }
            KIND_EXITED => Self::Exited { code: first },
            KIND_SIGNALLED => Self::Signalled { signal: first },
            KIND_DESCENDANTS_REMAIN => Self::DescendantsRemain,
            _ => return None,
        })
    }
}

/// The reading end of a supervisor's report.
#[derive(Debug)]
pub(crate) struct Report {
    pipe: pipe::Receiver,
}

impl Report {
    pub(crate) fn new(pipe: std::os::fd::OwnedFd) -> io::Result<Self> {
        Ok(Self {
            pipe: pipe::Receiver::from_owned_fd(pipe)?,
        })
    }

    /// Waits until the program runs and returns its pid, or why it does not.
    pub(crate) async fn await_start(&mut self) -> Result<i32, String> {
        let mut leader = None;
        loop {
            return Err(match self.next().await {
                Some(Record::Leading { leader: pid }) => {
                    leader = Some(pid);
                    continue;
                }
                Some(Record::SpawnFailed { stage, errno }) => {
                    let error = io::Error::from_raw_os_error(errno);
                    format!("{}: {error}", stage.as_str())
                }
                // Without another word the supervisor was killed, most likely by this very program.
                _ => match leader {
                    Some(pid) => return Ok(pid),
                    None => "the supervisor ended before the command began".to_owned(),
                },
            });
        }
    }

    /// The next record, or `None` when the supervisor is gone. Records are written whole, so a
    /// call that is dropped between two of them loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Record> {
        let mut bytes = [0; RECORD_BYTES];
        self.pipe.read_exact(&mut bytes).await.ok()?;
        Record::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_survives_the_pipe() {
        let failed = SpawnStage::ALL.map(|stage| Record::SpawnFailed { stage, errno: 2 });
        let others = [
            Record::Leading { leader: 77 },
            Record::Started,
            Record::Exited { code: 255 },
            Record::Signalled { signal: 9 },
            Record::DescendantsRemain,
        ];
        for record in failed.into_iter().chain(others) {
            assert_eq!(Record::decode(record.encode()), Some(record));
        }
    }
}
