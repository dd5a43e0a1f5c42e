//! Promises of an event store.

use std::collections::HashSet;
use std::time::Duration;

use agentrun_protocol::event::EventType;
use serde_json::json;

use super::{Subject, run};
use crate::store::{EventStore, NewRecord, Origin, PageLimit, Quotas, Record, StoreError};

fn note(key: &str, text: &str) -> NewRecord {
    NewRecord::new(key, EventType::Note, &json!({ "text": text }))
}

fn of(kind: EventType, key: &str) -> NewRecord {
    NewRecord::new(key, kind, &json!({ "key": key }))
}

async fn append(store: &dyn EventStore, uid: &str, records: Vec<NewRecord>) -> Result<Vec<i64>, StoreError> {
    store.append(&run(uid), 1, Origin::Sandbox, records).await
}

async fn own(store: &dyn EventStore, uid: &str, records: Vec<NewRecord>) -> Result<Vec<i64>, StoreError> {
    store.append(&run(uid), 1, Origin::Gateway, records).await
}

async fn all(store: &dyn EventStore, uid: &str) -> Vec<Record> {
    store.read(uid, 0, PageLimit { events: 1_000_000, bytes: usize::MAX }).await.expect("read").records
}

async fn numbers(store: &dyn EventStore, uid: &str) -> Vec<i64> {
    all(store, uid).await.iter().map(|record| record.seq).collect()
}

pub async fn numbers_are_dense_and_runs_apart(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    assert_eq!(append(&*store, "a", vec![note("1", "x"), note("2", "y")]).await, Ok(vec![1, 2]));
    assert_eq!(append(&*store, "b", vec![note("1", "x")]).await, Ok(vec![1]));
    assert_eq!(append(&*store, "a", vec![note("3", "z")]).await, Ok(vec![3]));
    let records = all(&*store, "a").await;
    assert_eq!(
        records.iter().map(|r| (r.seq, r.kind, r.data.as_str(), r.time)).next_back(),
        Some((3, EventType::Note, r#"{"text":"z"}"#, 1_000))
    );
    assert_eq!(store.read("nobody", 0, PageLimit::STREAM).await.map(|page| (page.last, page.closed, page.records)), Ok((0, false, vec![])));
    assert_eq!(store.state("nobody").await, Ok(None));
}

pub async fn a_key_is_stored_once(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    append(&*store, "a", vec![note("k", "x")]).await.expect("first");
    assert_eq!(append(&*store, "a", vec![note("k", "x")]).await, Ok(vec![1]), "the same body");
    let conflict = Err(StoreError::KeyConflict { key: "k".into() });
    assert_eq!(append(&*store, "a", vec![note("k", "other")]).await, conflict, "another body");
    assert_eq!(append(&*store, "a", vec![NewRecord::new("k", EventType::Message, &json!({"text": "x"}))]).await, conflict, "another type");
    assert_eq!(append(&*store, "a", vec![note("k", "x"), note("l", "y"), note("l", "y")]).await, Ok(vec![1, 2, 2]), "twice in a batch");
    assert_eq!(store.append(&run("a"), 2, Origin::Sandbox, vec![note("k", "other")]).await, Ok(vec![3]), "another attempt");
    assert_eq!(numbers(&*store, "a").await, [1, 2, 3]);
}

pub async fn a_batch_is_whole_or_not_at_all(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    append(&*store, "a", vec![note("k", "x")]).await.expect("first");
    assert!(append(&*store, "a", vec![note("new", "1"), note("k", "other"), note("new2", "2")]).await.is_err());
    assert!(append(&*store, "a", vec![note("m", "1"), note("m", "2")]).await.is_err(), "a conflict within the batch");
    assert_eq!(append(&*store, "a", vec![note("new", "3")]).await, Ok(vec![2]), "the refused batch took no number and no key");
}

pub async fn the_two_origins_have_keys_of_their_own(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    append(&*store, "a", vec![note("end", "squatting"), note("phase/1/Running", "squatting")]).await.expect("the sandbox's keys");
    assert_eq!(own(&*store, "a", vec![of(EventType::Phase, "phase/1/Running"), of(EventType::End, "end")]).await, Ok(vec![3, 4]));
}

pub async fn numbers_stay_dense_under_concurrency(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut seqs = Vec::new();
                for n in 0..25 {
                    let uid = ["a", "b"][n % 2];
                    let got = append(&*store, uid, vec![note(&format!("{task}-{n}"), "x"), note(&format!("{task}-{n}-2"), "y")])
                        .await
                        .expect("appended");
                    assert_eq!(got[0] + 1, got[1], "a batch is contiguous");
                    seqs.extend(got.into_iter().map(|seq| (uid, seq)));
                }
                seqs
            })
        })
        .collect();
    let mut seen = HashSet::new();
    for task in tasks {
        for pair in task.await.expect("joined") {
            assert!(seen.insert(pair), "{pair:?} was given twice");
        }
    }
    assert_eq!(numbers(&*store, "a").await, (1..=16 * 13 * 2).collect::<Vec<i64>>());
    assert_eq!(numbers(&*store, "b").await, (1..=16 * 12 * 2).collect::<Vec<i64>>());
}

