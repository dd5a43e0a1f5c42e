//! The artifact store: content-addressed blobs that runs refer to. A run sees the blobs it refers to and no others, even if
//! it knows their digests. Nothing is ever unpacked or looked into.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use super::{Answer, Digest, Origin, RunRef, StoreError};

/// Blobs and names. Implementations promise: what `finish` has answered survives a crash; a failed upload leaves nothing
/// behind; quotas hold also for uploads at the same time.
pub trait ArtifactStore: Send + Sync + 'static {
    /// Start an upload of exactly the content with this digest. Quotas bind the sandbox only; what the gateway stores is
    /// bounded by who makes it. `most` is the largest content taken, in bytes.
    fn begin(&self, run: &RunRef, origin: Origin, expected: Digest, most: i64) -> Answer<'_, Box<dyn Upload>>;

    /// Name a blob that the run refers to. Repeating is harmless; a name never changes its blob (`NameTaken`).
    fn name(&self, run: &RunRef, origin: Origin, name: &str, digest: Digest) -> Answer<'_, ()>;

    /// The run's named blobs, by name.
    fn list(&self, run_uid: &str) -> Answer<'_, Vec<Artifact>>;

    /// Bytes of a blob that the run refers to; `None` if it does not.
    fn size(&self, run_uid: &str, digest: Digest) -> Answer<'_, Option<i64>>;

    /// Content of a blob that the run refers to; `None` if it does not.
    fn open(&self, run_uid: &str, digest: Digest) -> Answer<'_, Option<Blob>>;

    /// What the run has stored.
    fn totals(&self, run_uid: &str) -> Answer<'_, Totals>;

    /// Drop the run's references and names. Repeating is harmless.
    fn purge(&self, run_uid: &str) -> Answer<'_, ()>;

    /// Delete blobs that no run refers to; how many.
    fn collect(&self) -> Answer<'_, u64>;
}

/// An upload in progress. Dropping it discards what was written.
pub trait Upload: Send {
    /// Add bytes. After an error the upload must be dropped.
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), StoreError>>;
    /// Verify the digest, make it durable, let the run refer to it; how many bytes it has.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<i64, StoreError>>;
}

/// A named blob.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Artifact {
    pub name: String,
    #[serde(serialize_with = "as_text")]
    pub digest: Digest,
    pub bytes: i64,
}

fn as_text<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

/// What a run has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub blobs: i64,
    pub bytes: i64,
}

/// Content of a blob, in pieces.
pub type BlobStream = BoxStream<'static, Result<Bytes, StoreError>>;

/// A blob to be read.
pub struct Blob {
    pub bytes: i64,
    pub content: BlobStream,
}

impl Blob {
    /// All of it, verified against its digest: storage can rot.
    pub async fn read(mut self, digest: Digest) -> Result<Vec<u8>, StoreError> {
        let mut content = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or_default());
        while let Some(piece) = self.content.next().await {
            content.extend_from_slice(&piece?);
        }
        let actual = Digest::of(&content);
        if actual != digest {
            return Err(StoreError::Failed(format!("blob {digest} is damaged: its content has digest {actual}")));
        }
        Ok(content)
    }
}

/// Store content that is in memory.
pub async fn put(store: &dyn ArtifactStore, run: &RunRef, origin: Origin, content: Vec<u8>) -> Result<Digest, StoreError> {
    let digest = Digest::of(&content);
    let most = i64::try_from(content.len()).unwrap_or(i64::MAX);
    let mut upload = store.begin(run, origin, digest, most).await?;
    upload.write(Bytes::from(content)).await?;
    upload.finish().await?;
    Ok(digest)
}
