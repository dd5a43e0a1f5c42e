//! One upload. The object's name is written down as loose before the object is, under a name that is never used again: so a
//! crash leaves nothing unknown in the bucket, and deleting what is loose can never hit a blob.

use bytes::Bytes;
use futures::future::BoxFuture;

use super::database::Database;
use super::refer::Refer;
use crate::store::s3::Bucket;
use crate::store::spool::{Spool, Spooled};
use crate::store::{Digest, Origin, Quotas, RunRef, StoreError, Upload};

/// An object that has not become a blob's after so many hours never does. Much longer than an upload may take.
const GIVEN_UP_AFTER: &str = "1 hour";

pub(super) struct ObjectUpload {
    pub spool: Spool,
    pub run: RunRef,
    pub origin: Origin,
    pub quotas: Quotas,
    pub database: Database,
    pub bucket: Bucket,
}

impl Upload for ObjectUpload {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.spool.write(bytes))
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<i64, StoreError>> {
        Box::pin(async move {
            let ObjectUpload { spool, run, origin, quotas, database, bucket } = *self;
            let spooled = spool.verify().await?;
            let (digest, bytes) = (spooled.digest, spooled.bytes);
            let mut refer = Refer { run, origin, quotas, digest, bytes, object: None, lost: None };
            refer.lost = lost_object(&database, &bucket, digest).await?;
            if refer.lost.is_some() || !database.transact(&refer).await? {
                let object = put(&database, &bucket, &spooled).await?;
                refer.object = Some(object.clone());
                if let Err(error) = database.transact(&refer).await {
                    give_up(&database, &object).await;
                    return Err(error);
                }
            }
            Ok(bytes)
        })
    }
}

/// The blob's object, if the bucket has it no more: then this upload makes it good.
async fn lost_object(database: &Database, bucket: &Bucket, digest: Digest) -> Result<Option<String>, StoreError> {
    let row = database.query_opt("SELECT object FROM blobs WHERE digest = $1", &[&digest.to_string()]).await?;
    let Some(object) = row.map(|row| row.get::<_, String>(0)) else { return Ok(None) };
    if bucket.has(&object).await? {
        return Ok(None);
    }
    tracing::warn!(object, %digest, "an object is gone from the bucket; it is uploaded again");
    Ok(Some(object))
}

async fn put(database: &Database, bucket: &Bucket, spooled: &Spooled) -> Result<String, StoreError> {
    let object = format!("{}/{}", spooled.digest.hex(), uuid::Uuid::new_v4());
    let sql = "INSERT INTO loose_objects (object, delete_after) VALUES ($1, now() + $2::text::interval) ON CONFLICT (object) DO NOTHING";
    database.query(sql, &[&object, &GIVEN_UP_AFTER]).await?;
    bucket.put(&object, spooled.path(), spooled.bytes).await?;
    Ok(object)
}

/// What is not done here, the deadline does. An object whose commit's answer was lost is not loose and stays.
async fn give_up(database: &Database, object: &str) {
    let _ = database.query("UPDATE loose_objects SET delete_after = now() WHERE object = $1", &[&object]).await;
}
