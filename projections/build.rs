//! Gives the folds a name that changes with their source, see `src/snapshot.rs`.

#![allow(
    clippy::disallowed_methods,
    reason = "the folds may not look at files; what builds them has to"
)]

use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    source_files(Path::new("src"), &mut files)?;
    files.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for path in &files {
        // A length in front of each part, so that no text can move from one into the next.
        for part in [path.to_string_lossy().as_bytes(), &fs::read(path)?] {
            hasher.update(&part.len().to_be_bytes());
            hasher.update(part);
        }
    }
    let out = std::env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let version = hasher.finalize();
    fs::write(Path::new(&out).join("folds-version"), version.as_bytes())?;
    #[allow(clippy::print_stdout, reason = "this is how cargo is told")]
    {
        println!("cargo::rerun-if-changed=src");
    }
    Ok(())
}

fn source_files(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            source_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
