//! The artifact store on a folder of blobs, with references and names in SQLite. A blob's file is put in place, and taken
//! away, by the writer thread only, so that the two never cross.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use rusqlite::{Connection, OptionalExtension, params};
use tokio_util::io::ReaderStream;

use super::Embedded;
use super::upload::FileUpload;
use crate::store::spool::Spool;
use crate::store::{Answer, Artifact, ArtifactStore, Blob, Digest, Origin, Quotas, RunRef, StoreError, Totals, Upload};

/// `<folder>/sha256/ab/<hex>` and `<folder>/tmp/<n>`.
pub(super) struct Folder {
    root: PathBuf,
    uploads: AtomicU64,
}

impl Folder {
    /// What a crash left in `tmp` was never acknowledged and goes.
    pub(super) fn open(root: PathBuf) -> Result<Self, StoreError> {
        let tmp = root.join("tmp");
        if tmp.exists() {
            std::fs::remove_dir_all(&tmp)?;
        }
        std::fs::create_dir_all(&tmp)?;
        for shard in 0..=255u8 {
            std::fs::create_dir_all(root.join("sha256").join(format!("{shard:02x}")))?;
        }
        Ok(Folder { root, uploads: AtomicU64::new(0) })
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.root.join("tmp").join(self.uploads.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub(super) fn shard(&self, digest: &Digest) -> PathBuf {
        self.root.join("sha256").join(&digest.hex()[..2])
    }

    pub(super) fn path(&self, digest: &Digest) -> PathBuf {
        self.shard(digest).join(digest.hex())
    }
}

impl ArtifactStore for Embedded {
    fn begin(&self, run: &RunRef, origin: Origin, expected: Digest, most: i64) -> Answer<'_, Box<dyn Upload>> {
        let (run, quotas) = (run.clone(), self.quotas);
        Box::pin(async move {
            let uid = run.uid.clone();
            let used = self.readers.read(move |connection| totals(connection, &uid)).await?;
            quotas.begin_blob(origin, used.bytes)?;
            let spool = Spool::create(self.blobs.temporary(), expected, most).await?;
            let upload = FileUpload { spool, run, origin, quotas, folder: self.blobs.clone(), writer: self.writer.clone() };
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn name(&self, run: &RunRef, origin: Origin, name: &str, digest: Digest) -> Answer<'_, ()> {
        let (run, name, quotas) = (run.clone(), name.to_owned(), self.quotas);
        Box::pin(async move {
            let work = move |connection: &Connection| set_name(connection, &run, origin, &name, digest, &quotas);
            self.writer.transact(work, |()| ()).await
        })
    }

    fn list(&self, run_uid: &str) -> Answer<'_, Vec<Artifact>> {
        let uid = run_uid.to_owned();
        Box::pin(self.readers.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT a.name, a.digest, b.bytes FROM runs r JOIN artifacts a ON a.run = r.id JOIN blob_refs b ON b.run = r.id AND b.digest = a.digest
                 WHERE r.uid = ?1 ORDER BY a.name",
            )?;
            let mut rows = select.query([uid])?;
            let mut artifacts = Vec::new();
            while let Some(row) = rows.next()? {
                let digest: String = row.get(1)?;
                let digest = Digest::parse(&digest).map_err(|error| StoreError::Failed(format!("a stored digest {error}")))?;
                artifacts.push(Artifact { name: row.get(0)?, digest, bytes: row.get(2)? });
            }
            Ok(artifacts)
        }))
    }

    fn size(&self, run_uid: &str, digest: Digest) -> Answer<'_, Option<i64>> {
        let uid = run_uid.to_owned();
        Box::pin(self.readers.read(move |connection| size(connection, &uid, digest)))
    }

    fn open(&self, run_uid: &str, digest: Digest) -> Answer<'_, Option<Blob>> {
        let (uid, path) = (run_uid.to_owned(), self.blobs.path(&digest));
        Box::pin(async move {
            let Some(bytes) = self.readers.read(move |connection| size(connection, &uid, digest)).await? else { return Ok(None) };
            let file = match tokio::fs::File::open(&path).await {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(StoreError::Failed(format!("the file of blob {digest} is gone")));
                }
                Err(error) => return Err(error.into()),
            };
            let content = ReaderStream::with_capacity(file, 64 * 1024).map(|piece| piece.map_err(StoreError::from));
            Ok(Some(Blob { bytes, content: content.boxed() }))
        })
    }

    fn totals(&self, run_uid: &str) -> Answer<'_, Totals> {
        let uid = run_uid.to_owned();
        Box::pin(self.readers.read(move |connection| totals(connection, &uid)))
    }

    fn purge(&self, run_uid: &str) -> Answer<'_, ()> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let work = move |connection: &Connection| {
                for sql in [
                    "DELETE FROM artifacts WHERE run = (SELECT id FROM runs WHERE uid = ?1)",
                    "DELETE FROM blob_refs WHERE run = (SELECT id FROM runs WHERE uid = ?1)",
                    "UPDATE runs SET blobs = 0, blob_bytes = 0 WHERE uid = ?1",
                ] {
                    connection.prepare_cached(sql)?.execute([&uid])?;
                }
                Ok(())
            };
            self.writer.transact(work, |()| ()).await
        })
    }

    fn collect(&self) -> Answer<'_, u64> {
        Box::pin(async move {
            let mut collected = 0;
            // A shard at a time, so that appends are not kept waiting for the whole sweep.
            for shard in 0..=255u8 {
                let folder = self.blobs.root.join("sha256").join(format!("{shard:02x}"));
                collected += self.writer.alone(move |connection| collect(connection, &folder)).await?;
            }
            Ok(collected)
        })
    }
}

