//! One process a folder.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use crate::store::StoreError;

/// The lock of a data folder, given back when dropped.
pub struct FolderLock(File);

impl FolderLock {
    /// Take the lock, or say that somebody has it. Never waits.
    pub fn take(folder: &Path) -> Result<Self, StoreError> {
        let file = File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Failed(format!(
                "{} is in use by another gateway process; each needs a data folder of its own",
                folder.display()
            ))),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}

impl Drop for FolderLock {
    /// Closing alone would leave the lock with a child that has been forked and has not yet executed its program.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the data folder's lock could not be given back before closing it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_free_though_a_forked_child_has_the_file_still_open() {
        let folder = tempfile::tempdir().expect("folder");
        let first = FolderLock::take(folder.path()).expect("free");
        let inherited = first.0.try_clone().expect("another descriptor of the same open file");
        assert!(FolderLock::take(folder.path()).is_err());
        drop(first);
        let second = FolderLock::take(folder.path());
        assert!(second.is_ok());
        drop(inherited);
        assert!(FolderLock::take(folder.path()).is_err(), "the second holder's lock is its own");
    }
}
