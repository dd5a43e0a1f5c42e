//! One upload: a verified content becomes a blob in one step.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, params};

use super::blobs::Folder;
use super::writer::Writer;
use crate::store::spool::Spool;
use crate::store::{Digest, Origin, Quotas, RunRef, StoreError, Upload};

pub(super) struct FileUpload {
    pub spool: Spool,
    pub run: RunRef,
    pub origin: Origin,
    pub quotas: Quotas,
    pub folder: Arc<Folder>,
    pub writer: Writer,
}

impl Upload for FileUpload {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.spool.write(bytes))
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<i64, StoreError>> {
        Box::pin(async move {
            let FileUpload { spool, run, origin, quotas, folder, writer } = *self;
            let spooled = spool.verify().await?;
            spooled.file.sync_all().await?;
            let (digest, bytes) = (spooled.digest, spooled.bytes);
            let (from, to) = (spooled.path().to_owned(), folder.path(&digest));
            let work = move |connection: &Connection| {
                refer(connection, &run, origin, &quotas, digest, bytes)?;
                match std::fs::rename(&from, &to) {
                    // A batch that is tried again finds the file in place.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound && to.exists() => Ok(()),
                    other => Ok(other?),
                }
            };
            writer.transact(work, |()| ()).await?;
            // Only now is it acknowledged; a crash before leaves at most a reference that a repeated upload makes good.
            let shard = folder.shard(&digest);
            let synced = tokio::task::spawn_blocking(move || std::fs::File::open(shard)?.sync_all()).await;
            synced.map_err(|error| StoreError::Failed(error.to_string()))??;
            Ok(bytes)
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
    let namespace: Option<i64> = connection
        .prepare_cached("SELECT sum(blob_bytes) FROM runs WHERE namespace = ?1 AND blob_bytes > 0")?
        .query_row([&run.namespace], |row| row.get(0))
        .optional()?
        .flatten();
    quotas.keep_blob(origin, blobs, total, namespace.unwrap_or_default())
}
