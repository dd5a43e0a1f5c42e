//! The workspace directory and the only ways into it: every path is resolved by the kernel beneath the root's descriptor,
//! without following symbolic or magic links, so that no race with the agent's processes can lead elsewhere.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};

use crate::failure::{ESCAPES, Failure, INVALID, IS_DIRECTORY, NOT_REGULAR};

/// Longest path in a request, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// `openat2` answers EAGAIN when a rename raced with it; then it is asked again so often.
const RACE_RETRIES: usize = 128;

/// An open workspace.
pub struct Workspace {
    root: OwnedFd,
}

impl Workspace {
    /// Open the root directory.
    pub fn open(root: &Path) -> std::io::Result<Self> {
        let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Workspace { root })
    }

    /// A directory of the workspace, for reading; the empty path is the root.
    pub fn directory(&self, path: &str) -> Result<OwnedFd, Failure> {
        check(path)?;
        let inner = if path.is_empty() { "." } else { path };
        open_beneath(&self.root, inner, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR => Failure::new(NOT_REGULAR, format!("{}: is not a directory", shown(path))),
            other => Failure::os(shown(path), other),
        })
    }

    /// A regular file of the workspace, for reading.
    pub fn file(&self, path: &str) -> Result<(File, Stat), Failure> {
        check(path)?;
        if path.is_empty() {
            return Err(Failure::new(IS_DIRECTORY, "the workspace itself is a directory"));
        }
        open_regular(&self.root, path).map_err(|error| match error {
            OpenError::NotRegular(FileType::Directory) => Failure::new(IS_DIRECTORY, format!("{path}: is a directory")),
            OpenError::NotRegular(_) => Failure::new(NOT_REGULAR, format!("{path}: is not a regular file")),
            OpenError::Os(errno) => Failure::os(path, errno),
        })
    }

    /// The directory that holds the last component of `path`, and that component. Missing directories are made on request.
    pub fn parent<'p>(&self, path: &'p str, make: bool) -> Result<(OwnedFd, &'p str), Failure> {
        check(path)?;
        let (directories, name) = match path.rsplit_once('/') {
            Some((directories, name)) => (directories, name),
            None => ("", path),
        };
        if name.is_empty() {
            return Err(Failure::new(IS_DIRECTORY, "the workspace itself is a directory"));
        }
        let mut directory = self.root.try_clone().map_err(|error| Failure::io(path, &error))?;
        for component in directories.split('/').filter(|component| !component.is_empty()) {
            if make {
                match rustix::fs::mkdirat(&directory, component, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(Failure::os(path, error)),
                }
            }
            directory = open_beneath(&directory, component, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
                // A link where a directory is asked for is ENOTDIR to some kernels, ELOOP to others.
                .map_err(|error| match is_link(&directory, component) {
                    true => Failure::os(path, Errno::LOOP),
                    false => Failure::os(path, error),
                })?;
        }
        Ok((directory, name))
    }
}

/// Why a name could not be opened as a regular file.
#[derive(Debug)]
pub enum OpenError {
    NotRegular(FileType),
    Os(Errno),
}

/// Open a regular file beneath `directory`. Never waits (FIFOs) and never becomes a controlling terminal's owner.
pub fn open_regular(directory: impl AsFd, path: &str) -> Result<(File, Stat), OpenError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let descriptor = open_beneath(directory, path, flags, Mode::empty()).map_err(OpenError::Os)?;
    let stat = rustix::fs::fstat(&descriptor).map_err(OpenError::Os)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((File::from(descriptor), stat)),
        other => Err(OpenError::NotRegular(other)),
    }
}

/// `openat2` beneath `directory`, without any link.
pub fn open_beneath(directory: impl AsFd, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut last = Errno::AGAIN;
    for _ in 0..RACE_RETRIES {
        match rustix::fs::openat2(directory.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(error @ (Errno::AGAIN | Errno::INTR)) => last = error,
            other => return other,
        }
    }
    Err(last)
}

/// 644 or 755, by the owner's execute bit, as decimal digits.
pub fn digits(stat: &Stat) -> u32 {
    if stat.st_mode & 0o100 != 0 { 755 } else { 644 }
}

/// Refuses what no path of the workspace can be. The kernel refuses the rest.
fn check(path: &str) -> Result<(), Failure> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Failure::new(INVALID, format!("path: has {} bytes; at most {MAX_PATH_BYTES} are allowed", path.len())));
    }
    if path.contains('\0') {
        return Err(Failure::new(INVALID, "path: contains a NUL character"));
    }
    if path.starts_with('/') {
        return Err(Failure::new(ESCAPES, format!("{path}: paths are relative to the workspace and do not start with '/'")));
    }
    if !path.is_empty() && path.split('/').any(|component| matches!(component, "" | "." | "..")) {
        return Err(Failure::new(ESCAPES, format!("{path}: has an empty component, '.' or '..'")));
    }
    Ok(())
}

fn is_link(directory: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "the workspace" } else { path }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::failure::NOT_FOUND;

    #[test]
    fn nothing_leads_out_and_only_regular_files_open() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/f"), "f").unwrap();
        symlink(outside.path().join("secret"), root.join("link")).unwrap();
        symlink(outside.path(), root.join("out")).unwrap();
        symlink("d/f", root.join("inner")).unwrap();
        symlink("d", root.join("dlink")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), Mode::from_raw_mode(0o644)).unwrap();
        let workspace = Workspace::open(root).unwrap();

        for (path, code) in [
            ("", IS_DIRECTORY),
            ("d", IS_DIRECTORY),
            ("link", ESCAPES),
            ("inner", ESCAPES),
            ("out/secret", ESCAPES),
            ("dlink/f", ESCAPES),
            ("fifo", NOT_REGULAR),
            ("../x", ESCAPES),
            ("d/../d/f", ESCAPES),
            ("/etc/passwd", ESCAPES),
            ("d//f", ESCAPES),
            ("./d/f", ESCAPES),
            ("d/f/g", NOT_FOUND),
            ("none", NOT_FOUND),
            ("a\0b", INVALID),
        ] {
            assert_eq!(workspace.file(path).unwrap_err().code, code, "{path:?}");
        }
        assert_eq!(workspace.file(&"x".repeat(2000)).unwrap_err().code, INVALID);
        assert!(workspace.file("d/f").is_ok());
        assert_eq!(workspace.directory("out").unwrap_err().code, ESCAPES);
        assert_eq!(workspace.directory("d/f").unwrap_err().code, NOT_REGULAR);
        assert_eq!(workspace.parent("out/x", true).unwrap_err().code, ESCAPES);
        assert_eq!(workspace.parent("link/x", true).unwrap_err().code, ESCAPES);
        assert!(!outside.path().join("x").exists());
        assert_eq!(workspace.parent("new/deep/x", true).unwrap().1, "x");
        assert!(root.join("new/deep").is_dir());
        assert_eq!(workspace.parent("absent/x", false).unwrap_err().code, NOT_FOUND);
    }
}
