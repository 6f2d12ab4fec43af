//! A job's output on the host's disk.
//!
//! ```text
//! <state>/jobs/<session>/<job>.stdout   the first bytes of standard output, up to the job's limit
//!                       <job>.stderr   the same of standard error
//!                       <job>.count    three numbers: dropped of stdout, dropped of stderr, lost
//!                       <job>.given    what it was given to read with its start, until it took it
//! ```
//!
//! The guest numbers the bytes of both streams together, in the order in which it read them, and a spool
//! is written in that order. So the lengths of the two files and the three numbers add up to the offset of
//! the next byte, however a daemon ended: the next one asks the guest for exactly that byte. Files are
//! not synced: what a killed process wrote stays, and a machine that goes down takes the job with it.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use agentd_protocol::OutputStream;
use bytes::Bytes;
use fluxvm_projections::JobId;
use fluxvm_projections::OutputRecord;
use fluxvm_projections::SessionId;

/// Bytes that a digest reads at once.
const DIGEST_BYTES: usize = 256 * 1024;

/// Where the spools of all sessions are.
#[derive(Clone, Debug)]
pub(crate) struct SpoolFolder {
    root: PathBuf,
}

impl SpoolFolder {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn session(&self, session: SessionId) -> PathBuf {
        self.root.join(session.to_string())
    }

    fn file(&self, session: SessionId, job: JobId, kind: &str) -> PathBuf {
        self.session(session).join(format!("{job}.{kind}"))
    }

    /// The sessions that have a folder.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        names(&self.root)
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect()
    }

    /// Removes all spools of a session.
    pub(crate) fn remove(&self, session: SessionId) {
        remove_logged(&self.session(session), |path| fs::remove_dir_all(path));
    }

    /// Removes the spools of a session's jobs that are not to be kept. Which those are is asked after the
    /// folder was read: a spool that appears meanwhile belongs to a job that the answer may not know.
    pub(crate) fn keep_only<Keep: Fn(JobId) -> bool>(
        &self,
        session: SessionId,
        ask: impl FnOnce() -> Keep,
    ) {
        let folder = self.session(session);
        let names = names(&folder);
        let keep = ask();
        for name in names {
            let job = name.split('.').next().and_then(|job| job.parse().ok());
            if !job.is_some_and(&keep) {
                remove_logged(&folder.join(name), |path| fs::remove_file(path));
            }
        }
    }

    /// Keeps what a job was given to read. A killed daemon keeps it too.
    pub(crate) fn give(&self, session: SessionId, job: JobId, bytes: &[u8]) -> io::Result<()> {
        self.make(session)?;
        private_file(&self.file(session, job, "given"))?.write_all_at(bytes, 0)
    }

    /// What a job was given to read and has not taken, if anything.
    pub(crate) fn given(&self, session: SessionId, job: JobId) -> io::Result<Option<Bytes>> {
        match fs::read(self.file(session, job, "given")) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes what a job was given to read.
    pub(crate) fn forget_given(&self, session: SessionId, job: JobId) {
        remove_logged(&self.file(session, job, "given"), |path| {
            fs::remove_file(path)
        });
    }

    fn make(&self, session: SessionId) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.session(session))
    }

    /// What was kept of a job, for reading.
    pub(crate) fn read(&self, session: SessionId, job: JobId) -> io::Result<Kept> {
        Ok(Kept {
            stdout: File::open(self.file(session, job, "stdout"))?,
            stderr: File::open(self.file(session, job, "stderr"))?,
        })
    }
}

/// Both streams of a job, for reading.
#[derive(Debug)]
pub(crate) struct Kept {
    stdout: File,
    stderr: File,
}

impl Kept {
    /// The bytes from `offset` on, at most `bytes_max`.
    pub(crate) fn bytes(
        &self,
        stream: OutputStream,
        offset: u64,
        bytes_max: usize,
    ) -> io::Result<Bytes> {
        let file = match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        };
        let mut bytes = vec![0; bytes_max];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes.into())
    }
}

/// One stream being written.
#[derive(Debug)]
struct Track {
    file: File,
    kept_bytes: u64,
    dropped_bytes: u64,
}

impl Track {
    fn open(path: &Path, dropped_bytes: u64) -> io::Result<Self> {
        let file = private_file(path)?;
        let kept_bytes = file.metadata()?.len();
        Ok(Self {
            file,
            kept_bytes,
            dropped_bytes,
        })
    }

