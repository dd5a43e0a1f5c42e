//! `fs.List`: one directory, sorted by name, bounded in memory however many entries it has.

use std::collections::BTreeMap;

use agentrun_protocol::executor::{Entry, EntryKind, FsList, FsListDone};
use rustix::fs::{AtFlags, Dir, FileType};

use crate::{failure::Failure, request::Request, workspace::Workspace};

const MAX_ENTRIES: usize = 10_000;
/// Names of an answer, so that it fits a frame whatever it holds.
const MAX_NAME_BYTES: usize = 256 * 1024;

/// Blocking. Keeps the first `max_entries` names in byte order.
pub fn list(workspace: &Workspace, request: &Request, list: &FsList) -> Result<FsListDone, Failure> {
    let directory = workspace.directory(&list.path)?;
    let limit = match list.max_entries as usize {
        0 => MAX_ENTRIES,
        asked => asked.min(MAX_ENTRIES),
    };
    let mut names: BTreeMap<Vec<u8>, FileType> = BTreeMap::new();
    let mut name_bytes = 0;
    let mut truncated = false;
    for entry in Dir::read_from(&directory).map_err(|error| Failure::os(&list.path, error))? {
        request.check()?;
        let entry = entry.map_err(|error| Failure::os(&list.path, error))?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if names.insert(name.to_vec(), entry.file_type()).is_none() {
            name_bytes += name.len();
        }
        while names.len() > limit || name_bytes > MAX_NAME_BYTES {
            name_bytes -= names.pop_last().map_or(0, |(name, _)| name.len());
            truncated = true;
        }
    }
    let entries = names.into_iter().map(|(name, hint)| {
        let stat = rustix::fs::statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = match stat.as_ref().map_or(hint, |stat| FileType::from_raw_mode(stat.st_mode)) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        let size = match kind {
            EntryKind::File => stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or_default()),
            _ => 0,
        };
        Entry { name: String::from_utf8_lossy(&name).into_owned(), kind: kind.into(), size }
    });
    Ok(FsListDone { entries: entries.collect(), truncated })
}

#[cfg(test)]
mod tests {
    use std::os::unix::{ffi::OsStrExt, fs::symlink};

    use tokio::sync::mpsc;

    use super::*;
    use crate::{failure::ESCAPES, request::Table};

    #[test]
    fn entries_are_sorted_typed_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("b")).unwrap();
        std::fs::write(root.join("a\n\u{202e}"), "123").unwrap();
        std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"c\xff")), "").unwrap();
        symlink("/etc/passwd", root.join("d")).unwrap();
        let workspace = Workspace::open(root).unwrap();
        let request = Table::default().open(1, mpsc::channel(1).0).unwrap();
        let all = list(&workspace, &request, &FsList::default()).unwrap();
        let seen: Vec<_> = all.entries.iter().map(|entry| (entry.name.as_str(), entry.kind(), entry.size)).collect();
        assert_eq!(
            seen,
            [
                ("a\n\u{202e}", EntryKind::File, 3),
                ("b", EntryKind::Directory, 0),
                ("c\u{fffd}", EntryKind::File, 0),
                ("d", EntryKind::Symlink, 0)
            ]
        );
        assert!(!all.truncated);
        let two = list(&workspace, &request, &FsList { path: String::new(), max_entries: 2 }).unwrap();
        assert_eq!((two.entries.as_slice(), two.truncated), (&all.entries[..2], true));
        assert_eq!(list(&workspace, &request, &FsList { path: "d".into(), max_entries: 0 }).unwrap_err().code, ESCAPES);

        let long = "x".repeat(240);
        for number in 0..2000 {
            std::fs::write(root.join(format!("{long}{number:05}")), "").unwrap();
        }
        let many = list(&workspace, &request, &FsList::default()).unwrap();
        assert!(many.truncated && many.entries.len() > 1000);
    }
}
