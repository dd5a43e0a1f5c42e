//! The whole model route: the real router, a fake API server, a real upstream over a socket.

mod budget;
mod client;
mod cuts;
mod dialects;
mod failover;
mod faults;
mod happy;
mod large;
mod leaving;
mod metering;
mod namespace_budget;
mod raw;
mod refusals;
mod reuse;
mod streams;
mod upstream;
mod wire;

use std::time::Duration;

use agentrun_crds::ModelProvider;
use agentrun_protocol::token::{Audience, Claims};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fake_api::FakeApi;
use crate::fixtures::{self, Gateway, gateway, ring, run_json};
use upstream::Upstream;

/// The provider's key; must show up nowhere but at the provider.
const KEY: &str = "sk-canary-key";

/// One run, one gateway, one upstream.
struct World {
    api: FakeApi,
    gateway: Gateway,
    upstream: Upstream,
}

impl World {
    async fn new(upstream: Upstream) -> Self {
        World::with(run_json(), upstream).await
    }

    async fn with(run: Value, upstream: Upstream) -> Self {
        let api = FakeApi::with_run(run);
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "key" }, "data": { "key": base64(KEY) } });
        api.lock().objects.insert("namespaces/agentrun-system/secrets/key".into(), secret);
        let gateway = start(&api, "gw-0", &upstream);
        World { api, gateway, upstream }
    }

    async fn send(&self, body: &Value) -> Response {
        send(&self.gateway, &model_token(), body.to_string()).await
    }

    /// Status, body; the whole of it.
    async fn ask(&self, body: &Value) -> (u16, String) {
        let response = self.send(body).await;
        (response.status().as_u16(), text(response).await)
    }

    /// Everything settled, and no rule broken on the way.
    async fn settled(&self) -> agentrun_crds::budget::Budget {
        self.api.until("settled", |run| run.status.as_ref().unwrap().budget.as_ref().unwrap().reservations.is_empty()).await;
        self.gateway.state.model.tasks.close();
        tokio::time::timeout(Duration::from_secs(10), self.gateway.state.model.tasks.wait()).await.unwrap();
        assert_eq!(self.api.lock().violations, Vec::<String>::new());
        self.api.budget()
    }
}

fn start(api: &FakeApi, instance: &str, upstream: &Upstream) -> Gateway {
    let gateway = gateway(api, instance);
    gateway.state.model.providers.put(provider(&upstream.url()));
    gateway
}

fn provider(url: &str) -> ModelProvider {
    serde_json::from_value(json!({
        "apiVersion": "agentrun.dev/v1alpha1",
        "kind": "ModelProvider",
        "metadata": { "name": "scripted", "namespace": "agentrun-system" },
        "spec": {
            "dialect": "OpenAIChat",
            "url": url,
            "plainHTTP": "Allowed",
            "secretRef": { "name": "key", "key": "key" },
            "models": [{ "name": "fix-calc" }],
            "timeouts": { "connect": "2s", "firstByte": "1s", "idle": "1s", "total": "5s" },
            "caps": { "requestBytes": 20_000, "responseBytes": 10_000 },
        },
    }))
    .unwrap()
}

async fn send(gateway: &Gateway, token: &str, body: impl Into<Bytes>) -> Response {
    let request = Request::post("/v1/chat/completions")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .header("x-secret-of-the-sandbox", "must not travel")
        .body(Body::from(body.into()))
        .unwrap();
    gateway.sandbox.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What arrives of a body, and whether it ended cleanly.
async fn all(response: Response) -> (String, bool) {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => return (String::from_utf8(bytes).unwrap(), false),
        }
    }
    (String::from_utf8(bytes).unwrap(), true)
}

fn model_token() -> String {
    token(fixtures::claims(Audience::Model))
}

fn token(claims: Claims) -> String {
    ring().mint(&claims)
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn hello() -> Value {
    json!({ "model": "demo", "messages": [{ "role": "user", "content": "hello" }] })
}

fn streamed() -> Value {
    json!({ "model": "demo", "messages": [{ "role": "user", "content": "hello" }], "stream": true })
}

/// The error code of a JSON body.
fn code(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {body}"));
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}
