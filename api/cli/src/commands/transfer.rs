//! `agent upload` and `agent download`: files of any size, in parts, that can be gone on with.

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::IsTerminal;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use serde_json::Value;
use serde_json::json;
use sha2::Digest;
use sha2::Sha256;

use super::Context;
use super::file_error;
use super::files::Slice;
use super::files::base;
use crate::args::files::DownloadArgs;
use crate::args::files::UploadArgs;
use crate::client::Client;
use crate::client::Patience;
use crate::error::CliError;
use crate::output::note;
use crate::render;

/// Bytes of one part: the most that the daemon takes.
const PART_BYTES: u64 = 4 * 1024 * 1024;
/// How often a part is sent before we give up.
const TRIES_MAX: u32 = 3;
/// Bytes that are hashed at a time.
const HASH_BYTES: usize = 256 * 1024;

/// Sends a file in parts and puts it in its place.
pub(super) fn upload(context: &Context, args: &UploadArgs) -> Result<u8, CliError> {
    let local = &args.file.local;
    let failed = |error| file_error(local, error);
    let mut file = File::open(local).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let sha256 = hash(&mut file).map_err(failed)?;
    let client = context.client()?;
    let base = base(&client, &args.file.session.id)?;
    let record = match &args.resume {
        Some(upload) => resumed(&client, &base, upload, args, (size, &sha256))?,
        None => open(&client, &base, args, (size, &sha256))?,
    };
    let id = render::string(&record, "id").to_owned();
    let path = format!("{base}/uploads/{id}");
    note(&format!(
        "upload {id}; to go on after an interruption: --resume {id}"
    ));
    let mut received = render::number(&record, "received").unwrap_or(0);
    let bar = progress(size, received);
    while received < size && render::string(&record, "state") != "complete" {
        received = send_part(&client, &path, &mut file, local, received)?;
        bar.set_position(received);
    }
    bar.finish_and_clear();
    let done = client.post(&format!("{path}/complete"), &json!({}), Patience::Endless)?;
    context.output.show(&done, render::files::uploaded)?;
    Ok(0)
}

fn open(
    client: &Client,
    base: &str,
    args: &UploadArgs,
    (size, sha256): (u64, &str),
) -> Result<Value, CliError> {
    let mut body = json!({"path": args.file.remote, "size": size, "sha256": sha256});
    if let (Some(mode), Value::Object(map)) = (&args.file.mode, &mut body) {
        map.insert("mode".to_owned(), mode.clone().into());
    }
    client.post(&format!("{base}/uploads"), &body, Patience::Normal)
}

/// The upload to go on with, if it is of this file.
fn resumed(
    client: &Client,
    base: &str,
    upload: &str,
    args: &UploadArgs,
    (size, sha256): (u64, &str),
) -> Result<Value, CliError> {
    let record = client.get(&format!("{base}/uploads/{upload}"))?;
    let same = render::string(&record, "path") == args.file.remote
        && render::number(&record, "size") == Some(size)
        && render::string(&record, "sha256") == sha256;
    match same {
        true => Ok(record),
        false => Err(CliError::Usage(format!(
            "upload {upload} is of another file, or goes to {}",
            render::string(&record, "path")
        ))),
    }
}

/// Sends the part at this offset and answers where to go on. After an error the daemon is asked: the part
/// may have landed.
fn send_part(
    client: &Client,
    path: &str,
    file: &mut File,
    local: &Path,
    offset: u64,
) -> Result<u64, CliError> {
    let failed = |error| file_error(local, error);
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PART_BYTES)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.is_empty() {
        let shrunk = io::Error::other("it became shorter while it was sent");
        return Err(file_error(local, shrunk));
    }
    let mut tries = 1;
    loop {
        let sent = client.put_bytes(&format!("{path}?offset={offset}"), &bytes);
        let error = match sent {
            Ok(record) => return Ok(render::number(&record, "received").unwrap_or(0)),
            Err(error) => error,
        };
        if tries == TRIES_MAX || !error.may_pass() {
            return Err(error);
        }
        tries += 1;
        note(&format!("fluxctl: {error}; trying again"));
        let received = client
            .get(path)
            .ok()
            .and_then(|record| render::number(&record, "received"));
        if let Some(received) = received.filter(|received| *received != offset) {
            return Ok(received);
        }
    }
}

/// Fetches a file slice by slice, checks it, and gives it its name.
pub(super) fn download(context: &Context, args: &DownloadArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let base = base(&client, &args.session.id)?;
    let part = part_of(&args.local);
    let failed = |error| file_error(&part, error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(!args.resume)
        .open(&part)
        .map_err(failed)?;
    let mut offset = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let mut slice = Slice::fetch(&client, &base, &args.remote, offset, true)?;
    let (size, sha256) = (slice.size, slice.sha256.take().unwrap_or_default());
    let bar = progress(size, offset);
    loop {
        if slice.size != size {
            return Err(changed(args));
        }
        file.write_all(&slice.bytes).map_err(failed)?;
        offset += slice.bytes.len() as u64;
        bar.set_position(offset);
        if slice.eof {
            break;
        }
        slice = Slice::fetch(&client, &base, &args.remote, offset, false)?;
    }
    bar.finish_and_clear();
    if offset != size || hash(&mut file).map_err(failed)? != sha256 {
        // What is there is of no use for going on.
        let _ = std::fs::remove_file(&part);
        return Err(changed(args));
    }
    std::fs::rename(&part, &args.local).map_err(|error| file_error(&args.local, error))?;
    let answer = json!({"path": args.remote, "file": args.local, "size": size, "sha256": sha256});
    context.output.show(&answer, render::files::downloaded)?;
    Ok(0)
}

fn changed(args: &DownloadArgs) -> CliError {
    let reason = io::Error::other(format!(
        "{} changed while it was read, or what was there before is not of it; download it anew",
        args.remote
    ));
    file_error(&args.local, reason)
}

fn part_of(local: &Path) -> PathBuf {
    let mut name = local.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    local.with_file_name(name)
}

/// The SHA-256 of a file, from its first byte.
fn hash(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; HASH_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(buffer.get(..read).unwrap_or_default()),
        }
    }
    let digits = hasher.finalize();
    Ok(digits.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A bar on a terminal, nothing elsewhere.
fn progress(size: u64, done: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(size);
    let template = "{bar:30} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_position(done);
    bar
}
