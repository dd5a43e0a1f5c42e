//! Content between database and bucket.

use std::path::Path;

use bytes::Bytes;

use super::*;
use crate::store::{ArtifactStore, Digest, Origin, put};

fn files(bed: &Bed) -> Vec<PathBuf> {
    Objects::shared().files(&bed.bucket).expect("the bucket's files")
}

async fn content(store: &Postgres, uid: &str, digest: Digest) -> Option<Vec<u8>> {
    match store.open(uid, digest).await.expect("open") {
        Some(blob) => Some(blob.read(digest).await.expect("sound")),
        None => None,
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("a folder").next().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_gateway_stores_another_reads_and_no_temporary_file_stays() {
    let bed = Bed::new();
    let (here, there) = (bed.open("gateway-0").await, bed.open("gateway-1").await);
    let large: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let digest = put(&*here, &run("a"), Origin::Gateway, large.clone()).await.expect("stored");
    assert_eq!(content(&there, "a", digest).await, Some(large));
    assert_eq!(files(&bed).len(), 1);
    assert!(files(&bed)[0].to_string_lossy().contains("/runs/"), "below the prefix");
    assert!(is_empty(&bed.folder.path().join("gateway-0/spool")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_content_at_once_is_one_object_in_the_end() {
    let bed = Bed::new();
    let stores = [bed.open("gateway-0").await, bed.open("gateway-1").await];
    let uploads = (0..12).map(|n| {
        let store = stores[n % 2].clone();
        tokio::spawn(async move { put(&*store, &run(&n.to_string()), Origin::Sandbox, b"the same".to_vec()).await })
    });
    for upload in uploads.collect::<Vec<_>>() {
        upload.await.expect("joined").expect("stored");
    }
    stores[0].collect().await.expect("collected");
    assert_eq!(files(&bed).len(), 1);
    for n in 0..12 {
        assert_eq!(content(&stores[1], &n.to_string(), Digest::of(b"the same")).await.as_deref(), Some(&b"the same"[..]));
    }
    assert_eq!(bed.psql("SELECT count(*) FROM loose_objects"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn collecting_beside_uploads_takes_nothing_that_is_referred_to() {
    let bed = Bed::new();
    let stores = [bed.open("gateway-0").await, bed.open("gateway-1").await];
    let collecting = {
        let store = stores[1].clone();
        tokio::spawn(async move {
            loop {
                store.collect().await.expect("collected");
            }
        })
    };
    // Two runs in turn store and drop the same content, so that it is always about to be collected.
    for round in 0..30 {
        let uid = format!("run-{}", round % 2);
        let digest = put(&*stores[0], &run(&uid), Origin::Sandbox, b"contended".to_vec()).await.expect("stored");
        assert_eq!(content(&stores[1], &uid, digest).await.as_deref(), Some(&b"contended"[..]), "round {round}");
        stores[0].purge(&uid).await.expect("purged");
    }
    collecting.abort();
    let _ = collecting.await;
    stores[0].collect().await.expect("collected");
    assert_eq!(files(&bed), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_is_collected_when_its_time_has_come() {
    let bed = Bed::new();
    let store = bed.open("gateway-0").await;
    let kept = put(&*store, &run("a"), Origin::Sandbox, b"kept".to_vec()).await.expect("stored");
    // As a gateway leaves it that dies after the object and before its blob.
    let path = bed.folder.path().join("half");
    std::fs::write(&path, b"half").expect("written");
    bed.bucket().await.put("left/over", &path, 4).await.expect("put");
    bed.psql("INSERT INTO loose_objects VALUES ('left/over', now() + interval '1 hour')");
    assert_eq!(store.collect().await, Ok(0), "it may be under way");
    assert_eq!(files(&bed).len(), 2);
    bed.psql("UPDATE loose_objects SET delete_after = now()");
    assert_eq!(store.collect().await, Ok(1));
    assert_eq!(files(&bed).len(), 1);
    assert_eq!(content(&store, "a", kept).await.as_deref(), Some(&b"kept"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_was_given_up_does_not_become_a_blob() {
    let bed = Bed::new();
    let store = bed.open("gateway-0").await;
    bed.psql("INSERT INTO loose_objects VALUES ('slow', now(), true)");
    let refer = refer::Refer {
        run: run("a"),
        origin: Origin::Gateway,
        quotas: bed.quotas,
        digest: Digest::of(b"slow"),
        bytes: 4,
        object: Some("slow".into()),
        lost: None,
    };
    let refused = store.database.transact(&refer).await;
    assert!(matches!(&refused, Err(StoreError::Failed(text)) if text.contains("given up")), "{refused:?}");
    assert_eq!(bed.psql("SELECT count(*) FROM blobs"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_hold_over_all_gateways() {
    let bed = Bed { quotas: Quotas { namespace_blob_bytes: 50, run_blob_bytes: 30, ..Quotas::default() }, ..Bed::new() };
    let stores = [bed.open("gateway-0").await, bed.open("gateway-1").await];
    let uploads: Vec<_> = (0..24u8)
        .map(|n| {
            let store = stores[usize::from(n % 2)].clone();
            tokio::spawn(async move { put(&*store, &run(&(n % 4).to_string()), Origin::Sandbox, vec![n; 10]).await.is_ok() })
        })
        .collect();
    let mut stored = 0;
    for upload in uploads {
        stored += i64::from(upload.await.expect("joined"));
    }
    assert_eq!(stored, 5, "fifty bytes in all");
    assert_eq!(bed.psql("SELECT sum(blob_bytes), max(blob_bytes) <= 30 FROM runs"), "50|t");
    stores[0].collect().await.expect("collected");
    assert_eq!(files(&bed).len(), 5, "what was refused is not kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_object_is_told_and_a_repeated_upload_makes_it_good() {
    let bed = Bed::new();
    let store = bed.open("gateway-0").await;
    let digest = put(&*store, &run("a"), Origin::Sandbox, b"good".to_vec()).await.expect("stored");
    std::fs::write(&files(&bed)[0], b"evil").expect("damaged");
    let blob = store.open("a", digest).await.expect("open").expect("there");
    assert!(matches!(blob.read(digest).await, Err(StoreError::Failed(_))), "damaged");
    std::fs::remove_file(&files(&bed)[0]).expect("removed");
    assert!(matches!(store.open("a", digest).await.err(), Some(StoreError::Failed(_))));
    put(&*store, &run("a"), Origin::Sandbox, b"good".to_vec()).await.expect("stored again");
    assert_eq!(content(&store, "a", digest).await.as_deref(), Some(&b"good"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_dropped_leaves_nothing() {
    let bed = Bed::new();
    let store = bed.open("gateway-0").await;
    let mut upload = store.begin(&run("a"), Origin::Sandbox, Digest::of(b"whole"), 100).await.expect("begun");
    upload.write(Bytes::from_static(b"who")).await.expect("written");
    drop(upload);
    assert!(is_empty(&bed.folder.path().join("gateway-0/spool")));
    assert_eq!((files(&bed).len(), bed.psql("SELECT count(*) FROM loose_objects").as_str()), (0, "0"));
}
