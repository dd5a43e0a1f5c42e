//! Calls that go well, and what the provider gets to see.

use agentrun_protocol::event::EventType;
use serde_json::{Value, json};

use super::upstream::{Upstream, completion, piece, reply, stream};
use super::*;

#[tokio::test]
async fn a_call_is_forwarded_metered_and_recorded() {
    let body = "{\"choices\" : [ {\"message\":{\"content\":\"grüße\"}} ],\n \"usage\":{\"prompt_tokens\":30,\"completion_tokens\":4}}";
    let world = World::new(Upstream::new(move |_, _| reply(body)).await).await;
    let response = world.send(&hello()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(text(response).await, body, "bytes pass unchanged");

    let budget = world.settled().await;
    assert_eq!((budget.spent.requests, budget.spent.upstream_attempts), (1, 1));
    assert_eq!((budget.spent.input_tokens, budget.spent.output_tokens, budget.spent.cost_micros), (30, 4, 38));
    let status = world.api.run().status.unwrap();
    assert_eq!((status.requests_text.as_deref(), status.cost_text.as_deref()), (Some("1/10"), Some("0.000038")));

    let mut events = world.gateway.events.of(EventType::ModelCall);
    assert!(events[0]["durationMs"].as_i64().is_some());
    events[0]["durationMs"] = Value::Null;
    let expected = json!({
        "model": "demo", "status": "ok", "durationMs": null, "inputTokens": 30, "outputTokens": 4, "costMicros": 38,
        "requestsSpent": 1, "requestsLimit": 10,
    });
    assert_eq!(events, [expected]);
}

#[tokio::test]
async fn the_provider_sees_its_key_and_nothing_of_the_sandbox() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    assert_eq!(world.ask(&hello()).await.0, 200);
    let (headers, body) = world.upstream.seen().remove(0);
    let mut names: Vec<&str> = headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "accept-encoding", "authorization", "content-length", "content-type", "host", "user-agent"]);
    assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
    assert_eq!(headers["accept-encoding"], "identity");
    let sent: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(sent, json!({ "max_tokens": 4096, "model": "fix-calc", "messages": [{ "role": "user", "content": "hello" }] }));
    world.settled().await;
}

#[tokio::test]
async fn output_is_clamped_to_what_the_budget_has_left() {
    let mut run = run_json();
    run["status"]["budget"]["limit"]["outputTokens"] = json!(100);
    let world = World::with(run, Upstream::new(|_, _| completion(1, 100)).await).await;
    for (expected, asked) in [(200, 100), (403, 0)] {
        let (status, body) = world.ask(&hello()).await;
        assert_eq!(status, expected, "{body}");
        if asked > 0 {
            let sent: Value = serde_json::from_slice(&world.upstream.seen()[0].1).unwrap();
            assert_eq!(sent["max_tokens"], json!(asked));
        } else {
            assert!(body.contains("budget.outputTokens"), "{body}");
        }
        world.settled().await;
    }
}

#[tokio::test]
async fn the_x_api_key_header_is_a_token_on_this_route() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let request = Request::post("/v1/chat/completions").header("x-api-key", model_token()).body(Body::from(hello().to_string())).unwrap();
    assert_eq!(world.gateway.sandbox.clone().oneshot(request).await.unwrap().status(), 200);
    world.settled().await;
}

const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":4}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[tokio::test]
async fn a_stream_reports_its_usage_to_us_and_to_the_agent_only_if_it_asked() {
    let upstream = Upstream::new(|_, body| {
        assert_eq!(body["stream_options"]["include_usage"], json!(true));
        stream(vec![piece(CHUNK), piece(CHUNK), piece(USAGE), piece(DONE)])
    });
    let world = World::new(upstream.await).await;
    let response = world.send(&streamed()).await;
    assert_eq!((response.status().as_u16(), response.headers()["content-type"].to_str().unwrap()), (200, "text/event-stream"));
    assert_eq!(all(response).await, (format!("{CHUNK}{CHUNK}{DONE}"), true));
    let mut asking = streamed();
    asking["stream_options"] = json!({ "include_usage": true });
    assert_eq!(all(world.send(&asking).await).await, (format!("{CHUNK}{CHUNK}{USAGE}{DONE}"), true));
    let budget = world.settled().await;
    assert_eq!((budget.spent.requests, budget.spent.input_tokens, budget.spent.output_tokens), (2, 60, 8));
}

#[tokio::test]
async fn the_scripted_model_is_a_provider() {
    let scripted = agentrun_scripted_model::Running::start(agentrun_scripted_model::Options::default()).await.unwrap();
    let mut run = run_json();
    run["status"]["resolved"]["model"]["model"] = json!("echo");
    let world = World::with(run, Upstream::new(|_, _| completion(0, 0)).await).await;
    world.gateway.state.model.providers.put(provider(&scripted.completions()));
    let (status, body) = world.ask(&hello()).await;
    assert_eq!(status, 200, "{body}");
    let usage = serde_json::from_str::<Value>(&body).unwrap()["usage"].clone();
    let (stream, clean) = all(world.send(&streamed()).await).await;
    assert!(clean && stream.ends_with(DONE), "{stream}");
    let budget = world.settled().await;
    assert_eq!(budget.spent.requests, 2);
    assert!(budget.spent.input_tokens >= usage["prompt_tokens"].as_i64().unwrap());
    assert!(budget.spent.output_tokens >= usage["completion_tokens"].as_i64().unwrap());
    assert!(budget.spent.output_tokens < 4096, "neither was charged its reservation");
}
