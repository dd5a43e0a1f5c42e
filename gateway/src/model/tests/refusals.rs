//! Who is not let in, and bodies that are not forwarded: nothing is written, nothing is sent, nothing is charged.

use agentrun_crds::budget::Spent;

use super::upstream::{Upstream, completion};
use super::*;

#[tokio::test]
async fn every_wrong_token_is_the_same_401() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let good = fixtures::claims(Audience::Model);
    let forged = agentrun_protocol::token::KeyRing::new([(1, vec![8; 32])]).unwrap().mint(&good);
    let mut tampered = model_token();
    tampered.replace_range(10..11, if &tampered[10..11] == "A" { "B" } else { "A" });
    let rows = vec![
        ("empty", String::new()),
        ("no token", "x".into()),
        ("forged", forged),
        ("tampered", tampered),
        ("truncated", model_token()[..100].to_owned()),
        ("events audience", token(Claims { audience: Audience::Events, ..good })),
        ("approvals audience", token(Claims { audience: Audience::Approvals, ..good })),
        ("other run", token(Claims { run_uid: [5; 16], ..good })),
        ("other attempt", token(Claims { attempt: 2, ..good })),
        ("other Pod", token(Claims { pod_uid: [5; 16], ..good })),
        ("other holder", token(Claims { nonce: [5; 16], ..good })),
        ("expired", token(Claims { expires_at: fixtures::NOW + 10, ..good })),
        ("of the future", token(Claims { issued_at: fixtures::NOW + 1000, ..good })),
    ];
    for (name, token) in rows {
        let response = send(&world.gateway, &token, hello().to_string()).await;
        assert_eq!(response.status(), 401, "{name}");
        let body: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(body["error"]["code"], "inactive_run_token", "{name}");
    }
    let bare = Request::post("/v1/chat/completions").body(Body::from(hello().to_string())).unwrap();
    assert_eq!(world.gateway.sandbox.clone().oneshot(bare).await.unwrap().status(), 401);
    assert_eq!((world.api.lock().writes, world.upstream.seen().len()), (0, 0));
}

#[tokio::test]
async fn a_run_that_is_not_open_is_refused() {
    for (pointer, value) in [
        ("/status/budget/gate", json!("Closed")),
        ("/status/budget", Value::Null),
        ("/status/phase", json!("Succeeded")),
        ("/status/finishedAt", json!("2026-11-30T00:00:00Z")),
        ("/spec/cancel", json!(true)),
        ("/metadata/deletionTimestamp", json!("2026-11-30T00:00:00Z")),
        ("/status/exchange/compromised", json!(true)),
        ("/status/exchange", Value::Null),
        ("/status/podRef", Value::Null),
    ] {
        let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
        world.api.edit(pointer, value); // the watch has not seen it yet
        let (status, body) = world.ask(&hello()).await;
        assert_eq!((status, code(&body).as_str()), (401, "inactive_run_token"), "{pointer}");
        assert_eq!(world.upstream.seen().len(), 0, "{pointer}");
    }
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    world.api.lock().run = Value::Null;
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (401, "inactive_run_token"), "deleted");
}

#[tokio::test]
async fn a_bad_body_costs_nothing() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let image = json!({ "model": "demo", "messages": [{ "content": [{ "type": "image_url", "image_url": { "url": "http://x" } }] }] });
    for (body, status, expected) in [
        ("{".to_owned(), 400, "malformed_body"),
        ("[]".to_owned(), 400, "invalid_body"),
        (String::new(), 400, "malformed_body"),
        (json!({ "model": "other", "messages": [{}] }).to_string(), 404, "model_not_offered"),
        (image.to_string(), 400, "unsupported_content"),
        (json!({ "model": "demo", "messages": [{}], "n": 2 }).to_string(), 400, "unsupported_value"),
        (json!({ "model": "demo", "messages": [{ "content": "x".repeat(20_000) }] }).to_string(), 413, "too_large"),
    ] {
        let response = send(&world.gateway, &model_token(), body.clone()).await;
        assert_eq!(response.status().as_u16(), status, "{body:.80}");
        assert_eq!(code(&text(response).await), expected, "{body:.80}");
    }
    let coded = Request::post("/v1/chat/completions")
        .header("authorization", format!("Bearer {}", model_token()))
        .header("content-encoding", "gzip");
    let response = world.gateway.sandbox.clone().oneshot(coded.body(Body::from("x")).unwrap()).await.unwrap();
    assert_eq!(response.status(), 415);
    assert_eq!((world.api.budget().spent, world.api.lock().writes, world.upstream.seen().len()), (Spent::default(), 0, 0));
}

#[tokio::test]
async fn an_unpriced_model_under_a_cost_limit_is_refused() {
    let mut run = run_json();
    run["status"]["budget"]["limit"]["costMicros"] = json!(1_000_000);
    run["status"]["resolved"]["model"]["inputMicrosPerMillion"] = Value::Null;
    let world = World::with(run, Upstream::new(|_, _| completion(1, 1)).await).await;
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (403, "unpriced_model"));
    assert_eq!(world.upstream.seen().len(), 0);
}

#[tokio::test]
async fn every_route_wants_a_token() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    for (method, path, access) in crate::app::SANDBOX_ROUTES {
        let path = path.replace("{digest}", &format!("sha256:{}", "0".repeat(64)));
        for token in [None, Some("ar1.x.y".to_owned()), Some(token(Claims { nonce: [5; 16], ..fixtures::claims(Audience::Events) }))] {
            let mut request = Request::builder().method(*method).uri(&path).header("content-type", "application/json");
            if let Some(token) = &token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = world.gateway.sandbox.clone().oneshot(request.body(Body::from("{}")).unwrap()).await.unwrap();
            let expected = if *access == crate::app::Access::Exchange { 400 } else { 401 };
            assert_eq!(response.status().as_u16(), expected, "{method} {path} {token:?}");
        }
    }
}