pub async fn nothing_follows_the_end(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    append(&*store, "a", vec![note("k", "x")]).await.expect("first");
    assert_eq!(own(&*store, "a", vec![of(EventType::End, "end"), of(EventType::Phase, "after")]).await, Err(StoreError::Closed));
    assert_eq!(own(&*store, "a", vec![of(EventType::End, "end")]).await, Ok(vec![2]));
    assert_eq!(append(&*store, "a", vec![note("l", "y")]).await, Err(StoreError::Closed));
    assert_eq!(append(&*store, "a", vec![note("k", "x"), note("l", "y")]).await, Err(StoreError::Closed));
    assert_eq!(append(&*store, "a", vec![note("k", "x")]).await, Ok(vec![1]), "a repeat after the close gets its number");
    assert_eq!(own(&*store, "a", vec![of(EventType::End, "end")]).await, Ok(vec![2]));
    let state = store.state("a").await.expect("state").expect("known");
    assert_eq!((state.last, state.closed), (2, true));
    assert_eq!(store.open_logs().await, Ok(vec![]));
}

pub async fn output_goes_first_when_the_quota_is_met(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas { sandbox_events: 12, ..Quotas::default() }).events;
    let output = |n: usize| of(EventType::Output, &format!("o{n}"));
    let batch: Vec<_> = (0..12).map(output).collect();
    // Nine fit; one `truncated` event stands for the rest.
    assert_eq!(append(&*store, "a", batch.clone()).await, Ok(vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]));
    assert_eq!(append(&*store, "a", batch).await, Ok(vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]), "repeating changes nothing");
    assert_eq!(append(&*store, "a", vec![output(99)]).await, Ok(vec![0]));
    let steps: Vec<_> = (0..5).map(|n| of(EventType::Step, &format!("s{n}"))).collect();
    assert_eq!(append(&*store, "a", steps).await, Ok(vec![11, 12, 13, 0, 0]), "steps go on for a while");
    assert_eq!(append(&*store, "a", vec![of(EventType::Note, "n")]).await, Ok(vec![0]));
    let truncated: Vec<_> =
        all(&*store, "a").await.into_iter().filter(|r| r.kind == EventType::Truncated).map(|r| (r.seq, r.data)).collect();
    let expected = [(10, json!({"type": "output", "dropped": 3}).to_string()), (14, json!({"type": "sandbox", "dropped": 2}).to_string())];
    assert_eq!(truncated, expected);
    assert_eq!(
        own(&*store, "a", vec![of(EventType::ModelCall, "m"), of(EventType::End, "end")]).await,
        Ok(vec![15, 16]),
        "our own are untouched"
    );
    assert_eq!(append(&*store, "b", vec![output(1)]).await, Ok(vec![1]), "and so are other runs");
    let bytes = make(Quotas { sandbox_bytes: 100, ..Quotas::default() }).events;
    assert_eq!(append(&*bytes, "a", vec![note("1", &"x".repeat(50)), note("2", &"x".repeat(50)), note("3", "")]).await, Ok(vec![1, 0, 0]));
}

