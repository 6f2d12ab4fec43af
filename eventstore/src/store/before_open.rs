//! An opening that is refused leaves the store's files as they were.
//!
//! sled repairs while it opens: where a byte of its log does not hold it cuts off what lies behind
//! it, long before anything above can say that events are missing. So the files are copied first,
//! and put back where the opening is refused: one damaged byte stays one damaged byte.
//!
//! ```text
//! <dir>/before-open/db, conf, snap.*   the files of the ledger's store as they were
//! <dir>/before-open/complete           which store they are of, and what they are called; durable
//!                                      after all of them, gone durably before the first append
//! ```
//!
//! Whoever finds `complete` finds an opening that neither succeeded nor was refused, and puts the
//! files back before anything else. A folder without it is part of a copy and counts for nothing.
//! sled's folder `blobs` is left out: the segments are so large that nothing is ever put there.
//! A store that is [as it was closed][super::closed] is not copied: opening it changes nothing.
//! Where there is no space for the copy the store is opened without it, and that is reported.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use super::closed;
use super::founding;
use super::generation;
use crate::OpenError;
use crate::environment::Disk;
use crate::files;

/// The folder of the copy.
pub(super) const FOLDER: &str = "before-open";
/// The file in it that says that the copy is whole.
const COMPLETE: &str = "complete";
/// Its last line: a file that was cut off does not have it.
const END: &str = "end";
/// How many bytes are copied at a time. So many zeros become a hole.
const CHUNK_BYTES: usize = 256 * 1024;

/// A ledger's folder while it is being opened. Nobody else can open it meanwhile.
pub(super) struct BeforeOpen {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    lock: Arc<File>,
    is_kept: bool,
    /// There is no copy because the store is as it was closed.
    is_untouched: bool,
}

impl BeforeOpen {
    /// Locks the folder, undoes an opening that was cut off, and copies the store's files.
    pub(super) fn keep(dir: &Path, disk: &Arc<dyn Disk>) -> Result<BeforeOpen, OpenError> {
        let lock = lock(dir, &**disk)?;
        let copy = dir.join(FOLDER);
        if put_back(dir, &**disk).map_err(OpenError::io(&copy))? {
            let shown = dir.display();
            tracing::warn!(dir = %shown, "an opening was cut off: the store's files are put back");
        }
        let is_untouched = closed::is_untouched(dir).unwrap_or_default();
        let copied = match is_untouched {
            true => Ok(false),
            false => copy_store(dir, &**disk),
        };
        let is_kept = match copied {
            Ok(is_kept) => is_kept,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the store's files cannot be copied before they are opened: if they are \
                     damaged, opening may damage them further"
                );
                remove(&copy).map_err(OpenError::io(&copy))?;
                false
            }
        };
        Ok(BeforeOpen {
            dir: dir.to_owned(),
            disk: Arc::clone(disk),
            lock,
            is_kept,
            is_untouched,
        })
    }

    /// What keeps others out, for the store to hold as well.
    pub(super) fn lock(&self) -> &Arc<File> {
        &self.lock
    }

    /// The opening succeeded: the copy goes, durably, before anything is appended.
    pub(super) fn forget(self) -> Result<(), OpenError> {
        if self.is_untouched {
            let forgotten = closed::forget(&self.dir, &*self.disk);
            forgotten.map_err(OpenError::io(&self.dir))?;
        }
        if !self.is_kept {
            return Ok(());
        }
        let copy = self.dir.join(FOLDER);
        let forgotten = forget(&copy, &*self.disk);
        forgotten.map_err(OpenError::io(copy))
    }

    /// The opening was refused and the store let go of: its files become what they were.
    pub(super) fn refuse(self, refused: OpenError) -> OpenError {
        if !self.is_kept {
            return refused;
        }
        match put_back(&self.dir, &*self.disk) {
            Ok(_) => {
                let dir = self.dir.display();
                tracing::warn!(%dir, %refused, "the store's files are as they were before");
                refused
            }
            Err(source) => OpenError::NotPutBack {
                refused: Box::new(refused),
                kept: self.dir.join(FOLDER),
                source,
            },
        }
    }
}

/// Makes the folder and keeps everyone else out of it.
pub(super) fn lock(dir: &Path, disk: &dyn Disk) -> Result<Arc<File>, OpenError> {
    files::create_private_dir(dir, disk).map_err(OpenError::io(dir))?;
    let lock = files::lock(dir).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked {
            dir: dir.to_owned(),
        },
        _ => OpenError::io(dir.join(files::LOCK))(e),
    })?;
    Ok(Arc::new(lock))
}

