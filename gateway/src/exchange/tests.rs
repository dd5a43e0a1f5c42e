//! The exchange through the router, on a fake API server.

use agentrun_crds::names;
use agentrun_crds::network_probe::{NetworkProbe, NetworkTarget, ProbeOutcome};
use agentrun_protocol::exchange::{ExchangeRequest, ExchangeResponse, RenewResponse, Wall, signing_input};
use agentrun_protocol::routes::{EXCHANGE, JOB, RENEW};
use agentrun_protocol::token::Audience;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use axum::body::Body;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fake_api::{FakeApi, Fault};
use crate::fixtures::{Gateway, NOW, POD_UID, RUN_UID, TICKET, gateway, ring, run_json};

const POD_TOKEN: &str = "pod-token-canary";

struct World {
    api: FakeApi,
    gateway: Gateway,
}

fn world() -> World {
    let mut run = run_json();
    run["status"]["exchange"] = Value::Null;
    let api = FakeApi::with_run(run);
    let name = names::child_name(RUN_UID, 1);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": POD_UID, "labels": { names::LABEL_RUN_UID: RUN_UID },
            "ownerReferences": [{ "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "name": "fix-it", "uid": RUN_UID, "controller": true }],
        },
        "spec": { "serviceAccountName": names::SANDBOX_SERVICE_ACCOUNT, "containers": [] },
        "status": { "phase": "Running" },
    });
    let user = json!({
        "username": format!("system:serviceaccount:team:{}", names::SANDBOX_SERVICE_ACCOUNT),
        "extra": { "authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [POD_UID] },
    });
    let review = json!({ "authenticated": true, "audiences": [names::EXCHANGE_AUDIENCE], "user": user });
    {
        let mut state = api.lock();
        state.objects.insert(format!("namespaces/team/pods/{name}"), pod);
        state.tokens.insert(POD_TOKEN.into(), review);
    }
    let gateway = gateway(&api, "gw-0");
    World { api, gateway }
}

fn request(key: &Ed25519KeyPair, ticket: [u8; 32], pod_token: &str) -> ExchangeRequest {
    let nonce = [6; 16];
    let public: [u8; 32] = key.public_key().as_ref().try_into().unwrap();
    let mut walls = Wall::REQUIRED.to_vec();
    walls.push(Wall::UserNamespace);
    ExchangeRequest {
        ticket: URL_SAFE_NO_PAD.encode(ticket),
        pod_token: pod_token.into(),
        public_key: URL_SAFE_NO_PAD.encode(public),
        nonce: URL_SAFE_NO_PAD.encode(nonce),
        signature: URL_SAFE_NO_PAD.encode(key.sign(&signing_input(&ticket, pod_token, &public, &nonce))),
        walls,
        network: NetworkTarget::ALL.iter().map(|target| NetworkProbe { target: *target, outcome: ProbeOutcome::Held }).collect(),
    }
}

