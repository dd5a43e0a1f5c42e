//! The artifact store: references and names in PostgreSQL, content in the bucket.

use deadpool_postgres::Transaction;

use super::Postgres;
use super::database::Work;
use super::failure::Failure;
use super::runs;
use super::upload::ObjectUpload;
use crate::store::spool::Spool;
use crate::store::{Answer, Artifact, ArtifactStore, Blob, Digest, Origin, Quotas, RunRef, StoreError, Totals, Upload};

impl ArtifactStore for Postgres {
    fn begin(&self, run: &RunRef, origin: Origin, expected: Digest, most: i64) -> Answer<'_, Box<dyn Upload>> {
        let run = run.clone();
        Box::pin(async move {
            self.quotas.begin_blob(origin, self.totals(&run.uid).await?.bytes)?;
            let spool = Spool::create(self.temporary(), expected, most).await?;
            let (database, bucket, quotas) = (self.database.clone(), self.bucket.clone(), self.quotas);
            Ok(Box::new(ObjectUpload { spool, run, origin, quotas, database, bucket }) as Box<dyn Upload>)
        })
    }

    fn name(&self, run: &RunRef, origin: Origin, name: &str, digest: Digest) -> Answer<'_, ()> {
        let naming = Naming { run: run.clone(), origin, name: name.to_owned(), digest, quotas: self.quotas };
        Box::pin(async move { self.database.transact(&naming).await })
    }

    fn list(&self, run_uid: &str) -> Answer<'_, Vec<Artifact>> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let rows = self
                .database
                .query(
                    "SELECT a.name, a.digest, b.bytes FROM runs r JOIN artifacts a ON a.run = r.id
                     JOIN blob_refs b ON b.run = r.id AND b.digest = a.digest WHERE r.uid = $1 ORDER BY a.name COLLATE \"C\"",
                    &[&uid],
                )
                .await?;
            let artifact = |row: &tokio_postgres::Row| {
                let digest = Digest::parse(row.get(1)).map_err(|error| StoreError::Failed(format!("a stored digest {error}")))?;
                Ok(Artifact { name: row.get(0), digest, bytes: row.get(2) })
            };
            rows.iter().map(artifact).collect()
        })
    }

    fn size(&self, run_uid: &str, digest: Digest) -> Answer<'_, Option<i64>> {
        let uid = run_uid.to_owned();
        Box::pin(async move { Ok(self.find(&uid, digest).await?.map(|(bytes, _)| bytes)) })
    }

    fn open(&self, run_uid: &str, digest: Digest) -> Answer<'_, Option<Blob>> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let Some((bytes, object)) = self.find(&uid, digest).await? else { return Ok(None) };
            let content = self.bucket.get(&object).await?;
            let content = content.ok_or_else(|| StoreError::Failed(format!("the object {object} of blob {digest} is gone")))?;
            Ok(Some(Blob { bytes, content }))
        })
    }

    fn totals(&self, run_uid: &str) -> Answer<'_, Totals> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let row = self.database.query_opt("SELECT blobs, blob_bytes FROM runs WHERE uid = $1", &[&uid]).await?;
            Ok(row.map(|row| Totals { blobs: row.get(0), bytes: row.get(1) }).unwrap_or_default())
        })
    }

    fn purge(&self, run_uid: &str) -> Answer<'_, ()> {
        let purge = PurgeBlobs { uid: run_uid.to_owned() };
        Box::pin(async move { self.database.transact(&purge).await })
    }

    fn collect(&self) -> Answer<'_, u64> {
        Box::pin(super::collect::collect(&self.database, &self.bucket))
    }
}

impl Postgres {
    /// Size of a blob that the run refers to, and its object.
    async fn find(&self, uid: &str, digest: Digest) -> Result<Option<(i64, String)>, StoreError> {
        let sql = "SELECT f.bytes, b.object FROM runs r JOIN blob_refs f ON f.run = r.id JOIN blobs b ON b.digest = f.digest
                   WHERE r.uid = $1 AND f.digest = $2";
        let row = self.database.query_opt(sql, &[&uid, &digest.to_string()]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }
}

struct Naming {
    run: RunRef,
    origin: Origin,
    name: String,
    digest: Digest,
    quotas: Quotas,
}

impl Work for Naming {
    type Value = ();

    async fn run(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let run = runs::lock(transaction, &self.run).await?.id;
        let digest = self.digest.to_string();
        let select = transaction
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM blob_refs WHERE run = $1 AND digest = $2),
                 (SELECT digest FROM artifacts WHERE run = $1 AND name = $3), (SELECT count(*) FROM artifacts WHERE run = $1)",
            )
            .await?;
        let row = transaction.query_one(&select, &[&run, &digest, &self.name]).await?;
        if !row.get::<_, bool>(0) {
            return Err(StoreError::NoBlob(self.digest).into());
        }
        match row.get::<_, Option<String>>(1) {
            Some(taken) if taken == digest => return Ok(()),
            Some(_) => return Err(StoreError::NameTaken(self.name.clone()).into()),
            None => {}
        }
        self.quotas.name(self.origin, row.get(2))?;
        let insert = transaction.prepare_cached("INSERT INTO artifacts (run, name, digest) VALUES ($1, $2, $3)").await?;
        transaction.execute(&insert, &[&run, &self.name, &digest]).await?;
        Ok(())
    }
}

struct PurgeBlobs {
    uid: String,
}

impl Work for PurgeBlobs {
    type Value = ();

    async fn run(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let update = transaction.prepare_cached("UPDATE runs SET blobs = 0, blob_bytes = 0 WHERE uid = $1 RETURNING id").await?;
        let Some(row) = transaction.query_opt(&update, &[&self.uid]).await? else { return Ok(()) };
        let run: i64 = row.get(0);
        for sql in ["DELETE FROM artifacts WHERE run = $1", "DELETE FROM blob_refs WHERE run = $1"] {
            let delete = transaction.prepare_cached(sql).await?;
            transaction.execute(&delete, &[&run]).await?;
        }
        Ok(())
    }
}
