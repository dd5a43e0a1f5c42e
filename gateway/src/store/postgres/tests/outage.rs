//! The servers go away and come back.

use std::collections::BTreeMap;
use std::time::Duration;

use agentrun_protocol::event::EventType;
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::store::{ArtifactStore, EventStore, NewRecord, Origin, PageLimit, put};

/// Servers of these tests' own are never dropped, as stores borrow them; they end with the process.
fn server() -> &'static Server {
    Box::leak(Box::new(Server::start().expect("a server")))
}

fn note(key: &str) -> NewRecord {
    NewRecord::new(key, EventType::Phase, &json!({"text": key}))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_restarts_under_load() {
    let server = server();
    let bed = Bed::on(server);
    let stores = [bed.open("gateway-0").await, bed.open("gateway-1").await];
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = (0..6)
        .map(|task| {
            let (store, stopped) = (stores[task % 2].clone(), stopped.clone());
            tokio::spawn(async move {
                let mut acknowledged = BTreeMap::new();
                let mut n = 0;
                while !*stopped.borrow() {
                    let key = format!("{task}-{n}");
                    // Whoever gets no answer asks again with the same key.
                    if let Ok(seqs) = store.append(&run("a"), 1, Origin::Gateway, vec![note(&key)]).await {
                        acknowledged.insert(key, seqs[0]);
                        n += 1;
                    }
                }
                acknowledged
            })
        })
        .collect();
    for round in 0..3 {
        let before = stores[0].state("a").await.expect("state").unwrap_or_default().last;
        let end = move || if round % 2 == 0 { server.crash() } else { server.stop() };
        tokio::task::spawn_blocking(move || end().and_then(|()| server.resume())).await.expect("joined").expect("restarted");
        let grows = async {
            while stores[1].state("a").await.ok().flatten().unwrap_or_default().last < before + 50 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), grows).await.expect("appends go on after a restart");
    }
    stop.send(true).expect("heard");
    let page = async || stores[0].read("a", 0, PageLimit { events: 1_000_000, bytes: usize::MAX }).await.expect("read");
    let mut acknowledged = BTreeMap::new();
    for writer in writers {
        acknowledged.extend(writer.await.expect("joined"));
    }
    let page = page().await;
    assert_eq!(page.records.iter().map(|record| record.seq).collect::<Vec<_>>(), (1..=page.last).collect::<Vec<_>>(), "dense");
    assert!(acknowledged.len() >= 150, "{}", acknowledged.len());
    for (key, seq) in &acknowledged {
        let record = &page.records[usize::try_from(seq - 1).expect("a number")];
        assert_eq!(record.data, json!({"text": key}).to_string(), "event {seq} was acknowledged");
    }
    let texts: std::collections::HashSet<_> = page.records.iter().map(|record| &record.data).collect();
    assert_eq!(texts.len(), page.records.len(), "no key is there twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_the_database() {
    let server = server();
    let bed = Bed::on(server);
    let url = server.url(&bed.database);
    server.stop().expect("stopped");
    let open = bed.try_open("gateway-0", &url, Clock::system());
    let mut open = std::pin::pin!(open);
    assert!(timeout(Duration::from_millis(1500), open.as_mut()).await.is_err(), "it waits");
    tokio::task::block_in_place(|| server.resume()).expect("resumed");
    let store = timeout(Duration::from_secs(30), open).await.expect("in time").expect("opened");
    assert_eq!(store.open_logs().await, Ok(vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stays_away_is_an_error_soon() {
    let server = server();
    let bed = Bed::on(server);
    let store = bed.open("gateway-0").await;
    store.append(&run("a"), 1, Origin::Gateway, vec![note("first")]).await.expect("appended");
    server.stop().expect("stopped");
    let failed = timeout(Duration::from_secs(12), store.append(&run("a"), 1, Origin::Gateway, vec![note("second")])).await;
    let failed = failed.expect("in time").expect_err("the server is away");
    assert!(failed.is_storage(), "{failed}");
    assert_eq!(crate::error::ApiError::from(failed).status, 503);
    tokio::task::block_in_place(|| server.resume()).expect("resumed");
    assert_eq!(store.append(&run("a"), 1, Origin::Gateway, vec![note("second")]).await, Ok(vec![2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_fails_uploads_and_nothing_else() {
    let objects: &'static Objects = Box::leak(Box::new(Objects::start().expect("an object store")));
    let bed = Bed::new();
    let options =
        ObjectOptions { s3_endpoint: Some(objects.endpoint()), s3_bucket: Some(objects.bucket().expect("a bucket")), ..bed.objects() };
    let bucket = Bucket::open(&options, credentials()).await.expect("the bucket");
    let (url_file, options) = (bed.url_file(&bed.server.url(&bed.database)), bed.options());
    let folder = bed.folder.path().join("gateway-0");
    let store = Postgres::open(&folder, (&url_file, &options), bucket, bed.quotas, "gateway-0", Clock::system()).await.expect("the stores");
    let kept = put(&store, &run("a"), Origin::Sandbox, b"kept".to_vec()).await.expect("stored");
    objects.stop().expect("stopped");
    let failed = put(&store, &run("a"), Origin::Sandbox, b"more".to_vec()).await.expect_err("the bucket is away");
    assert!(matches!(&failed, StoreError::Failed(text) if text.contains("cannot be reached")), "{failed}");
    assert!(store.open("a", kept).await.is_err());
    assert_eq!(store.append(&run("a"), 1, Origin::Gateway, vec![note("first")]).await, Ok(vec![1]), "events go on");
    tokio::task::block_in_place(|| objects.resume()).expect("resumed");
    put(&store, &run("a"), Origin::Sandbox, b"more".to_vec()).await.expect("stored");
    let blob = store.open("a", kept).await.expect("open").expect("there");
    assert_eq!(blob.read(kept).await, Ok(b"kept".to_vec()));
}
