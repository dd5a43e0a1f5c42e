//! A walk over everything beneath a directory that holds a descriptor per level, not a list of what is to come: memory is
//! bounded by the depth, which the longest path bounds, and a tree that changes meanwhile cannot lead it elsewhere.

use std::{fs::File, ops::ControlFlow, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    failure::Failure,
    workspace::{OpenError, open_beneath, open_regular},
};

/// Deeper paths are refused, not walked. The gateway accepts half of it.
pub const MAX_PATH_BYTES: usize = 1024;

/// What the walk met. Paths are relative to where it began, with the prefix given.
pub enum Met {
    Directory,
    File(String, Box<(File, Stat)>),
    /// Not a regular file, or not readable: path (lossy if it is not UTF-8) and why.
    Refused(String, String),
}

/// Visit everything beneath `root`, in no particular order. `skip(path, name)` leaves a directory or file out.
pub fn walk(
    root: &OwnedFd,
    prefix: &str,
    skip: impl Fn(&str, &str, FileType) -> Option<Skip>,
    mut visit: impl FnMut(Met) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let mut levels = vec![(Dir::read_from(root).map_err(|error| Failure::os(prefix, error))?, prefix.to_owned())];
    while let Some((directory, path)) = levels.last_mut() {
        let Some(Ok(entry)) = directory.read() else {
            // A directory removed while it is read ends early, as if it had been empty.
            levels.pop();
            continue;
        };
        let Ok(name) = entry.file_name().to_str() else {
            let shown = join(path, &entry.file_name().to_string_lossy());
            if visit(Met::Refused(shown, "its name is not UTF-8".into()))?.is_break() {
                return Ok(());
            }
            continue;
        };
        if matches!(name, "." | "..") {
            continue;
        }
        let full = join(path, name);
        let (met, deeper) = meet(directory, full, name, entry.file_type(), &skip);
        if let Some(deeper) = deeper {
            levels.push(deeper);
        }
        if let Some(met) = met
            && visit(met)?.is_break()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// How an entry is left out.
pub enum Skip {
    Silently,
    Refused(&'static str),
}

type Level = (Dir, String);

fn meet(
    directory: &Dir,
    full: String,
    name: &str,
    hint: FileType,
    skip: impl Fn(&str, &str, FileType) -> Option<Skip>,
) -> (Option<Met>, Option<Level>) {
    let refused = |full: String, why: &str| (Some(Met::Refused(full, why.to_owned())), None);
    let Ok(directory) = directory.fd() else { return (None, None) };
    let kind = match hint {
        FileType::Unknown => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(_) => return (None, None),
        },
        known => known,
    };
    match skip(&full, name, kind) {
        Some(Skip::Silently) => return (None, None),
        Some(Skip::Refused(why)) => return refused(full, why),
        None => {}
    }
    if full.len() > MAX_PATH_BYTES {
        return refused(shortened(full), "its path is too long");
    }
    match kind {
        FileType::RegularFile => match open_regular(directory, name) {
            Ok(file) => (Some(Met::File(full, Box::new(file))), None),
            Err(OpenError::Os(Errno::NOENT)) => (None, None),
            Err(OpenError::Os(Errno::LOOP)) => refused(full, "it is a symbolic link"),
            Err(OpenError::Os(error)) => refused(full, &format!("it cannot be read: {}", std::io::Error::from(error))),
            Err(OpenError::NotRegular(_)) => refused(full, "it changed while it was read"),
        },
        FileType::Directory => {
            let opened = open_beneath(directory, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).and_then(Dir::new);
            match opened {
                Ok(deeper) => (Some(Met::Directory), Some((deeper, full))),
                Err(Errno::NOENT) => (None, None),
                Err(Errno::LOOP | Errno::NOTDIR) => refused(full, "it changed while it was read"),
                Err(error) => refused(full, &format!("it cannot be read: {}", std::io::Error::from(error))),
            }
        }
        FileType::Symlink => refused(full, "it is a symbolic link"),
        _ => refused(full, "it is not a regular file"),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn shortened(mut path: String) -> String {
    let mut end = 256;
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path.truncate(end);
    path.push('…');
    path
}
