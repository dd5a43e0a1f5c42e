//! Providers that misbehave: what the agent sees, what is charged, and that no word of theirs gets through.

use std::sync::atomic::{AtomicUsize, Ordering};

use agentrun_crds::budget::Spent;
use axum::response::IntoResponse;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION, RETRY_AFTER};

use super::upstream::{Piece, Upstream, completion, error, piece, reply, stream};
use super::*;

/// Charged at the reservation: 4,096 output tokens.
const FULL: i64 = 4096;

type Answer = fn(usize) -> axum::response::Response;

#[tokio::test]
async fn every_kind_of_answer() {
    let redirect: Answer = |_| (StatusCode::FOUND, [(LOCATION, "http://127.0.0.1:1/steal")]).into_response();
    let limited: Answer = |_| (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "7")], "slow down").into_response();
    let gzip: Answer = |_| ([(CONTENT_TYPE, "application/json"), (CONTENT_ENCODING, "gzip")], "xx").into_response();
    let context: Answer =
        |_| (StatusCode::BAD_REQUEST, r#"{"error":{"code":"context_length_exceeded","message":"sk-canary-key"}}"#).into_response();
    let html: Answer = |_| ([(CONTENT_TYPE, "text/html")], "<p>").into_response();
    let huge: Answer = |_| reply(&format!(r#"{{"choices":[],"x":"{}"}}"#, "x".repeat(20_000)));
    // answer, status, code, requests, upstream attempts, output tokens
    type Row = (&'static str, Answer, u16, &'static str, i64, i64, i64);
    let rows: Vec<Row> = vec![
        ("500 once", |n| if n == 0 { error(500) } else { completion(1, 2) }, 200, "", 1, 2, 2),
        ("500 for good", |_| error(500), 502, "provider_unavailable", 1, 2, 0),
        ("503 for good", |_| error(503), 502, "provider_unavailable", 1, 2, 0),
        ("501", |_| error(501), 502, "provider_unavailable", 1, 1, 0),
        ("401", |_| error(401), 502, "provider_auth_failed", 1, 1, 0),
        ("403", |_| error(403), 502, "provider_auth_failed", 1, 1, 0),
        ("402", |_| error(402), 502, "provider_auth_failed", 1, 1, 0),
        ("404", |_| error(404), 502, "provider_misconfigured", 1, 1, 0),
        ("413", |_| error(413), 413, "too_large", 1, 1, 0),
        ("400", |_| error(400), 400, "provider_rejected_request", 1, 1, 0),
        ("422", |_| error(422), 400, "provider_rejected_request", 1, 1, 0),
        ("context", context, 400, "context_length_exceeded", 1, 1, 0),
        ("429", limited, 429, "provider_rate_limited", 1, 1, 0),
        ("redirect", redirect, 502, "provider_redirect", 1, 1, 0),
        ("204", |_| StatusCode::NO_CONTENT.into_response(), 502, "provider_response_invalid", 1, 1, FULL),
        ("gzip", gzip, 502, "provider_response_invalid", 1, 1, FULL),
        ("html", html, 502, "provider_response_invalid", 1, 1, FULL),
        ("no JSON", |_| reply("{\"choices\":["), 502, "provider_response_invalid", 1, 1, FULL),
        ("no choices", |_| reply("{}"), 502, "provider_response_invalid", 1, 1, FULL),
        ("too large", huge, 502, "provider_response_too_large", 1, 1, FULL),
        ("no usage", |_| reply(r#"{"choices":[]}"#), 200, "", 1, 1, FULL),
        ("negative usage", |_| reply(r#"{"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":1}}"#), 200, "", 1, 1, FULL),
        ("usage as text", |_| reply(r#"{"choices":[],"usage":"much"}"#), 200, "", 1, 1, FULL),
    ];
    for (name, answer, status, expected, requests, attempts, output) in rows {
        let world = World::new(Upstream::new(move |n, _| answer(n)).await).await;
        let response = world.send(&hello()).await;
        let retry_after = response.headers().get(RETRY_AFTER).cloned();
        assert_eq!(response.status().as_u16(), status, "{name}");
        let body = text(response).await;
        if status != 200 {
            assert_eq!(code(&body), expected, "{name}");
        }
        assert_eq!(retry_after.is_some_and(|value| value == "7"), name == "429", "{name}");
        assert!(!body.contains(KEY) && !body.contains("provider.example"), "{name}: {body}");
        let Spent { requests: r, upstream_attempts: a, output_tokens: o, .. } = world.settled().await.spent;
        assert_eq!((r, a, o), (requests, attempts, output), "{name}");
        for (_, _, data) in world.gateway.events.0.lock().unwrap().iter() {
            assert!(!data.to_string().contains(KEY), "{name}");
        }
    }
}

#[tokio::test]
async fn a_retry_has_a_reservation_of_its_own_or_does_not_happen() {
    let mut run = run_json();
    // Enough input for one dispatch, and what the first try takes is unknown.
    run["status"]["budget"]["limit"]["requests"] = 1.into();
    let world = World::with(run, Upstream::new(|n, _| if n == 0 { error(503) } else { completion(1, 2) }).await).await;
    assert_eq!(world.ask(&hello()).await.0, 200, "the retry asks for no second request");
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.upstream_attempts), (1, 2));
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (403, "model_request_budget_exhausted"));
}

#[tokio::test]
async fn nobody_listens() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let closed = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    world.gateway.state.model.providers.put(provider(&format!("http://{closed}/v1")));
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (502, "provider_unavailable"));
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (1, 0, 0));
}

#[tokio::test]
async fn a_silent_provider_is_given_up_and_charged_in_full() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    world.gateway.state.model.providers.put(provider(&format!("http://{}/v1", listener.local_addr().unwrap())));
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (504, "provider_timeout"));
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (1, 1, FULL));
}

