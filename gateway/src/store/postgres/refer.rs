//! Lets a run refer to a blob, within its quotas. Locks are taken in one order (run, blob, namespace), so nobody waits in a ring.

use deadpool_postgres::Transaction;

use super::database::Work;
use super::failure::Failure;
use super::runs;
use crate::store::{Digest, Origin, Quotas, RunRef, StoreError};

pub(super) struct Refer {
    pub run: RunRef,
    pub origin: Origin,
    pub quotas: Quotas,
    pub digest: Digest,
    pub bytes: i64,
    /// Where the content was put; without, it must be there already.
    pub object: Option<String>,
    /// An object of this blob that is known to be gone.
    pub lost: Option<String>,
}

impl Work for Refer {
    /// Whether the run refers to the blob now; without an object it may not be there.
    type Value = bool;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<bool, Failure> {
        let run = runs::lock(transaction, &self.run).await?.id;
        let digest = self.digest.to_string();
        match &self.object {
            Some(object) => self.keep(transaction, &digest, object).await?,
            None => {
                let select = transaction.prepare_cached("SELECT 1 FROM blobs WHERE digest = $1 FOR KEY SHARE").await?;
                if transaction.query_opt(&select, &[&digest]).await?.is_none() {
                    return Ok(false);
                }
            }
        }
        let insert = transaction
            .prepare_cached("INSERT INTO blob_refs (run, digest, bytes) VALUES ($1, $2, $3) ON CONFLICT (run, digest) DO NOTHING")
            .await?;
        if transaction.execute(&insert, &[&run, &digest, &self.bytes]).await? == 1 {
            self.count(transaction, run).await?;
        }
        Ok(true)
    }
}

impl Refer {
    /// The object becomes the blob's, unless the blob has one already; then ours is loose and is collected.
    async fn keep(&self, transaction: &Transaction<'_>, digest: &str, object: &str) -> Result<(), Failure> {
        let insert = transaction
            .prepare_cached(
                "INSERT INTO blobs AS b (digest, object) VALUES ($1, $2)
                 ON CONFLICT (digest) DO UPDATE SET object = excluded.object WHERE b.object = $3",
            )
            .await?;
        if transaction.execute(&insert, &[&digest, &object, &self.lost]).await? == 1 {
            let settle = transaction.prepare_cached("DELETE FROM loose_objects WHERE object = $1 AND NOT doomed").await?;
            if transaction.execute(&settle, &[&object]).await? == 0 {
                return Err(StoreError::Failed("an upload took so long that its content was given up; try again".into()).into());
            }
        } else {
            // Nothing is loose here if this was done before and the answer was lost.
            let settle = transaction.prepare_cached("UPDATE loose_objects SET delete_after = now() WHERE object = $1").await?;
            transaction.execute(&settle, &[&object]).await?;
        }
        Ok(())
    }

    async fn count(&self, transaction: &Transaction<'_>, run: i64) -> Result<(), Failure> {
        let update = transaction
            .prepare_cached("UPDATE runs SET blobs = blobs + 1, blob_bytes = blob_bytes + $2 WHERE id = $1 RETURNING blobs, blob_bytes")
            .await?;
        let row = transaction.query_one(&update, &[&run, &self.bytes]).await?;
        // Uploads to one namespace are counted one after the other.
        let lock = transaction.prepare_cached("SELECT pg_advisory_xact_lock(hashtextextended('agentrun/' || $1, 0))").await?;
        transaction.execute(&lock, &[&self.run.namespace]).await?;
        let sum = transaction
            .prepare_cached("SELECT coalesce(sum(blob_bytes), 0)::bigint FROM runs WHERE namespace = $1 AND blob_bytes > 0")
            .await?;
        let namespace: i64 = transaction.query_one(&sum, &[&self.run.namespace]).await?.get(0);
        Ok(self.quotas.keep_blob(self.origin, row.get(0), row.get(1), namespace)?)
    }
}