/// Copies the files of the ledger's store, and returns whether there are any.
fn copy_store(dir: &Path, disk: &dyn Disk) -> io::Result<bool> {
    let number = generation::newest(dir)?;
    let names = store_files(&generation::folder(dir, number))?;
    // What is still being founded is made anew, whatever it looks like.
    let is_founded = !generation::folder(dir, number)
        .join(founding::MARK)
        .exists();
    if !is_founded || !names.iter().any(|name| name == "db") {
        return Ok(false);
    }
    let copy = dir.join(FOLDER);
    DirBuilder::new().mode(0o700).create(&copy)?;
    let mut complete = format!("store {number}\n");
    for name in names {
        let from = generation::folder(dir, number).join(&name);
        copy_file(&from, &copy.join(&name), disk)?;
        complete.push_str(&format!("{name}\n"));
    }
    complete.push_str(END);
    complete.push('\n');
    files::sync_path(&copy, disk)?;
    files::sync_path(dir, disk)?;
    let mark = private_file(&copy.join(COMPLETE))?;
    mark.write_all_at(complete.as_bytes(), 0)?;
    disk.sync_all(&mark)?;
    files::sync_path(&copy, disk)?;
    Ok(true)
}

/// What sled has in this folder.
pub(super) fn store_files(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = generation::names(folder)?;
    names.retain(|name| name == "db" || name == "conf" || name.starts_with(generation::SNAPSHOT));
    Ok(names)
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Copies one file, durably. sled's log ends in megabytes of zeros: they take no space in the copy.
fn copy_file(from: &Path, to: &Path, disk: &dyn Disk) -> io::Result<()> {
    let source = File::open(from)?;
    let copy = private_file(to)?;
    copy.set_permissions(source.metadata()?.permissions())?;
    let zeros = vec![0; CHUNK_BYTES];
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let read = match source.read_at(&mut chunk, at) {
            Ok(0) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let bytes = chunk.get(..read).unwrap_or_default();
        if !zeros.starts_with(bytes) {
            copy.write_all_at(bytes, at)?;
        }
        at += u64::try_from(read).map_err(io::Error::other)?;
    }
    copy.set_len(at)?;
    disk.sync_all(&copy)
}

/// Makes the store what a whole copy says it was, and returns whether there is one. What it does
/// can be cut off anywhere and done again.
fn put_back(dir: &Path, disk: &dyn Disk) -> io::Result<bool> {
    let copy = dir.join(FOLDER);
    let Some((number, names)) = read_complete(&copy)? else {
        remove(&copy)?;
        return Ok(false);
    };
    let folder = generation::folder(dir, number);
    files::create_private_dir(&folder, disk)?;
    for name in &names {
        let (kept, place) = (copy.join(name), folder.join(name));
        // One that is not in the copy any more was put back by an attempt that was cut off.
        if kept.exists() || !place.exists() {
            fs::rename(kept, place)?;
        }
    }
    for name in store_files(&folder)? {
        if !names.contains(&name) {
            fs::remove_file(folder.join(name))?;
        }
    }
    // A store that this opening wrote anew was made from the one that is put back.
    for name in generation::names(dir)? {
        if generation::number(&name).is_some_and(|newer| newer > number) {
            fs::remove_dir_all(dir.join(name))?;
        }
    }
    files::sync_path(&folder, disk)?;
    files::sync_path(dir, disk)?;
    forget(&copy, disk)?;
    Ok(true)
}

/// Which store a whole copy is of and what its files are called.
fn read_complete(copy: &Path) -> io::Result<Option<(u64, Vec<String>)>> {
    let text = match fs::read_to_string(copy.join(COMPLETE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        // Never all written: the names are ASCII.
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Ok(None),
        text => text?,
    };
    let mut lines = text.lines().map(str::to_owned);
    let number = lines.next();
    let number = number.and_then(|line| line.strip_prefix("store ")?.parse().ok());
    let mut names: Vec<String> = lines.collect();
    let is_whole = names.pop().is_some_and(|line| line == END) && text.ends_with('\n');
    Ok(number
        .filter(|_| is_whole)
        .map(|number: u64| (number, names)))
}

/// Takes the copy away, first of all what says that it is whole.
fn forget(copy: &Path, disk: &dyn Disk) -> io::Result<()> {
    fs::remove_file(copy.join(COMPLETE))?;
    files::sync_path(copy, disk)?;
    remove(copy)
}

fn remove(copy: &Path) -> io::Result<()> {
    match fs::remove_dir_all(copy) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
