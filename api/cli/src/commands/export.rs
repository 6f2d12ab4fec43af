//! `agent export` and `ledger export`: the daemon's lines, unchanged, to a file or to stdout. A
//! file appears under its name only when it is whole.

use std::fs::File;
use std::io;
use std::io::IsTerminal;
use std::io::Read;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use serde_json::Value;

use super::Context;
use super::file_error;
use crate::client::Client;
use crate::compress::Compressed;
use crate::error::CliError;
use crate::output::note;
use crate::render::human_bytes;

/// Bytes copied at a time: large enough that system calls do not matter.
const COPY_BYTES: usize = 256 * 1024;
/// How often the progress line changes.
const TICK: Duration = Duration::from_millis(200);

/// How an export is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the daemon sends it.
    Plain,
    /// Compressed with zstd.
    Zstd,
}

impl Form {
    pub(super) fn of(compress: bool) -> Self {
        match compress {
            true => Self::Zstd,
            false => Self::Plain,
        }
    }

    fn sink<W: Write>(self, sink: W) -> Sink<W> {
        match self {
            Self::Plain => Sink::Plain(sink),
            Self::Zstd => Sink::Zstd(Compressed::new(sink)),
        }
    }
}

enum Sink<W> {
    Plain(W),
    Zstd(Compressed<W>),
}

impl<W: Write> Sink<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(sink) => sink.write_all(bytes),
            Self::Zstd(sink) => sink.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(sink) => Ok(sink),
            Self::Zstd(sink) => sink.finish(),
        }
    }
}

/// Fetches `path` into `out`, or to stdout.
pub(super) fn run(
    context: &Context,
    client: &Client,
    path: &str,
    out: Option<&Path>,
    form: Form,
) -> Result<u8, CliError> {
    let mut source = client.stream(path, &[]).map_err(|error| match error {
        CliError::Unreachable { reason, .. } if client.get("/healthz").is_ok() => {
            broken_off(path, &reason)
        }
        error => error,
    })?;
    let broken = |error: io::Error| broken_off(path, &error.to_string());
    let Some(out) = out.filter(|out| *out != Path::new("-")) else {
        let mut stdout = form.sink(io::stdout().lock());
        copy(&mut source, broken, |bytes| Ok(stdout.write_all(bytes)?))?;
        stdout.finish()?.flush()?;
        return Ok(0);
    };
    let part = part_of(out);
    let written = write_file(&part, &mut source, broken, form);
    let renamed = written.and_then(|size| {
        std::fs::rename(&part, out)
            .map_err(|error| file_error(out, error))
            .map(|()| size)
    });
    let bytes = renamed.inspect_err(|_| {
        // What is left is no export; that it cannot be removed is not worse than that.
        let _ = std::fs::remove_file(&part);
    })?;
    let shown = out.display();
    note(&format!(
        "Wrote {} to {shown}. Check it with: fluxctl ledger verify {shown} --key {}",
        human_bytes(bytes),
        key_of(client)
    ));
    if context.output.is_json() {
        let answer = serde_json::json!({"file": out, "bytes": bytes});
        context.output.json_document(&answer)?;
    }
    Ok(0)
}

/// The daemon is there, and its answer has no end: what it says is in its log.
fn broken_off(path: &str, reason: &str) -> CliError {
    CliError::Answer {
        method: "GET",
        path: path.to_owned(),
        reason: format!("the export broke off ({reason}); the daemon's log says why"),
    }
}

/// The key that the daemon names, as a word of a shell: whose signature counts is not for the file to say.
fn key_of(client: &Client) -> String {
    let answer = client.get("/v1/ledger/key").unwrap_or_default();
    let key = answer.pointer("/vkey").and_then(Value::as_str);
    let is_plain = |key: &&str| {
        key.chars()
            .all(|c| c.is_ascii_alphanumeric() || "+/=._:-".contains(c))
    };
    key.filter(is_plain).unwrap_or("VKEY").to_owned()
}

fn part_of(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    out.with_file_name(name)
}

fn write_file(
    part: &Path,
    source: &mut impl Read,
    broken: impl Fn(io::Error) -> CliError,
    form: Form,
) -> Result<u64, CliError> {
    let failed = |error| file_error(part, error);
    let mut file = form.sink(File::create(part).map_err(failed)?);
    let bar = progress();
    copy(source, broken, |bytes| {
        bar.inc(u64::try_from(bytes.len()).unwrap_or_default());
        file.write_all(bytes).map_err(failed)
    })?;
    bar.finish_and_clear();
    let file = file.finish().map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(file.metadata().map_err(failed)?.len())
}

/// How large an export will be is not known beforehand: a spinner with the bytes so far, and only
/// where somebody looks.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bytes} ({bytes_per_sec})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

fn copy(
    source: &mut impl Read,
    broken: impl Fn(io::Error) -> CliError,
    mut sink: impl FnMut(&[u8]) -> Result<(), CliError>,
) -> Result<u64, CliError> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0;
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error)),
        };
        sink(buffer.get(..read).unwrap_or_default())?;
        total += u64::try_from(read).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(usize);

    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::other("cut"));
            }
            self.0 -= 1;
            buffer[0] = b'x';
            Ok(1)
        }
    }

    #[test]
    fn what_breaks_off_is_an_error_and_not_a_short_file() {
        let temp = tempfile::tempdir().expect("tempdir");
        let broken = |error: io::Error| CliError::Usage(error.to_string());
        let result = write_file(
            &temp.path().join("e.part"),
            &mut Broken(3),
            broken,
            Form::Plain,
        );
        assert!(result.is_err());
    }

    #[test]
    fn the_unfinished_file_stands_beside_the_finished_one() {
        assert_eq!(
            part_of(Path::new("/a/b.jsonl")),
            Path::new("/a/b.jsonl.part")
        );
    }
}
