//! A disk in memory that notes everything that is done to it, fails when it is told to, and fills
//! up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;

use fluxvm_eventstore::FileSystem;
use fluxvm_eventstore::StoreFile;

use super::trace::Image;
use super::trace::Op;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The disk. Clones are the same one.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: BTreeMap<String, u64>,
    inodes: BTreeMap<u64, Vec<u8>>,
    ops: Vec<Op>,
    syncs: u64,
    fails_at_sync: Option<u64>,
    bytes_max: Option<usize>,
}

impl SimulatedDisk {
    /// A disk that holds what an image holds.
    pub fn from_image(image: &Image) -> SimulatedDisk {
        let mut state = State::default();
        for (inode, (path, bytes)) in (0..).zip(&image.files) {
            state.files.insert(path.clone(), inode);
            state.inodes.insert(inode, bytes.clone());
        }
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }

    /// Has the sync with this number, from one, and every later one fail with EIO.
    pub fn fail_from_sync(&self, number: u64) {
        self.0.lock().unwrap().fails_at_sync = Some(number);
    }

    /// Has writes fail that would need more than so many bytes in all.
    pub fn limit_bytes(&self, bytes: usize) {
        self.0.lock().unwrap().bytes_max = Some(bytes);
    }

    /// Notes that a writer was answered.
    pub fn answer(&self, text: String) {
        self.0.lock().unwrap().ops.push(Op::Answer { text });
    }

    pub fn syncs(&self) -> u64 {
        self.0.lock().unwrap().syncs
    }

    /// Everything that was done so far.
    pub fn ops(&self) -> Vec<Op> {
        self.0.lock().unwrap().ops.clone()
    }
}

impl State {
    fn count_sync(&mut self) -> io::Result<()> {
        self.syncs += 1;
        match self.fails_at_sync {
            Some(number) if self.syncs >= number => Err(io::Error::from_raw_os_error(EIO)),
            _ => Ok(()),
        }
    }
}

fn name(path: &Path) -> String {
    // All of it is one folder: what leads to it is left out.
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

impl FileSystem for SimulatedDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _dir: &Path) -> io::Result<Option<File>> {
        Ok(None)
    }

    fn list(&self, _dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().files.keys().cloned().collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let inode = self.0.lock().unwrap().files.get(&name(path)).copied();
        let inode = inode.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            inode,
        }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let path = name(path);
        let mut state = self.0.lock().unwrap();
        if state.files.contains_key(&path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = state.inodes.len() as u64;
        state.files.insert(path.clone(), inode);
        state.inodes.insert(inode, Vec::new());
        state.ops.push(Op::Create { path, inode });
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            inode,
        }))
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.count_sync()?;
        state.ops.push(Op::SyncDir {
            path: String::new(),
        });
        Ok(())
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    inode: u64,
}

impl StoreFile for SimulatedFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().unwrap().inodes[&self.inode].len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.0.lock().unwrap();
        let bytes = state.inodes[&self.inode].get(offset as usize..);
        let bytes = bytes.and_then(|bytes| bytes.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut bytes, inode, offset) = (bytes, self.inode, offset as usize);
        let mut state = self.disk.0.lock().unwrap();
        let used: usize = state.inodes.values().map(Vec::len).sum();
        let free = state
            .bytes_max
            .map_or(usize::MAX, |max| max.saturating_sub(used));
        let is_full = bytes.len() > free;
        if is_full {
            // A full disk takes what still fits.
            bytes = &bytes[..free];
        }
        let file = state.inodes.get_mut(&inode).unwrap();
        let end = offset + bytes.len();
        file.resize(file.len().max(end), 0);
        file[offset..end].copy_from_slice(bytes);
        state.ops.push(Op::Write {
            inode,
            offset: offset as u64,
            bytes: bytes.to_vec(),
        });
        match is_full {
            true => Err(io::Error::from_raw_os_error(ENOSPC)),
            false => Ok(()),
        }
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        state
            .inodes
            .get_mut(&self.inode)
            .unwrap()
            .resize(bytes as usize, 0);
        state.ops.push(Op::Truncate {
            inode: self.inode,
            bytes,
        });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        state.count_sync()?;
        state.ops.push(Op::SyncFile { inode: self.inode });
        Ok(())
    }
}