    /// Keeps what fits and counts the rest. Once something was dropped nothing more is kept, so that what
    /// is kept is the beginning. A disk that takes no more drops the rest: the job goes on.
    fn push(&mut self, bytes: &[u8], bytes_max: u64) {
        let room = match self.dropped_bytes {
            0 => usize::try_from(bytes_max.saturating_sub(self.kept_bytes)).unwrap_or(usize::MAX),
            _ => 0,
        };
        let mut rest = bytes.get(..room).unwrap_or(bytes);
        let beyond = bytes.len() - rest.len();
        while !rest.is_empty() {
            match self.file.write_at(rest, self.kept_bytes) {
                Ok(0) => break,
                Ok(written) => {
                    self.kept_bytes += written as u64;
                    rest = rest.get(written..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "a job's output can no longer be kept");
                    break;
                }
            }
        }
        self.dropped_bytes += (rest.len() + beyond) as u64;
    }

    fn record(&self) -> io::Result<OutputRecord> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; DIGEST_BYTES];
        let mut offset = 0;
        while offset < self.kept_bytes {
            let read = self.file.read_at(&mut buffer, offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            hasher.update(buffer.get(..read).unwrap_or_default());
            offset += read as u64;
        }
        Ok(OutputRecord {
            blake3: hasher.finalize().to_hex().to_string(),
            bytes: self.kept_bytes + self.dropped_bytes,
            blob: None,
            dropped_bytes: self.dropped_bytes,
        })
    }
}

/// A job's output as it is written. Everything here blocks.
#[derive(Debug)]
pub(crate) struct Spool {
    stdout: Track,
    stderr: Track,
    lost_bytes: u64,
    count: File,
    count_written: [u64; 3],
    bytes_max: u64,
}

impl Spool {
    /// Makes the spool of a job, or goes on with what an earlier daemon wrote.
    pub(crate) fn open(
        folder: &SpoolFolder,
        session: SessionId,
        job: JobId,
        bytes_max: u64,
    ) -> io::Result<Self> {
        folder.make(session)?;
        let count = private_file(&folder.file(session, job, "count"))?;
        let count_written = match count.metadata()?.len() {
            24.. => read_count(&count)?,
            // Written once before it matters, so that its place on the disk is there when it does.
            _ => {
                write_count(&count, [0; 3])?;
                [0; 3]
            }
        };
        let [stdout_dropped, stderr_dropped, lost_bytes] = count_written;
        Ok(Self {
            stdout: Track::open(&folder.file(session, job, "stdout"), stdout_dropped)?,
            stderr: Track::open(&folder.file(session, job, "stderr"), stderr_dropped)?,
            lost_bytes,
            count,
            count_written,
            bytes_max,
        })
    }

    /// The offset of the next byte in the guest's count of both streams.
    pub(crate) fn guest_offset(&self) -> u64 {
        let track = |track: &Track| track.kept_bytes + track.dropped_bytes;
        track(&self.stdout) + track(&self.stderr) + self.lost_bytes
    }

    /// Bytes of standard output and of standard error that are kept.
    pub(crate) fn kept_bytes(&self) -> (u64, u64) {
        (self.stdout.kept_bytes, self.stderr.kept_bytes)
    }

    /// Bytes that were dropped, and such that never came.
    pub(crate) fn dropped_bytes(&self) -> (u64, u64) {
        (self.stdout.dropped_bytes, self.stderr.dropped_bytes)
    }

    /// Bytes that never reached the host.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Writes bytes, in the guest's order.
    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let track = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        track.push(bytes, self.bytes_max);
    }

    /// Takes note of bytes that the guest no longer had.
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.lost_bytes += bytes;
    }

    /// Writes the numbers, if they changed.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        let count = [
            self.stdout.dropped_bytes,
            self.stderr.dropped_bytes,
            self.lost_bytes,
        ];
        if count != self.count_written {
            write_count(&self.count, count)?;
            self.count_written = count;
        }
        Ok(())
    }

    /// What is recorded of both streams.
    pub(crate) fn records(&self) -> io::Result<(OutputRecord, OutputRecord)> {
        Ok((self.stdout.record()?, self.stderr.record()?))
    }
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