fn key(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

impl World {
    async fn post(&self, path: &str, token: Option<&str>, body: Vec<u8>) -> (u16, Value) {
        let mut request = Request::post(path).header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.call(request.body(Body::from(body)).unwrap()).await
    }

    async fn call(&self, request: Request<Body>) -> (u16, Value) {
        let response = self.gateway.sandbox.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn exchange(&self, request: &ExchangeRequest) -> (u16, Value) {
        self.post(EXCHANGE, None, serde_json::to_vec(request).unwrap()).await
    }

    async fn granted(&self, request: &ExchangeRequest) -> ExchangeResponse {
        let (status, body) = self.exchange(request).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_value(body).unwrap()
    }

    async fn job(&self, token: &str) -> u16 {
        self.call(Request::get(JOB).header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap()).await.0
    }
}

#[tokio::test]
async fn one_holder_gets_working_tokens_and_the_same_ones_again() {
    let world = world();
    let request = request(&key(1), TICKET, POD_TOKEN);
    let first = world.granted(&request).await;
    let status = world.api.run().status.unwrap();
    let exchange = status.exchange.unwrap();
    assert_eq!((exchange.attempt, exchange.at, exchange.compromised), (1, NOW + 10, false));
    assert_eq!((exchange.public_key.as_str(), exchange.nonce.as_str()), (request.public_key.as_str(), request.nonce.as_str()));
    assert_eq!(exchange.walls.len(), Wall::REQUIRED.len() + 1);
    assert_eq!(exchange.network, request.network);
    assert_eq!(first.expires_at, NOW + 10 + 240);

    let again = world.granted(&request).await;
    assert_eq!((&first.model_token, &first.events_token), (&again.model_token, &again.events_token));
    assert_eq!(world.api.lock().writes, 1);
    assert_eq!(world.job(&first.events_token).await, 200);
    for token in [&first.model_token, &first.approvals_token] {
        assert_eq!(world.job(token).await, 401);
    }
}

#[tokio::test]
async fn another_gateway_gives_the_same_tokens() {
    let world = world();
    let other = World { gateway: gateway(&world.api, "gw-1"), api: world.api.clone() };
    let request = request(&key(1), TICKET, POD_TOKEN);
    let (one, two) = tokio::join!(world.granted(&request), other.granted(&request));
    assert_eq!(one.events_token, two.events_token);
    assert_eq!(world.api.lock().writes, 1);
}

#[tokio::test]
async fn a_second_holder_compromises_the_run_at_once() {
    let world = world();
    let first = world.granted(&request(&key(1), TICKET, POD_TOKEN)).await;
    let (status, body) = world.exchange(&request(&key(2), TICKET, POD_TOKEN)).await;
    assert_eq!((status, body["error"]["code"].as_str()), (403, Some("compromised")));
    assert!(world.api.run().status.unwrap().exchange.unwrap().compromised);
    assert_eq!(world.job(&first.events_token).await, 401, "the first holder may be the thief");
    let (status, _) = world.exchange(&request(&key(1), TICKET, POD_TOKEN)).await;
    assert_eq!(status, 403);
}

#[tokio::test]
async fn less_than_both_credentials_writes_nothing() {
    let world = world();
    let good = || request(&key(1), TICKET, POD_TOKEN);
    let mut unsigned = good();
    unsigned.signature = URL_SAFE_NO_PAD.encode([0; 64]);
    let mut stolen_signature = good();
    stolen_signature.public_key = request(&key(2), TICKET, POD_TOKEN).public_key;
    let mut other_nonce = good();
    other_nonce.nonce = URL_SAFE_NO_PAD.encode([7; 16]);
    for (name, request) in [
        ("wrong ticket", request(&key(1), [1; 32], POD_TOKEN)),
        ("unknown Pod token", request(&key(1), TICKET, "other")),
        ("empty Pod token", request(&key(1), TICKET, "")),
        ("no signature", unsigned),
        ("another's signature", stolen_signature),
        ("another nonce than was signed", other_nonce),
    ] {
        let (status, body) = world.exchange(&request).await;
        assert_eq!((status, body["error"]["code"].as_str()), (401, Some("exchange_refused")), "{name}");
        assert!(!body.to_string().contains(POD_TOKEN), "{name}");
    }
    // A thief with the ticket alone cannot compromise the run either.
    world.granted(&good()).await;
    let (status, _) = world.exchange(&request(&key(2), TICKET, "other")).await;
    assert_eq!(status, 401);
    assert!(!world.api.run().status.unwrap().exchange.unwrap().compromised);
    assert_eq!(world.api.lock().writes, 1);
}

#[tokio::test]
async fn the_pod_must_still_be_there() {
    for (pointer, value) in [
        ("/metadata/uid", json!("33333333-3333-4333-8333-333333333333")),
        ("/metadata/deletionTimestamp", json!("2026-11-30T00:00:00Z")),
        ("/status/phase", json!("Failed")),
        ("", Value::Null),
    ] {
        let world = world();
        let path = format!("namespaces/team/pods/{}", names::child_name(RUN_UID, 1));
        if pointer.is_empty() {
            world.api.lock().objects.remove(&path);
        } else {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            world.api.lock().objects.get_mut(&path).unwrap().pointer_mut(parent).unwrap()[name] = value;
        }
        let (status, _) = world.exchange(&request(&key(1), TICKET, POD_TOKEN)).await;
        assert_eq!(status, 401, "{pointer}");
        assert_eq!(world.api.lock().writes, 0, "{pointer}");
    }
}

#[tokio::test]
async fn faults_of_the_write_change_nothing() {
    for faults in [vec![Fault::Conflict], vec![Fault::ReplyLost], vec![Fault::Broken, Fault::Conflict, Fault::ReplyLost]] {
        let world = world();
        world.api.lock().patch_faults = faults.clone().into();
        let response = world.granted(&request(&key(1), TICKET, POD_TOKEN)).await;
        assert_eq!(world.job(&response.events_token).await, 200, "{faults:?}");
        assert_eq!(world.api.lock().writes, 1, "{faults:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_and_no_credential_is_repeated() {
    let world = world();
    let good = serde_json::to_value(request(&key(1), TICKET, POD_TOKEN)).unwrap();
    let without = |field: &str| {
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(field);
        body.to_string().into_bytes()
    };
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string().into_bytes()
    };
    for (name, body, status, code, field) in [
        ("not JSON", b"{".to_vec(), 400, "invalid_exchange", "body"),
        ("unknown field", with("x", json!(POD_TOKEN)), 400, "invalid_exchange", "body"),
        ("unknown wall", with("walls", json!([POD_TOKEN])), 400, "invalid_exchange", "body"),
        ("short ticket", with("ticket", json!("AAAA")), 400, "invalid_exchange", "ticket"),
        ("padded nonce", with("nonce", json!("BgYGBgYGBgYGBgYGBgYGBg==")), 400, "invalid_exchange", "nonce"),
        ("long key", with("publicKey", json!(URL_SAFE_NO_PAD.encode([0; 33]))), 400, "invalid_exchange", "publicKey"),
        ("too large", with("podToken", json!("x".repeat(17_000))), 413, "too_large", "body"),
        (
            "a wall is missing",
            {
                let mut request = request(&key(1), TICKET, POD_TOKEN);
                request.walls.retain(|wall| *wall != Wall::Seccomp);
                serde_json::to_vec(&request).unwrap()
            },
            403,
            "confinement_incomplete",
            "walls",
        ),
        (
            "the API server is reached",
            {
                let mut request = request(&key(1), TICKET, POD_TOKEN);
                request.network[0].outcome = ProbeOutcome::Reached;
                serde_json::to_vec(&request).unwrap()
            },
            403,
            "network_not_enforced",
            "network",
        ),
        ("nothing was tried", with("network", json!([])), 403, "network_not_enforced", "network"),
        ("an older runner", without("network"), 400, "invalid_exchange", "body"),
        (
            "a target twice",
            with("network", json!([{"target": "pod", "outcome": "held"}, {"target": "pod", "outcome": "reached"}])),
            400,
            "invalid_exchange",
            "network",
        ),
    ] {
        let (got, body) = world.post(EXCHANGE, None, body).await;
        assert_eq!((got, body["error"]["code"].as_str(), body["error"]["field"].as_str()), (status, Some(code), Some(field)), "{name}");
        assert!(!body.to_string().contains(POD_TOKEN), "{name}: {body}");
    }
    world.api.edit("/status/podRef", Value::Null);
    let (status, body) = world.exchange(&request(&key(1), TICKET, POD_TOKEN)).await;
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("pod_not_recorded")));
    assert_eq!(world.api.lock().writes, 0);
}

#[tokio::test]
async fn a_live_token_of_any_audience_is_renewed() {
    let world = world();
    let tokens = world.granted(&request(&key(1), TICKET, POD_TOKEN)).await;
    for (token, audience) in
        [(&tokens.model_token, Audience::Model), (&tokens.events_token, Audience::Events), (&tokens.approvals_token, Audience::Approvals)]
    {
        let (status, body) = world.post(RENEW, Some(token), Vec::new()).await;
        assert_eq!(status, 200, "{body}");
        let renewed: RenewResponse = serde_json::from_value(body).unwrap();
        assert!(ring().verify(&renewed.token, audience, NOW + 10).is_ok());
    }
    world.api.edit("/status/budget/gate", json!("Closed"));
    // A confirmation may be two seconds old; the watch knows earlier.
    world.gateway.state.runs.insert_for_test(world.api.run());
    assert_eq!(world.post(RENEW, Some(&tokens.model_token), Vec::new()).await.0, 401);
    assert_eq!(world.post(RENEW, Some(&tokens.events_token), Vec::new()).await.0, 200);
    world.api.edit("/status/phase", json!("Succeeded"));
    world.gateway.state.runs.insert_for_test(world.api.run());
    assert_eq!(world.post(RENEW, Some(&tokens.events_token), Vec::new()).await.0, 401);
    assert_eq!(world.post(RENEW, None, Vec::new()).await.0, 401);
}