fn size(connection: &Connection, uid: &str, digest: Digest) -> Result<Option<i64>, StoreError> {
    let mut select =
        connection.prepare_cached("SELECT b.bytes FROM runs r JOIN blob_refs b ON b.run = r.id WHERE r.uid = ?1 AND b.digest = ?2")?;
    Ok(select.query_row([uid, &digest.to_string()], |row| row.get(0)).optional()?)
}

fn totals(connection: &Connection, uid: &str) -> Result<Totals, StoreError> {
    let mut select = connection.prepare_cached("SELECT blobs, blob_bytes FROM runs WHERE uid = ?1")?;
    let totals = select.query_row([uid], |row| Ok(Totals { blobs: row.get(0)?, bytes: row.get(1)? })).optional()?;
    Ok(totals.unwrap_or_default())
}

fn set_name(connection: &Connection, run: &RunRef, origin: Origin, name: &str, digest: Digest, quotas: &Quotas) -> Result<(), StoreError> {
    let id = super::run_row(connection, run)?;
    if size(connection, &run.uid, digest)?.is_none() {
        return Err(StoreError::NoBlob(digest));
    }
    let text = digest.to_string();
    let taken: Option<String> = connection
        .prepare_cached("SELECT digest FROM artifacts WHERE run = ?1 AND name = ?2")?
        .query_row(params![id, name], |row| row.get(0))
        .optional()?;
    match taken {
        Some(taken) if taken == text => return Ok(()),
        Some(_) => return Err(StoreError::NameTaken(name.to_owned())),
        None => {}
    }
    let count: i64 = connection.prepare_cached("SELECT count(*) FROM artifacts WHERE run = ?1")?.query_row([id], |row| row.get(0))?;
    quotas.name(origin, count)?;
    connection.prepare_cached("INSERT INTO artifacts (run, name, digest) VALUES (?1, ?2, ?3)")?.execute(params![id, name, text])?;
    Ok(())
}

/// Delete files of this folder that no run refers to.
fn collect(connection: &Connection, folder: &Path) -> Result<u64, StoreError> {
    let mut collected = 0;
    let mut refers = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM blob_refs WHERE digest = 'sha256:' || ?1)")?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if !refers.query_row([name.to_string_lossy()], |row| row.get::<_, bool>(0))? {
            std::fs::remove_file(entry.path())?;
            collected += 1;
        }
    }
    Ok(collected)
}