#[tokio::test]
async fn a_key_that_is_missing_or_empty_costs_nothing() {
    for secret in [None, Some(json!({ "other": "eA==" })), Some(json!({ "key": "" })), Some(json!({ "key": "Cg==" }))] {
        let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
        let path = "namespaces/agentrun-system/secrets/key";
        match &secret {
            None => drop(world.api.lock().objects.remove(path)),
            Some(data) => world.api.lock().objects.get_mut(path).unwrap()["data"] = data.clone(),
        }
        let (status, body) = world.ask(&hello()).await;
        assert_eq!((status, code(&body).as_str()), (502, "provider_misconfigured"), "{secret:?}");
        assert_eq!((world.settled().await.spent, world.upstream.seen().len()), (Spent::default(), 0), "{secret:?}");
    }
}

#[tokio::test]
async fn a_refused_key_is_read_again() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let world =
        World::new(Upstream::new(|_, _| if CALLS.fetch_add(1, Ordering::Relaxed) == 0 { error(401) } else { completion(1, 1) }).await)
            .await;
    assert_eq!(world.ask(&hello()).await.0, 502);
    world.api.lock().objects.get_mut("namespaces/agentrun-system/secrets/key").unwrap()["data"]["key"] = json!(base64("rotated\n"));
    assert_eq!(world.ask(&hello()).await.0, 200);
    assert_eq!(world.upstream.seen()[1].0["authorization"], "Bearer rotated");
}

const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":4}}\n\n";

#[tokio::test]
async fn every_way_a_stream_may_break() {
    let rows: Vec<(&str, Vec<Piece>, &str)> = vec![
        ("cut", vec![piece(CHUNK), Piece::Break], "provider_stream_incomplete"),
        ("cut after its usage", vec![piece(CHUNK), piece(USAGE), Piece::Break], "provider_stream_incomplete"),
        ("ends without [DONE]", vec![piece(CHUNK), piece(USAGE)], "provider_stream_incomplete"),
        ("ends in an event", vec![piece(CHUNK), piece("data: [DONE]")], "provider_stream_incomplete"),
        ("goes silent", vec![piece(CHUNK), Piece::Hang], "provider_timeout"),
        (
            "reports an error",
            vec![piece(CHUNK), piece("data: {\"error\":{\"message\":\"sk-canary-key\"}}\n\n"), Piece::Hang],
            "provider_unavailable",
        ),
        ("never ends", std::iter::repeat_n(piece(CHUNK), 400).collect(), "provider_response_too_large"),
    ];
    for (name, pieces, expected) in rows {
        let world = World::new(Upstream::new(move |_, _| stream(pieces.clone())).await).await;
        let response = world.send(&streamed()).await;
        assert_eq!(response.status(), 200, "{name}");
        let (body, clean) = all(response).await;
        assert!(!clean, "{name}: a broken stream must not look like a whole one");
        assert!(body.starts_with(CHUNK) && !body.contains("[DONE]") && !body.contains(KEY), "{name}: {body}");
        let last = body.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap().to_owned();
        assert_eq!(code(&last), expected, "{name}");
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.output_tokens), (1, FULL), "{name}: never less than the reservation");
    }
}
