//! One upload: bytes go to a temporary file, are hashed on the way, and become a blob in one step when all is right.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::blobs::Folder;
use super::writer::Writer;
use crate::store::{Digest, Hasher, Origin, Quotas, RunRef, StoreError, Upload};

/// A file that goes when this is dropped, unless it has been renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) struct FileUpload {
    file: File,
    temporary: Temporary,
    hasher: Hasher,
    bytes: i64,
    most: i64,
    expected: Digest,
    run: RunRef,
    origin: Origin,
    quotas: Quotas,
    folder: Arc<Folder>,
    writer: Writer,
}

impl FileUpload {
    pub(super) async fn create(
        folder: Arc<Folder>,
        writer: Writer,
        quotas: Quotas,
        run: RunRef,
        origin: Origin,
        expected: Digest,
        most: i64,
    ) -> Result<Self, StoreError> {
        let temporary = Temporary(folder.temporary());
        let file = File::options().write(true).create_new(true).open(&temporary.0).await?;
        Ok(FileUpload { file, temporary, hasher: Hasher::default(), bytes: 0, most, expected, run, origin, quotas, folder, writer })
    }
}

impl Upload for FileUpload {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.bytes = self.bytes.saturating_add(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
            if self.bytes > self.most {
                return Err(StoreError::BlobTooLarge { most: self.most });
            }
            self.hasher.update(&bytes);
            Ok(self.file.write_all(&bytes).await?)
        })
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<i64, StoreError>> {
        Box::pin(async move {
            let actual = std::mem::take(&mut self.hasher).finish();
            if actual != self.expected {
                return Err(StoreError::DigestMismatch { expected: self.expected, actual });
            }
            self.file.flush().await?;
            self.file.sync_all().await?;
            let (from, to) = (self.temporary.0.clone(), self.folder.path(&actual));
            let (run, origin, quotas, bytes) = (self.run.clone(), self.origin, self.quotas, self.bytes);
            let work = move |connection: &Connection| {
                refer(connection, &run, origin, &quotas, actual, bytes)?;
                match std::fs::rename(&from, &to) {
                    // A batch that is tried again finds the file in place.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound && to.exists() => Ok(()),
                    other => Ok(other?),
                }
            };
            self.writer.transact(work, |()| ()).await?;
            // Only now is it acknowledged; a crash before leaves at most a reference that a repeated upload makes good.
            let shard = self.folder.shard(&actual);
            let synced = tokio::task::spawn_blocking(move || std::fs::File::open(shard)?.sync_all()).await;
            synced.map_err(|error| StoreError::Failed(error.to_string()))??;
            Ok(self.bytes)
        })
    }
}

/// Let the run refer to the blob, within its quotas.
fn refer(connection: &Connection, run: &RunRef, origin: Origin, quotas: &Quotas, digest: Digest, bytes: i64) -> Result<(), StoreError> {
    let id = super::run_row(connection, run)?;
    let inserted = connection
        .prepare_cached("INSERT INTO blob_refs (run, digest, bytes) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING")?
        .execute(params![id, digest.to_string(), bytes])?;
    if inserted == 0 {
        return Ok(());
    }
    let (blobs, total): (i64, i64) = connection
        .prepare_cached("UPDATE runs SET blobs = blobs + 1, blob_bytes = blob_bytes + ?2 WHERE id = ?1 RETURNING blobs, blob_bytes")?
        .query_row([id, bytes], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if origin == Origin::Gateway {
        return Ok(());
    }
    let namespace: Option<i64> = connection
        .prepare_cached("SELECT sum(blob_bytes) FROM runs WHERE namespace = ?1 AND blob_bytes > 0")?
        .query_row([&run.namespace], |row| row.get(0))
        .optional()?
        .flatten();
    for (what, value, most, of_run) in [
        ("the blobs of a run", blobs, quotas.run_blobs, true),
        ("the bytes of a run's blobs", total, quotas.run_blob_bytes, true),
        ("the bytes of a namespace's blobs", namespace.unwrap_or_default(), quotas.namespace_blob_bytes, false),
    ] {
        if value > most && !(of_run && origin == Origin::Person) {
            return Err(StoreError::Quota { what, most });
        }
    }
    Ok(())
}
