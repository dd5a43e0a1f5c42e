//! Two gateways on one database.

use std::time::Duration;

use agentrun_protocol::event::EventType;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::*;
use crate::store::{EventStore, NewRecord, Origin, PageLimit};

fn note(key: &str) -> NewRecord {
    NewRecord::new(key, EventType::Note, &json!({"text": key}))
}

async fn numbers(store: &Postgres, uid: &str) -> Vec<i64> {
    let page = store.read(uid, 0, PageLimit { events: 100_000, bytes: usize::MAX }).await.expect("read");
    page.records.iter().map(|record| record.seq).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_log_stays_dense_and_has_each_key_once() {
    let bed = Bed::new();
    let stores = [bed.open("gateway-0").await, bed.open("gateway-1").await];
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let store = stores[task % 2].clone();
            tokio::spawn(async move {
                for n in 0..25 {
                    // Both gateways also write the same keys, as they do of what they derive from status.
                    let records = vec![note(&format!("{task}-{n}")), note(&format!("shared-{n}"))];
                    store.append(&run("a"), 1, Origin::Gateway, records).await.expect("appended");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("joined");
    }
    assert_eq!(numbers(&stores[0], "a").await, (1..=8 * 25 + 25).collect::<Vec<i64>>());
    assert_eq!(numbers(&stores[1], "a").await.len(), 8 * 25 + 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_elsewhere_is_told() {
    let bed = Bed::new();
    let (here, there) = (bed.open("gateway-0").await, bed.open("gateway-1").await);
    here.append(&run("a"), 1, Origin::Gateway, vec![note("first")]).await.expect("appended");
    let mut wake = there.subscribe("a");
    let mut fastest = Duration::MAX;
    // Looking alone would need half a second on average, and never tell three times at once.
    for n in 0..20 {
        wake.borrow_and_update();
        let begun = Instant::now();
        here.append(&run("a"), 1, Origin::Gateway, vec![note(&n.to_string())]).await.expect("appended");
        timeout(Duration::from_secs(10), wake.changed()).await.expect("told in time").expect("open");
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
    assert_eq!(numbers(&there, "a").await.len(), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_finds_what_nobody_told() {
    let bed = Bed::new();
    let store = bed.open("gateway-0").await;
    store.append(&run("a"), 1, Origin::Gateway, vec![note("first")]).await.expect("appended");
    let mut wake = store.subscribe("a");
    // It may still be told of the first.
    for expected in 2..=4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        wake.borrow_and_update();
        bed.psql("UPDATE runs SET next = next + 1 WHERE uid = 'a'");
        let state = async {
            loop {
                wake.changed().await.expect("open");
                if store.state("a").await.expect("state").expect("known").last == expected {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(10), state).await.expect("found in time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_was_cut_off_listens_again() {
    let bed = Bed::new();
    let (here, there) = (bed.open("gateway-0").await, bed.open("gateway-1").await);
    let listeners = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    let listening = async |least: usize| {
        while bed.psql(&format!("SELECT count(*) {listeners}")).parse::<usize>().expect("a count") < least {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), listening(2)).await.expect("both listen");
    bed.psql(&format!("SELECT pg_terminate_backend(pid) {listeners}"));
    timeout(Duration::from_secs(20), listening(2)).await.expect("both listen again");
    let mut wake = there.subscribe("a");
    wake.borrow_and_update();
    here.append(&run("a"), 1, Origin::Gateway, vec![note("first")]).await.expect("appended");
    timeout(Duration::from_secs(10), wake.changed()).await.expect("told in time").expect("open");
}
