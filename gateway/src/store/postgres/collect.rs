//! Deletes content that nobody refers to. A blob leaves the database first, and its object the bucket afterwards; in between
//! the object is written down as loose, so that a crash only delays its end.

use deadpool_postgres::Transaction;

use super::database::{Database, Work};
use super::failure::Failure;
use crate::store::StoreError;
use crate::store::s3::Bucket;

const AT_ONCE: i64 = 100;

/// How many objects were deleted.
pub(super) async fn collect(database: &Database, bucket: &Bucket) -> Result<u64, StoreError> {
    while database.transact(&Loosen).await? > 0 {}
    let mut collected = 0;
    loop {
        let doomed = database.query(DOOM, &[&AT_ONCE]).await?;
        for row in &doomed {
            let object: String = row.get(0);
            bucket.delete(&object).await?;
            database.query("DELETE FROM loose_objects WHERE object = $1", &[&object]).await?;
            collected += 1;
        }
        if doomed.is_empty() {
            return Ok(collected);
        }
    }
}

/// From here on an upload of this object, should it still be under way, fails. What another gateway deletes at the same time
/// is deleted twice, which is harmless.
const DOOM: &str = "
UPDATE loose_objects SET doomed = true
WHERE object IN (SELECT object FROM loose_objects WHERE delete_after <= now() ORDER BY delete_after LIMIT $1)
RETURNING object";

/// Take blobs without references out of the database.
struct Loosen;

impl Work for Loosen {
    type Value = usize;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<usize, Failure> {
        // Once these are locked nobody can come to refer to them; whoever did before shows in the next statement.
        let lock = transaction
            .prepare_cached(
                "SELECT digest FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM blob_refs f WHERE f.digest = b.digest)
                 LIMIT $1 FOR UPDATE SKIP LOCKED",
            )
            .await?;
        let locked = transaction.query(&lock, &[&AT_ONCE]).await?;
        let digests: Vec<String> = locked.iter().map(|row| row.get(0)).collect();
        let delete = transaction
            .prepare_cached(
                "WITH gone AS (
                     DELETE FROM blobs b WHERE digest = ANY($1) AND NOT EXISTS (SELECT 1 FROM blob_refs f WHERE f.digest = b.digest)
                     RETURNING object
                 )
                 INSERT INTO loose_objects (object, delete_after) SELECT object, now() FROM gone
                 ON CONFLICT (object) DO UPDATE SET delete_after = now()",
            )
            .await?;
        transaction.execute(&delete, &[&digests]).await?;
        Ok(digests.len())
    }
}