pub async fn the_gateways_quota_spares_what_is_essential(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas { gateway_events: 2, ..Quotas::default() }).events;
    let calls = (0..4).map(|n| of(EventType::ModelCall, &format!("m{n}"))).collect();
    assert_eq!(own(&*store, "a", calls).await, Ok(vec![1, 2, 0, 0]));
    assert_eq!(
        own(
            &*store,
            "a",
            [EventType::Phase, EventType::Approval, EventType::Result, EventType::End].map(|kind| of(kind, &format!("{kind:?}"))).into()
        )
        .await,
        Ok(vec![4, 5, 6, 7])
    );
}

pub async fn pages_are_bounded_and_complete(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    let batch: Vec<_> = (0..50).map(|n| note(&n.to_string(), &"x".repeat(100))).collect();
    append(&*store, "a", batch).await.expect("appended");
    for limit in [PageLimit { events: 7, bytes: usize::MAX }, PageLimit { events: 1000, bytes: 250 }, PageLimit { events: 0, bytes: 0 }] {
        let (mut after, mut seen) = (0, Vec::new());
        while after < 50 {
            let page = store.read("a", after, limit).await.expect("page");
            assert!(page.records.len() <= limit.events.max(1) && !page.records.is_empty());
            assert_eq!((page.last, page.closed, page.gap), (50, false, None));
            seen.extend(page.records.iter().map(|record| record.seq));
            after = *seen.last().expect("not empty");
        }
        assert_eq!(seen, (1..=50).collect::<Vec<i64>>());
    }
}

pub async fn cursors_beyond_the_end_are_refused(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    append(&*store, "a", vec![note("1", "x")]).await.expect("appended");
    assert_eq!(store.read("a", 1, PageLimit::STREAM).await.map(|page| page.records), Ok(vec![]));
    assert_eq!(store.read("a", 2, PageLimit::STREAM).await, Err(StoreError::CursorAhead { after: 2, last: 1 }));
    assert_eq!(store.read("a", i64::MAX, PageLimit::STREAM).await, Err(StoreError::CursorAhead { after: i64::MAX, last: 1 }));
    assert_eq!(store.read("nobody", 1, PageLimit::STREAM).await, Err(StoreError::CursorAhead { after: 1, last: 0 }));
}

pub async fn followers_are_woken(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    let mut wake = store.subscribe("a");
    wake.borrow_and_update();
    append(&*store, "b", vec![note("1", "x")]).await.expect("another run");
    assert!(!wake.has_changed().expect("open"));
    append(&*store, "a", vec![note("1", "x")]).await.expect("appended");
    tokio::time::timeout(Duration::from_secs(10), wake.changed()).await.expect("in time").expect("open");
    assert_eq!(numbers(&*store, "a").await, [1], "what woke is there to be read");
}

pub async fn purged_logs_show_a_gap_and_the_end(make: &dyn Fn(Quotas) -> Subject) {
    let store = make(Quotas::default()).events;
    append(&*store, "a", vec![note("1", "x"), note("2", "y")]).await.expect("appended");
    append(&*store, "open", vec![note("1", "x")]).await.expect("appended");
    store.purge("a").await.expect("nothing to do");
    assert_eq!(numbers(&*store, "a").await, [1, 2], "an open log is left alone");
    own(&*store, "a", vec![of(EventType::End, "end")]).await.expect("closed");
    assert_eq!(store.expired(1_000, 10).await, Ok(vec![]), "closed at 1000 is not before 1000");
    assert_eq!(store.expired(1_001, 10).await, Ok(vec![run("a")]));
    for _ in 0..2 {
        store.purge("a").await.expect("purged");
    }
    assert_eq!(store.expired(1_001, 10).await, Ok(vec![]));
    let page = store.read("a", 1, PageLimit::STREAM).await.expect("page");
    assert_eq!((page.gap, page.last, page.closed), (Some((2, 2)), 3, true));
    assert_eq!(page.records.iter().map(|r| (r.seq, r.kind)).collect::<Vec<_>>(), [(3, EventType::End)]);
    let page = store.read("a", 2, PageLimit::STREAM).await.expect("page");
    assert_eq!((page.gap, page.records.len()), (None, 1));
    assert_eq!(append(&*store, "a", vec![note("1", "x")]).await, Err(StoreError::Closed), "a purged key is not born again");
}
