//! Events: appended by the runner, read and followed by people.

use agentrun_protocol::event::EventType;
use axum::body::Body;
use futures::StreamExt;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{ALICE, MALLORY, OTHER_UID, World};
use crate::fixtures::RUN_UID;
use crate::store::{NewRecord, Origin, RunRef};

const APPEND: &str = "/sandbox/v1/events";
const READ: &str = "/v1/namespaces/team/runs/fix-it/events";

fn note(key: &str, text: &str) -> Value {
    json!({"key": key, "type": "note", "data": {"text": text}})
}

fn batch(events: &[Value]) -> String {
    json!({ "events": events }).to_string()
}

async fn end(world: &World) {
    let run = RunRef { uid: RUN_UID.into(), namespace: "team".into(), name: "fix-it".into() };
    let record = NewRecord::new("end", EventType::End, &json!({"phase": "Succeeded", "reason": "Succeeded"}));
    world.state.stores.events.append(&run, 1, Origin::Gateway, vec![record]).await.expect("ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_runner_appends_people_read() {
    let world = World::new();
    let answer = world.runner(RUN_UID, "POST", APPEND, batch(&[note("1", "one"), note("2", "two\n\u{2028}")])).await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, json!({"seqs": [1, 2]})));
    let again = world.runner(RUN_UID, "POST", APPEND, batch(&[note("2", "two\n\u{2028}"), note("3", "three")])).await;
    assert_eq!(again.json(), json!({"seqs": [2, 3]}));
    let conflict = world.runner(RUN_UID, "POST", APPEND, batch(&[note("4", "four"), note("1", "another")])).await;
    assert_eq!(conflict.refusal(), (409, "event_key_conflict".into(), None));
    world.runner(OTHER_UID, "POST", APPEND, batch(&[note("1", "secret of the other run")])).await;

    let read = world.person(ALICE, READ, &[]).await;
    assert_eq!((read.status, read.headers["content-type"].to_str().expect("text")), (StatusCode::OK, "application/x-ndjson"));
    let lines: Vec<Value> = read.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let time = "2027-01-15T08:00:00.000Z";
    let expected: Vec<Value> = ["one", "two\n\u{2028}", "three"]
        .iter()
        .zip(1..)
        .map(|(text, seq)| json!({"seq": seq, "time": time, "type": "note", "data": {"text": text}}))
        .collect();
    assert_eq!(lines, expected, "no line of the refused batch, none of another run");
    assert_eq!(world.person(ALICE, &format!("{READ}?after=2"), &[]).await.text().lines().count(), 1);
    assert_eq!(world.person(ALICE, &format!("{READ}?after=3"), &[]).await.text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_field_and_keep_nothing() {
    let world = World::new();
    for (body, status, field) in [
        ("{".to_owned(), 400, "body"),
        (batch(&[]), 422, "events"),
        (batch(&[note("1", "x"), json!({"key": "2", "type": "end", "data": {}})]), 422, "events[1].type"),
        (batch(&[note("1", "x"), note("", "x")]), 422, "events[1].key"),
        (" ".repeat(1024 * 1024 + 1), 413, "body"),
    ] {
        let (got, _, named) = world.runner(RUN_UID, "POST", APPEND, body).await.refusal();
        assert_eq!((got, named.as_deref()), (status, Some(field)));
    }
    assert_eq!(world.person(ALICE, READ, &[]).await.text(), "");
    for (query, headers, status, field) in [
        ("?after=1", vec![], 409, "after"),
        ("?after=-1", vec![], 400, "after"),
        ("?since=1", vec![], 400, "since"),
        ("?follow=perhaps", vec![], 400, "follow"),
        ("", vec![("last-event-id", "1 2")], 400, "Last-Event-ID"),
        ("", vec![("last-event-id", "0x10")], 400, "Last-Event-ID"),
    ] {
        let (got, _, named) = world.person(ALICE, &format!("{READ}{query}"), &headers).await.refusal();
        assert_eq!((got, named.as_deref()), (status, Some(field)), "{query} {headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_may_get_the_run_read_it() {
    let world = World::new();
    for what in ["events", "artifacts", "patch", &format!("artifacts/{}", crate::store::Digest::of(b""))] {
        let path = |namespace: &str, name: &str| format!("/v1/namespaces/{namespace}/runs/{name}/{what}");
        assert_eq!(world.person("nobody", &path("team", "fix-it"), &[]).await.refusal().0, 401, "{what}");
        assert_eq!(super::send(&world.people, "GET", &path("team", "fix-it"), &[], Body::empty()).await.refusal().0, 401, "{what}");
        assert_eq!(world.person(MALLORY, &path("team", "fix-it"), &[]).await.refusal().0, 403, "{what}");
        assert_eq!(world.person(ALICE, &path("elsewhere", "fix-it"), &[]).await.refusal().0, 403, "{what}");
        assert_eq!(world.person(ALICE, &path("team", "unknown"), &[]).await.refusal().0, 404, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_brings_events_as_they_come_and_ends_with_the_run() {
    let world = World::new();
    world.runner(RUN_UID, "POST", APPEND, batch(&[note("1", "one"), note("2", "two")])).await;
    let request = Request::get(READ)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {ALICE}"))
        .header("accept", "text/event-stream")
        .header("last-event-id", "1")
        .body(Body::empty())
        .expect("a request");
    let response = world.people.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = response.into_body().into_data_stream();
    let mut next = async || String::from_utf8(stream.next().await?.expect("no error").to_vec()).ok();
    assert!(next().await.expect("two").starts_with("id: 2\nevent: note\ndata: {\"seq\":2,"));
    world.runner(RUN_UID, "POST", APPEND, batch(&[note("3", "three")])).await;
    assert!(next().await.expect("three").starts_with("id: 3\n"));
    end(&world).await;
    assert!(next().await.expect("the end").starts_with("id: 4\nevent: end\n"));
    assert_eq!(next().await, None);

    let closed = world.runner(RUN_UID, "POST", APPEND, batch(&[note("5", "late")])).await;
    assert_eq!(closed.refusal(), (409, "log_closed".into(), None));
    let repeated = world.runner(RUN_UID, "POST", APPEND, batch(&[note("3", "three")])).await;
    assert_eq!(repeated.json(), json!({"seqs": [3]}), "a repeat is answered also after the close");
    let over = world.person(ALICE, READ, &[("accept", "text/event-stream"), ("last-event-id", "4")]).await;
    assert_eq!(over.status, StatusCode::NO_CONTENT, "a browser that reconnects after the end stops");
    let followed = world.person(ALICE, &format!("{READ}?follow=true"), &[("accept", "application/x-ndjson")]).await;
    assert_eq!(followed.text().lines().count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purged_log_reads_as_a_gap_and_its_end() {
    let world = World::new();
    world.runner(RUN_UID, "POST", APPEND, batch(&[note("1", "one"), note("2", "two")])).await;
    end(&world).await;
    let blob = world.upload(RUN_UID, b"payload").await;
    let later = crate::clock::Clock::from_fn(|| crate::fixtures::NOW * 1000 + 31 * 24 * 60 * 60 * 1000);
    let retention = crate::store::Retention { days: 30 };
    assert_eq!(retention.pass(&world.state.stores, &world.state.clock).await, Ok(0), "not yet");
    assert_eq!(retention.pass(&world.state.stores, &later).await, Ok(1));
    let lines: Vec<Value> =
        world.person(ALICE, READ, &[]).await.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), &lines[0]["type"], &lines[0]["data"]["to"], &lines[1]["type"]), (2, &json!("gap"), &json!(2), &json!("end")));
    let gone = world.person(ALICE, &format!("/v1/namespaces/team/runs/fix-it/artifacts/{blob}"), &[]).await;
    assert_eq!(gone.refusal().0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_so_many_readers_and_no_more() {
    let world = World::new();
    let mut open = Vec::new();
    let ask = || {
        Request::get(format!("{READ}?follow=1"))
            .header("host", "localhost")
            .header("authorization", format!("Bearer {ALICE}"))
            .body(Body::empty())
            .expect("a request")
    };
    for _ in 0..32 {
        open.push(world.people.clone().oneshot(ask()).await.expect("infallible"));
    }
    let refused = world.person(ALICE, &format!("{READ}?follow=1"), &[]).await;
    assert_eq!(refused.refusal(), (429, "too_many_in_flight".into(), None));
    assert_eq!(world.person(ALICE, "/v1/namespaces/team/runs/other/events", &[]).await.status, StatusCode::OK, "another run's are served");
}
