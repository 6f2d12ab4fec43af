//! `agent put`, `cat`, `files`, `rm-file`, `probe`: files that are in memory as a whole, and looks.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::file_error;
use super::sessions;
use crate::args::files::PathArgs;
use crate::args::files::PutArgs;
use crate::args::files::RemoveFileArgs;
use crate::client::Client;
use crate::client::with_query;
use crate::error::CliError;
use crate::render;

/// The largest file that one write takes, in bytes: the daemon's own limit.
const PUT_BYTES_MAX: u64 = 1_500_000;

/// Writes a small file into the sandbox.
pub(super) fn put(context: &Context, args: &PutArgs) -> Result<u8, CliError> {
    let failed = |error| file_error(&args.local, error);
    let size = std::fs::metadata(&args.local).map_err(failed)?.len();
    if size > PUT_BYTES_MAX {
        let local = args.local.display();
        return Err(CliError::Usage(format!(
            "{local} has {size} bytes, and put takes {PUT_BYTES_MAX}: fluxctl agent upload {} {local} {}",
            args.session.id, args.remote
        )));
    }
    let content = std::fs::read(&args.local).map_err(failed)?;
    let client = context.client()?;
    let base = base(&client, &args.session.id)?;
    let mut body = json!({"path": args.remote, "content_base64": STANDARD.encode(content)});
    if let (Some(mode), Value::Object(map)) = (&args.mode, &mut body) {
        map.insert("mode".to_owned(), mode.clone().into());
    }
    let answer = client.put(&format!("{base}/files/content"), &body)?;
    context.output.show(&answer, render::files::written)?;
    Ok(0)
}

/// Prints a file's bytes.
pub(super) fn cat(context: &Context, args: &PathArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let base = base(&client, &args.session.id)?;
    let mut offset = 0;
    loop {
        let slice = Slice::fetch(&client, &base, &args.path, offset, false)?;
        context.output.bytes(&slice.bytes)?;
        offset += slice.bytes.len() as u64;
        if slice.eof {
            return Ok(0);
        }
    }
}

/// Lists a folder, or shows a file.
pub(super) fn list(context: &Context, args: &PathArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let base = base(&client, &args.session.id)?;
    let path = with_query(
        &format!("{base}/files"),
        &[("path", Some(args.path.clone()))],
    );
    context
        .output
        .show(&client.get(&path)?, render::files::listing)?;
    Ok(0)
}

/// Removes a file or a tree.
pub(super) fn remove(context: &Context, args: &RemoveFileArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let base = base(&client, &args.path.session.id)?;
    let recursive = args.recursive.then(|| "true".to_owned());
    let pairs = [
        ("path", Some(args.path.path.clone())),
        ("recursive", recursive),
    ];
    client.delete(&with_query(&format!("{base}/files"), &pairs))?;
    if context.output.is_json() {
        let answer = json!({"path": args.path.path, "removed": true});
        context.output.json_document(&answer)?;
    }
    Ok(0)
}

/// Shows what the sandbox has to work with.
pub(super) fn probe(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let base = base(&client, id)?;
    let answer = client.get(&format!("{base}/probe"))?;
    context.output.show(&answer, render::files::probe)?;
    Ok(0)
}

/// The path of a session.
pub(super) fn base(client: &Client, id: &str) -> Result<String, CliError> {
    let id = sessions::resolve(client, id)?;
    Ok(format!("{}/{id}", sessions::SESSIONS))
}

/// A part of a file in the sandbox.
pub(super) struct Slice {
    pub(super) bytes: Vec<u8>,
    pub(super) size: u64,
    pub(super) eof: bool,
    pub(super) sha256: Option<String>,
}

impl Slice {
    /// Fetches as much as one answer carries.
    pub(super) fn fetch(
        client: &Client,
        base: &str,
        remote: &str,
        offset: u64,
        checksum: bool,
    ) -> Result<Self, CliError> {
        let pairs = [
            ("path", Some(remote.to_owned())),
            ("offset", Some(offset.to_string())),
            ("checksum", checksum.then(|| "true".to_owned())),
        ];
        let path = with_query(&format!("{base}/files/range"), &pairs);
        let answer = client.get_slowly(&path)?;
        Self::read(&answer).map_err(|reason| CliError::Answer {
            method: "GET",
            path,
            reason: reason.to_string(),
        })
    }

    fn read(answer: &Value) -> Result<Self, io::Error> {
        let missing = |what: &str| io::Error::other(format!("no `{what}`"));
        let data = answer.get("data_base64").and_then(Value::as_str);
        let data = data.ok_or_else(|| missing("data_base64"))?;
        Ok(Self {
            bytes: STANDARD.decode(data).map_err(io::Error::other)?,
            size: render::number(answer, "size").ok_or_else(|| missing("size"))?,
            eof: answer
                .get("eof")
                .and_then(Value::as_bool)
                .ok_or_else(|| missing("eof"))?,
            sha256: answer
                .get("sha256")
                .and_then(Value::as_str)
                .map(str::to_owned),
        })
    }
}
