//! `fs.Write`: a file appears whole or not at all, through a temporary file beside it. Also the step that `fs.Edit` ends with.

use std::{
    fs::File,
    io::Write,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU64, Ordering},
};

use agentrun_protocol::executor::{FsWrite, FsWriteDone};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};
use sha2::{Digest, Sha256};

use crate::{
    failure::{ALREADY_EXISTS, Failure, INVALID, IS_DIRECTORY, NOT_REGULAR, TOO_LARGE},
    fs_read::digest_text,
    request::Request,
    workspace::{Workspace, digits, open_beneath},
};

/// Largest file that can be written by request.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Blocking.
pub fn write(workspace: &Workspace, request: &Request, write: &FsWrite) -> Result<FsWriteDone, Failure> {
    if write.size > MAX_BYTES {
        return Err(Failure::new(TOO_LARGE, format!("size: is {}; at most {MAX_BYTES} bytes are allowed", write.size)));
    }
    let mut replacement = Replacement::begin(workspace, &write.path, write.mode, write.create_only)?;
    let mut hash = Sha256::new();
    let mut left = write.size;
    while left > 0 {
        let chunk = request.chunk_blocking().ok_or_else(Failure::cancelled)?;
        left = left
            .checked_sub(chunk.len() as u64)
            .ok_or_else(|| Failure::new(INVALID, format!("size: more than the announced {} bytes were sent", write.size)))?;
        hash.update(&chunk);
        replacement.append(&chunk)?;
    }
    request.check()?;
    replacement.commit()?;
    Ok(FsWriteDone { sha256: digest_text(hash) })
}

/// A file that is being written beside the one it will replace. Dropped before `commit`, it leaves nothing.
pub struct Replacement {
    directory: OwnedFd,
    path: String,
    name: String,
    temporary: String,
    file: File,
    create_only: bool,
    committed: bool,
}

impl Replacement {
    /// `mode` is 644, 755 or 0 for that of the file that is there, else 644.
    pub fn begin(workspace: &Workspace, path: &str, mode: u32, create_only: bool) -> Result<Self, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (directory, name) = workspace.parent(path, true)?;
        let existing = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                _ if create_only => return Err(Failure::new(ALREADY_EXISTS, format!("{path}: exists already"))),
                FileType::RegularFile => Some(digits(&stat)),
                FileType::Directory => return Err(Failure::new(IS_DIRECTORY, format!("{path}: is a directory"))),
                _ => return Err(Failure::new(NOT_REGULAR, format!("{path}: is not a regular file, and is left as it is"))),
            },
            Err(Errno::NOENT) => None,
            Err(error) => return Err(Failure::os(path, error)),
        };
        let mode = match mode {
            0 => existing.unwrap_or(644),
            644 | 755 => mode,
            other => return Err(Failure::new(INVALID, format!("mode: {other} is not allowed; 644, 755 and 0 are"))),
        };
        let temporary = format!(".agentrun-{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = open_beneath(&directory, &temporary, flags, Mode::from_raw_mode(0o600)).map_err(|error| Failure::os(path, error))?;
        let replacement = Replacement {
            directory,
            path: path.to_owned(),
            name: name.to_owned(),
            temporary,
            file: File::from(file),
            create_only,
            committed: false,
        };
        let mode = Mode::from_raw_mode(if mode == 755 { 0o755 } else { 0o644 });
        rustix::fs::fchmod(&replacement.file, mode).map_err(|error| Failure::os(path, error))?;
        Ok(replacement)
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::io(&self.path, &error))
    }

    /// Put it in the place of the old file.
    pub fn commit(mut self) -> Result<(), Failure> {
        let flags = if self.create_only { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        rustix::fs::renameat_with(&self.directory, &self.temporary, &self.directory, &self.name, flags)
            .map_err(|error| Failure::os(&self.path, error))?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.committed {
            let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn put(workspace: &Workspace, path: &str, mode: u32, create_only: bool, bytes: &[u8]) -> Result<(), Failure> {
        let mut replacement = Replacement::begin(workspace, path, mode, create_only)?;
        replacement.append(bytes)?;
        replacement.commit()
    }

    #[test]
    fn modes_are_kept_or_set_and_directories_made() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path()).unwrap();
        for (mode, expected) in [(0, 0o644), (755, 0o755), (0, 0o755), (644, 0o644)] {
            put(&workspace, "a/b/c", mode, false, b"x").unwrap();
            assert_eq!(dir.path().join("a/b/c").metadata().unwrap().permissions().mode() & 0o7777, expected);
        }
        assert_eq!(put(&workspace, "a/b/c", 0o644, false, b"x").unwrap_err().code, INVALID);
        assert_eq!(put(&workspace, "a/b/c", 644, true, b"y").unwrap_err().code, ALREADY_EXISTS);
        assert_eq!(put(&workspace, "a/b", 644, false, b"y").unwrap_err().code, IS_DIRECTORY);
        symlink("c", dir.path().join("a/b/link")).unwrap();
        assert_eq!(put(&workspace, "a/b/link", 644, false, b"y").unwrap_err().code, NOT_REGULAR);
        assert_eq!(std::fs::read(dir.path().join("a/b/c")).unwrap(), b"x");
        drop(Replacement::begin(&workspace, "a/b/given-up", 0, false).unwrap());
        assert_eq!(std::fs::read_dir(dir.path().join("a/b")).unwrap().count(), 2);
    }

    #[test]
    fn a_second_name_of_the_old_file_keeps_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("one"), "old").unwrap();
        std::fs::hard_link(dir.path().join("one"), dir.path().join("two")).unwrap();
        put(&Workspace::open(dir.path()).unwrap(), "one", 0, false, b"new").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("two")).unwrap(), "old");
    }

    #[test]
    fn racing_links_never_lead_a_write_out() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        std::fs::create_dir(root.join("real")).unwrap();
        symlink(outside.path(), root.join("fake")).unwrap();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let racer = std::thread::spawn({
            let (root, stop) = (root.clone(), stop.clone());
            move || {
                let mut swaps = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let swap = |a: &str, b: &str| {
                        rustix::fs::renameat_with(rustix::fs::CWD, root.join(a), rustix::fs::CWD, root.join(b), RenameFlags::EXCHANGE)
                    };
                    swaps += u64::from(swap("real", "fake").is_ok());
                }
                swaps
            }
        });
        let workspace = Workspace::open(&root).unwrap();
        let mut outcomes = std::collections::BTreeMap::new();
        for round in 0..4000 {
            let outcome = put(&workspace, &format!("real/f{}", round % 7), 0, false, b"x").map_err(|failure| failure.code);
            *outcomes.entry(outcome).or_insert(0u64) += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let swaps = racer.join().unwrap();
        assert!(swaps > 100, "the race must have taken place: {swaps} swaps");
        assert!(outcomes.contains_key(&Ok(())) && outcomes.len() > 1, "both sides must have been met: {outcomes:?}");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
