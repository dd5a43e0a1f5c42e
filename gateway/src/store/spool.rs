//! Content on its way into a store: written to a temporary file, so that its size costs no memory, counted, and hashed.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::{Digest, Hasher, StoreError};

/// A file that goes when this is dropped, unless it has been renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What has come so far.
pub struct Spool {
    file: File,
    temporary: Temporary,
    hasher: Hasher,
    bytes: i64,
    most: i64,
    expected: Digest,
}

/// All of it, with the digest that was expected.
pub struct Spooled {
    pub file: File,
    pub digest: Digest,
    pub bytes: i64,
    temporary: Temporary,
}

impl Spool {
    /// Begin, in a file that is not there yet. `most` bytes are taken.
    pub async fn create(path: PathBuf, expected: Digest, most: i64) -> Result<Self, StoreError> {
        let temporary = Temporary(path);
        let file = File::options().write(true).create_new(true).open(&temporary.0).await?;
        Ok(Spool { file, temporary, hasher: Hasher::default(), bytes: 0, most, expected })
    }

    pub async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        self.bytes = self.bytes.saturating_add(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        if self.bytes > self.most {
            return Err(StoreError::BlobTooLarge { most: self.most });
        }
        self.hasher.update(&bytes);
        Ok(self.file.write_all(&bytes).await?)
    }

    pub async fn verify(mut self) -> Result<Spooled, StoreError> {
        let actual = self.hasher.finish();
        if actual != self.expected {
            return Err(StoreError::DigestMismatch { expected: self.expected, actual });
        }
        self.file.flush().await?;
        Ok(Spooled { file: self.file, digest: actual, bytes: self.bytes, temporary: self.temporary })
    }
}

impl Spooled {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.temporary.0
    }
}
