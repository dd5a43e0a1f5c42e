//! Promises of an artifact store.

use bytes::Bytes;

use super::{Subject, run};
use crate::store::{ArtifactStore, Digest, Origin, Quotas, StoreError, Totals, put};

async fn upload(store: &dyn ArtifactStore, uid: &str, content: &[u8]) -> Result<Digest, StoreError> {
    put(store, &run(uid), Origin::Sandbox, content.to_vec()).await
}

async fn content(store: &dyn ArtifactStore, uid: &str, digest: Digest) -> Option<Vec<u8>> {
    match store.open(uid, digest).await.expect("open") {
        Some(blob) => Some(blob.read(digest).await.expect("sound")),
        None => None,
    }
}

pub async fn a_blob_comes_back_and_only_to_its_run(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas::default());
    let store = &*subject.artifacts;
    let large: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    for bytes in [&b""[..], b"\0\xff", &large] {
        let digest = upload(store, "a", bytes).await.expect("stored");
        assert_eq!(content(store, "a", digest).await.as_deref(), Some(bytes));
        assert_eq!(store.size("a", digest).await, Ok(Some(bytes.len() as i64)));
        assert_eq!(content(store, "b", digest).await, None, "to know a digest is not to have a blob");
        assert_eq!(store.size("b", digest).await, Ok(None));
    }
    assert_eq!(store.totals("a").await, Ok(Totals { blobs: 3, bytes: 2 + 1_200_000 }));
    assert_eq!(store.totals("b").await, Ok(Totals::default()));
}

pub async fn a_wrong_digest_keeps_nothing(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas::default());
    let store = &*subject.artifacts;
    let (expected, actual) = (Digest::of(b"promised"), Digest::of(b"sent"));
    let mut sent = store.begin(&run("a"), Origin::Sandbox, expected, 100).await.expect("begun");
    sent.write(Bytes::from_static(b"se")).await.expect("written");
    sent.write(Bytes::from_static(b"nt")).await.expect("written");
    assert_eq!(sent.finish().await, Err(StoreError::DigestMismatch { expected, actual }));
    let mut cut = store.begin(&run("a"), Origin::Sandbox, expected, 100).await.expect("begun");
    cut.write(Bytes::from_static(b"prom")).await.expect("written");
    drop(cut);
    for digest in [expected, actual] {
        assert_eq!(content(store, "a", digest).await, None);
    }
    assert_eq!(store.totals("a").await, Ok(Totals::default()));
}

pub async fn a_large_blob_keeps_nothing(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas::default());
    let store = &*subject.artifacts;
    let mut sent = store.begin(&run("a"), Origin::Sandbox, Digest::of(b"12345"), 4).await.expect("begun");
    sent.write(Bytes::from_static(b"1234")).await.expect("fits");
    assert_eq!(sent.write(Bytes::from_static(b"5")).await, Err(StoreError::BlobTooLarge { most: 4 }));
    drop(sent);
    assert_eq!(store.totals("a").await, Ok(Totals::default()));
}

pub async fn repeating_an_upload_is_harmless(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas { run_blobs: 1, ..Quotas::default() });
    let store = &*subject.artifacts;
    for _ in 0..3 {
        upload(store, "a", b"x").await.expect("stored");
    }
    let (one, two) = tokio::join!(upload(store, "a", b"x"), upload(store, "a", b"x"));
    assert_eq!(one, two);
    assert_eq!(store.totals("a").await, Ok(Totals { blobs: 1, bytes: 1 }));
    assert!(matches!(upload(store, "a", b"y").await, Err(StoreError::Quota { most: 1, .. })), "a second blob");
}

pub async fn quotas_hold_for_parallel_uploads(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas { run_blob_bytes: 10_000, ..Quotas::default() });
    let store = &subject.artifacts;
    let tasks: Vec<_> = (0..32u8)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { upload(&*store, "a", &[n; 1000]).await.is_ok() })
        })
        .collect();
    let mut stored = 0;
    for task in tasks {
        stored += i64::from(task.await.expect("joined"));
    }
    assert_eq!(stored, 10);
    assert_eq!(store.totals("a").await, Ok(Totals { blobs: 10, bytes: 10_000 }));
    assert!(put(&**store, &run("a"), Origin::Gateway, b"the patch".to_vec()).await.is_ok(), "what the gateway makes still fits");
    assert!(upload(&**store, "b", b"x").await.is_ok(), "another run is not bound by it");
}

pub async fn a_namespace_has_a_quota(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas { namespace_blob_bytes: 15, ..Quotas::default() });
    let store = &*subject.artifacts;
    upload(store, "a", b"0123456789").await.expect("fits");
    assert!(matches!(upload(store, "b", b"0123456789").await, Err(StoreError::Quota { most: 15, .. })), "shared bytes count for each run");
    let elsewhere = crate::store::RunRef { namespace: "other".into(), ..run("c") };
    assert!(put(store, &elsewhere, Origin::Sandbox, b"0123456789".to_vec()).await.is_ok());
    store.purge("a").await.expect("purged");
    upload(store, "b", b"0123456789").await.expect("there is room again");
}

pub async fn names_stand_for_one_blob(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas { run_artifacts: 2, ..Quotas::default() });
    let store = &*subject.artifacts;
    let (x, y) = (upload(store, "a", b"x").await.expect("x"), upload(store, "a", b"yy").await.expect("y"));
    let foreign = upload(store, "b", b"z").await.expect("z");
    let name = |name, digest| store.name(&run("a"), Origin::Sandbox, name, digest);
    assert_eq!(name("b.log", x).await, Ok(()));
    assert_eq!(name("b.log", x).await, Ok(()), "repeating is harmless");
    assert_eq!(name("b.log", y).await, Err(StoreError::NameTaken("b.log".into())));
    assert_eq!(name("c.log", foreign).await, Err(StoreError::NoBlob(foreign)), "a blob of another run");
    assert_eq!(name("a.log", y).await, Ok(()));
    assert!(matches!(name("third", y).await, Err(StoreError::Quota { most: 2, .. })));
    assert_eq!(store.name(&run("a"), Origin::Gateway, "changes.patch", y).await, Ok(()), "the gateway's name still fits");
    let list: Vec<_> = store.list("a").await.expect("list").into_iter().map(|a| (a.name, a.digest, a.bytes)).collect();
    assert_eq!(list, [("a.log".into(), y, 2), ("b.log".into(), x, 1), ("changes.patch".into(), y, 2)]);
    assert_eq!(store.list("b").await, Ok(vec![]));
}

pub async fn purged_blobs_go_unless_others_refer_to_them(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas::default());
    let store = &*subject.artifacts;
    let shared = upload(store, "a", b"shared").await.expect("stored");
    upload(store, "b", b"shared").await.expect("stored");
    let alone = upload(store, "a", b"alone").await.expect("stored");
    store.name(&run("a"), Origin::Sandbox, "n", alone).await.expect("named");
    for _ in 0..2 {
        store.purge("a").await.expect("purged");
    }
    assert_eq!(store.collect().await, Ok(1));
    assert_eq!(store.collect().await, Ok(0));
    assert_eq!(content(store, "a", shared).await, None);
    assert_eq!(store.list("a").await, Ok(vec![]));
    assert_eq!(content(store, "b", shared).await.as_deref(), Some(&b"shared"[..]));
    assert_eq!(upload(store, "a", b"alone").await, Ok(alone), "it can come again");
    assert_eq!(content(store, "a", alone).await.as_deref(), Some(&b"alone"[..]));
}
