//! What the embedded store does when the disk or the database fails: it says so, loses nothing that it acknowledged, and
//! goes on as soon as it can.

use std::time::Duration;

use agentrun_protocol::event::EventType;
use serde_json::json;

use super::*;
use crate::store::{ArtifactStore, EventStore, NewRecord, Origin, PageLimit, RunRef, put};

fn run(uid: &str) -> RunRef {
    RunRef { uid: uid.into(), namespace: "n".into(), name: uid.into() }
}

fn record(key: &str, bytes: usize) -> NewRecord {
    NewRecord::new(key, EventType::Phase, &json!({"text": "x".repeat(bytes)}))
}

fn open(folder: &Path, limits: Limits) -> Result<Embedded, StoreError> {
    Embedded::open(folder, Quotas::default(), limits, Clock::from_fn(|| 5))
}

async fn keys(store: &Embedded, uid: &str) -> usize {
    store.read(uid, 0, PageLimit { events: 100_000, bytes: usize::MAX }).await.expect("read").records.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_refuses_and_recovers_when_there_is_room() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path(), Limits { database_max_bytes: Some(400 * 1024), ..Limits::default() }).expect("open");
    store
        .append(
            &run("old"),
            1,
            Origin::Gateway,
            vec![record("1", 60_000), record("2", 60_000), NewRecord::new("end", EventType::End, &json!({}))],
        )
        .await
        .expect("fits");
    let mut acknowledged = 0;
    let error = loop {
        match store.append(&run("a"), 1, Origin::Gateway, vec![record(&acknowledged.to_string(), 20_000)]).await {
            Ok(seqs) => {
                acknowledged += 1;
                assert_eq!(seqs, [acknowledged]);
            }
            Err(error) => break error,
        }
        assert!(acknowledged < 1000, "the limit does not hold");
    };
    assert_eq!(error, StoreError::Full);
    assert_eq!(crate::error::ApiError::from(error).status, 507);
    // Large and small at once: the small one is stored although the large one does not fit.
    let (large, small) = tokio::join!(
        store.append(&run("a"), 1, Origin::Gateway, vec![record("large", 60_000)]),
        store.append(&run("b"), 1, Origin::Gateway, vec![record("small", 10)])
    );
    assert_eq!((large, small), (Err(StoreError::Full), Ok(vec![1])));
    assert_eq!(
        keys(&store, "a").await,
        usize::try_from(acknowledged).expect("small"),
        "nothing acknowledged is lost, nothing refused is there"
    );
    EventStore::purge(&store, "old").await.expect("deleting needs no room");
    assert_eq!(
        store.append(&run("a"), 1, Origin::Gateway, vec![record("large", 60_000)]).await,
        Ok(vec![acknowledged + 1]),
        "dense all the same"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_is_busy_and_comes_back() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path(), Limits { patience: Duration::from_millis(50), ..Limits::default() }).expect("open");
    let other = Connection::open(folder.path().join("agentrun.db")).expect("open");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    assert_eq!(store.append(&run("a"), 1, Origin::Gateway, vec![record("1", 1)]).await, Err(StoreError::Busy));
    assert_eq!(keys(&store, "a").await, 0, "readers are not held up");
    other.execute_batch("ROLLBACK").expect("unlocked");
    assert_eq!(store.append(&run("a"), 1, Origin::Gateway, vec![record("1", 1)]).await, Ok(vec![1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("agentrun.db");
    let rubbish = vec![0x5a; 8192];
    std::fs::write(&path, &rubbish).expect("written");
    assert!(matches!(open(folder.path(), Limits::default()).err(), Some(StoreError::Failed(_))));
    assert_eq!(std::fs::read(&path).expect("read"), rubbish);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_while_running_is_an_error_and_not_an_end() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path(), Limits::default()).expect("open");
    let other = Connection::open(folder.path().join("agentrun.db")).expect("open");
    other.execute_batch("DROP TABLE artifacts; DROP TABLE blob_refs; DROP TABLE events;").expect("damaged");
    let error = store.append(&run("a"), 1, Origin::Gateway, vec![record("1", 1)]).await.expect_err("no table");
    assert!(matches!(error, StoreError::Failed(_)), "{error}");
    let refusal = crate::error::ApiError::from(error);
    assert_eq!(refusal.status, 503);
    assert!(!refusal.message.contains("no such table"), "the inner error is for the log only: {refusal}");
    assert!(store.open_logs().await.is_ok(), "what is sound still answers");
}

#[tokio::test]
async fn one_folder_has_one_process() {
    let folder = tempfile::tempdir().expect("folder");
    let first = open(folder.path(), Limits::default()).expect("open");
    let error = open(folder.path(), Limits::default()).err().expect("refused").to_string();
    assert!(error.contains("in use by another gateway process"), "{error}");
    drop(first);
    open(folder.path(), Limits::default()).expect("free again");
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    drop(open(folder.path(), Limits::default()).expect("open"));
    Connection::open(folder.path().join("agentrun.db")).expect("open").execute_batch("PRAGMA user_version = 3").expect("newer");
    let error = open(folder.path(), Limits::default()).err().expect("refused").to_string();
    assert!(error.contains("version 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_blob_is_not_served_as_sound() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path(), Limits::default()).expect("open");
    let digest = put(&store, &run("a"), Origin::Sandbox, b"good".to_vec()).await.expect("stored");
    let path = store.blobs.path(&digest);
    std::fs::write(&path, b"evil").expect("damaged");
    let blob = store.open("a", digest).await.expect("open").expect("there");
    assert!(matches!(blob.read(digest).await, Err(StoreError::Failed(_))));
    std::fs::remove_file(&path).expect("removed");
    assert!(matches!(store.open("a", digest).await.err(), Some(StoreError::Failed(_))));
    put(&store, &run("a"), Origin::Sandbox, b"good".to_vec()).await.expect("a repeated upload makes it good");
    assert!(store.open("a", digest).await.expect("open").expect("there").read(digest).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_crash_go() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path(), Limits::default()).expect("open");
    let kept = put(&store, &run("a"), Origin::Sandbox, b"kept".to_vec()).await.expect("stored");
    let orphan = store.blobs.path(&crate::store::Digest::of(b"never acknowledged"));
    std::fs::write(&orphan, b"never acknowledged").expect("written");
    let temporary = folder.path().join("blobs/tmp/7");
    std::fs::write(&temporary, b"half").expect("written");
    drop(store);
    let store = open(folder.path(), Limits::default()).expect("open");
    assert!(!temporary.exists());
    assert_eq!(store.collect().await, Ok(1));
    assert!(!orphan.exists());
    assert!(store.open("a", kept).await.expect("open").is_some());
}