fn write_count(file: &File, count: [u64; 3]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(24);
    for number in count {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    // One write within one page: a killed process wrote all of it or nothing.
    file.write_all_at(&bytes, 0)
}

fn read_count(file: &File) -> io::Result<[u64; 3]> {
    let mut count = [0; 3];
    for (index, number) in count.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 8 * index as u64)?;
        *number = u64::from_le_bytes(bytes);
    }
    Ok(count)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn remove_logged(path: &Path, remove: impl Fn(&Path) -> io::Result<()>) {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a job's output was not removed");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const SESSION: SessionId = SessionId(Uuid::nil());
    const JOB: JobId = JobId(Uuid::nil());

    fn open(folder: &SpoolFolder, bytes_max: u64) -> Spool {
        Spool::open(folder, SESSION, JOB, bytes_max).expect("opened")
    }

    #[test]
    fn a_spool_that_is_opened_again_goes_on_at_the_same_byte() {
        let temp = tempfile::tempdir().expect("folder");
        let folder = SpoolFolder::new(temp.path().join("jobs"));
        let mut spool = open(&folder, 4);
        spool.push(OutputStream::Stdout, b"abc");
        spool.push(OutputStream::Stderr, b"123456");
        spool.lost(10);
        spool.settle().expect("settled");
        assert_eq!(spool.guest_offset(), 19);
        drop(spool);
        let mut spool = open(&folder, 4);
        assert_eq!(spool.guest_offset(), 19);
        assert_eq!(
            (spool.kept_bytes(), spool.dropped_bytes()),
            ((3, 4), (0, 2))
        );
        spool.push(OutputStream::Stdout, b"de");
        spool.push(OutputStream::Stdout, b"f");
        spool.push(OutputStream::Stderr, b"7");
        assert_eq!(
            (spool.kept_bytes(), spool.dropped_bytes()),
            ((4, 4), (2, 3))
        );
        let (stdout, stderr) = spool.records().expect("read");
        assert_eq!(stdout.blake3, blake3::hash(b"abcd").to_hex().to_string());
        assert_eq!((stderr.bytes, stderr.dropped_bytes), (7, 3));
        let kept = folder.read(SESSION, JOB).expect("there");
        assert_eq!(
            kept.bytes(OutputStream::Stderr, 1, 10).expect("read"),
            "234"
        );
    }

    #[test]
    fn a_daemon_that_was_killed_before_it_counted_gets_those_bytes_again() {
        let temp = tempfile::tempdir().expect("folder");
        let folder = SpoolFolder::new(temp.path().to_owned());
        let mut spool = open(&folder, 2);
        spool.push(OutputStream::Stdout, b"abcd");
        drop(spool);
        let mut spool = open(&folder, 2);
        assert_eq!(spool.guest_offset(), 2, "what was dropped was not counted");
        spool.push(OutputStream::Stdout, b"cd");
        assert_eq!((spool.guest_offset(), spool.kept_bytes().0), (4, 2));
    }

    #[test]
    fn what_a_job_is_given_is_kept_until_it_has_it() {
        let temp = tempfile::tempdir().expect("folder");
        let folder = SpoolFolder::new(temp.path().join("jobs"));
        let given = || folder.given(SESSION, JOB).expect("read");
        assert_eq!(given(), None);
        folder.give(SESSION, JOB, b"in").expect("written");
        assert_eq!(given().as_deref(), Some(&b"in"[..]));
        folder.forget_given(SESSION, JOB);
        assert_eq!(given(), None);
    }

    #[test]
    fn only_what_is_listed_is_kept() {
        let temp = tempfile::tempdir().expect("folder");
        let folder = SpoolFolder::new(temp.path().to_owned());
        drop(open(&folder, 2));
        folder.keep_only(SESSION, || |job| job == JOB);
        assert!(folder.read(SESSION, JOB).is_ok());
        folder.keep_only(SESSION, || |_| false);
        assert!(folder.read(SESSION, JOB).is_err());
        assert_eq!(folder.sessions(), [SESSION]);
        folder.remove(SESSION);
        assert!(folder.sessions().is_empty());
    }

    #[test]
    fn a_spool_that_appears_while_others_are_removed_is_kept() {
        let temp = tempfile::tempdir().expect("folder");
        let folder = SpoolFolder::new(temp.path().to_owned());
        folder.keep_only(SESSION, || {
            drop(open(&folder, 2));
            |_| false
        });
        assert!(folder.read(SESSION, JOB).is_ok());
    }
}
