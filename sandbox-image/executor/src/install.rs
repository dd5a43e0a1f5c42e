//! `install`: copies the running program to a path that another container mounts. The destination appears whole or not at all.

use std::{
    fs::{File, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use anyhow::Context;

/// Copy this program to `destination`, mode 755, through a temporary file and a rename.
pub fn install(destination: &Path) -> anyhow::Result<()> {
    let name = destination.file_name().with_context(|| format!("{} names no file", destination.display()))?;
    let directory = match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut part_name = std::ffi::OsString::from(".");
    part_name.push(name);
    part_name.push(format!(".{}", std::process::id()));
    let part = directory.join(part_name);

    let mut from = File::open("/proc/self/exe").context("cannot open the running program")?;
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&part)
        .with_context(|| format!("cannot create {}", part.display()))?;
    let copied = io::copy(&mut from, &mut to)
        // Whatever the umask says.
        .and_then(|_| to.set_permissions(Permissions::from_mode(0o755)))
        .and_then(|()| to.sync_all())
        .and_then(|()| std::fs::rename(&part, destination))
        .and_then(|()| File::open(directory)?.sync_all());
    if copied.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    copied.with_context(|| format!("cannot install to {}", destination.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_whole_executable_and_alone() {
        let dir = tempfile::tempdir().unwrap();
        let destination = dir.path().join("executor");
        for _ in 0..2 {
            install(&destination).unwrap();
            assert_eq!(std::fs::read(&destination).unwrap(), std::fs::read("/proc/self/exe").unwrap());
            assert_eq!(destination.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_destination_that_cannot_be_written_is_named_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        std::fs::write(dir.path().join("taken/file"), "").unwrap();
        let error = format!("{:#}", install(&dir.path().join("taken")).unwrap_err());
        assert!(error.contains("taken"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(install(Path::new("/")).is_err());
    }
}
