//! The hard budget: parallel calls, two processes, conflicts, lost answers, orphans.

use std::collections::BTreeMap;

use agentrun_crds::budget::Gate;
use agentrun_protocol::event::EventType;
use serde_json::json;

use super::upstream::{Upstream, completion};
use super::*;
use crate::budget::{Ask, NotAdmitted, Orphans};
use crate::fake_api::Fault;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_parallel_calls_on_two_gateways_exactly_the_10_left_pass() {
    let world = World::new(Upstream::new(|_, _| completion(5, 5)).await).await;
    world.api.lock().latency = Duration::from_millis(2);
    // The operator writes in between.
    world.api.lock().patch_faults = std::iter::repeat_n(Fault::Conflict, 5).collect();
    let other = start(&world.api, "gw-1", &world.upstream);
    let calls = (0..64).map(|n| {
        let gateway = if n % 2 == 0 { world.gateway.sandbox.clone() } else { other.sandbox.clone() };
        let request = Request::post("/v1/chat/completions").header("authorization", format!("Bearer {}", model_token()));
        let request = request.body(Body::from(hello().to_string())).unwrap();
        tokio::spawn(async move {
            let response = gateway.oneshot(request).await.unwrap();
            let retry = response.headers().get("x-should-retry").map(|value| value.to_str().unwrap().to_owned());
            let (status, body) = (response.status().as_u16(), text(response).await);
            (status, if status == 200 { String::new() } else { format!("{} {retry:?}", code(&body)) })
        })
    });
    let mut counts: BTreeMap<(u16, String), usize> = BTreeMap::new();
    for call in futures::future::join_all(calls).await {
        *counts.entry(call.unwrap()).or_default() += 1;
    }
    let refused = (403, "model_request_budget_exhausted Some(\"false\")".to_owned());
    assert_eq!(counts, BTreeMap::from([((200, String::new()), 10), (refused, 54)]));
    assert_eq!(world.upstream.seen().len(), 10);
    let budget = world.settled().await;
    assert_eq!((budget.spent.requests, budget.spent.upstream_attempts, budget.spent.input_tokens), (10, 10, 50));
}

#[tokio::test]
async fn a_refusal_says_which_budget_and_is_an_event_once() {
    let mut run = run_json();
    run["status"]["budget"]["spent"]["requests"] = json!(10);
    let world = World::with(run, Upstream::new(|_, _| completion(1, 1)).await).await;
    for _ in 0..2 {
        let response = world.send(&hello()).await;
        assert_eq!((response.status().as_u16(), response.headers()["x-should-retry"].to_str().unwrap()), (403, "false"));
        let body: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(body["error"]["code"], "model_request_budget_exhausted");
        assert_eq!(body["error"]["type"], "insufficient_quota");
        assert_eq!(body["error"]["field"], "budget.requests");
    }
    world.settled().await;
    let events = world.gateway.events.0.lock().unwrap().clone();
    assert_eq!(events[0], ("budget-exhausted-requests".into(), EventType::Budget, json!({ "gate": "Open", "dimension": "requests" })));
    assert!(events.iter().all(|event| *event == events[0]), "the same key and data, so one event in the log");
    assert_eq!((world.api.lock().writes, world.upstream.seen().len()), (0, 0));
}

#[tokio::test]
async fn what_is_only_reserved_may_be_asked_for_again() {
    let mut run = run_json();
    run["status"]["budget"]["limit"]["outputTokens"] = json!(100);
    run["status"]["budget"]["reservations"] = json!([{ "id": "a", "holder": "gw-1/x", "requests": 1, "inputTokens": 1, "outputTokens": 100, "costMicros": 0, "since": fixtures::NOW }]);
    let world = World::with(run, Upstream::new(|_, _| completion(1, 1)).await).await;
    let response = world.send(&hello()).await;
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    assert_eq!(code(&text(response).await), "too_many_calls_in_flight");
}

#[tokio::test]
async fn more_than_was_reserved_is_shown_and_closes_the_budget() {
    let world = World::new(Upstream::new(|_, _| completion(1, 5000)).await).await;
    assert_eq!(world.ask(&hello()).await.0, 200);
    let budget = world.settled().await;
    assert_eq!((budget.gate, budget.spent.output_tokens, budget.overrun.unwrap().output_tokens), (Gate::Closed, 5000, 904));
    assert_eq!(world.gateway.events.of(EventType::Budget), [json!({ "gate": "Closed", "dimension": "overrun" })]);
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (401, "inactive_run_token"));
}

#[tokio::test]
async fn every_fault_of_a_status_write_leaves_one_charge() {
    for faults in [
        vec![Fault::Conflict; 3],
        vec![Fault::Broken],
        vec![Fault::ReplyLost],
        vec![Fault::ReplyLost, Fault::Conflict, Fault::ReplyLost],
        vec![Fault::Conflict, Fault::Broken, Fault::ReplyLost],
    ] {
        let world = World::new(Upstream::new(|_, _| completion(7, 3)).await).await;
        world.api.lock().patch_faults = faults.clone().into();
        let (status, body) = world.ask(&hello()).await;
        assert_eq!(status, 200, "{faults:?} {body}");
        let budget = world.settled().await;
        assert_eq!((budget.spent.requests, budget.spent.input_tokens, budget.spent.output_tokens), (1, 7, 3), "{faults:?}");
        assert_eq!(world.upstream.seen().len(), 1, "{faults:?}");
    }
}

#[tokio::test]
async fn a_dead_api_server_admits_nothing() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    world.api.lock().read_fault = Some(Fault::Broken);
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (503, "api_server_unavailable"));
    assert_eq!(world.upstream.seen().len(), 0);
    world.api.lock().read_fault = None;
    assert_eq!(world.ask(&hello()).await.0, 200);
    assert_eq!(world.settled().await.spent.requests, 1);
}

const ASK: Ask = Ask { requests: 1, input_tokens: 10, output_tokens: 20, price: None };

#[tokio::test]
async fn dropping_a_reservation_gives_it_back_and_dropping_a_dispatched_one_charges_it() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let ledger = &world.gateway.state.ledger;
    let reserve = || ledger.reserve(std::sync::Arc::new(world.api.run()), fixtures::claims(Audience::Model), ASK);
    let Ok(reserved) = reserve().await else { panic!("refused") };
    assert_eq!(world.api.budget().reservations.len(), 1);
    drop(reserved);
    let budget = world.settled().await;
    assert_eq!((budget.spent.requests, budget.spent.output_tokens), (0, 0));
    let Ok(reserved) = reserve().await else { panic!("refused") };
    drop(reserved.dispatch());
    let budget = world.settled().await;
    assert_eq!((budget.spent.requests, budget.spent.output_tokens, budget.spent.upstream_attempts), (1, 20, 1));
    // Nobody waits for the answer: it is given back too.
    let waiting = reserve();
    drop(waiting);
    ledger.idle().await;
    assert_eq!(world.settled().await.spent.requests, 1);
}

#[tokio::test]
async fn a_reservation_is_refused_on_the_object_it_would_be_written_to() {
    for (pointer, value) in [
        ("/status/budget/gate", json!("Closed")),
        ("/status/phase", json!("Cancelled")),
        ("/spec/cancel", json!(true)),
        ("/status/attempt", json!(2)),
        ("/status/exchange/compromised", json!(true)),
        ("/metadata/uid", json!("33333333-3333-4333-8333-333333333333")),
    ] {
        let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
        let before = std::sync::Arc::new(world.api.run());
        world.api.edit(pointer, value);
        let refused = world.gateway.state.ledger.reserve(before, fixtures::claims(Audience::Model), ASK).await;
        assert!(matches!(refused, Err(NotAdmitted::Inactive)), "{pointer}");
        assert!(world.api.lock().writes == 0, "{pointer}");
    }
}

#[tokio::test]
async fn closing_in_between_charges_once() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let ledger = &world.gateway.state.ledger;
    let Ok(reserved) = ledger.reserve(std::sync::Arc::new(world.api.run()), fixtures::claims(Audience::Model), ASK).await else {
        panic!("refused")
    };
    let dispatched = reserved.dispatch();
    let mut budget = world.api.budget();
    budget.close();
    world.api.edit("/status/budget", serde_json::to_value(&budget).unwrap());
    drop(dispatched);
    ledger.idle().await;
    assert_eq!(world.settled().await, budget);
}

#[tokio::test]
async fn what_an_earlier_life_left_open_is_charged_in_full() {
    let mut run = run_json();
    run["status"]["budget"]["reservations"] = json!([
        { "id": "mine", "holder": "gw-0/earlier", "requests": 1, "inputTokens": 11, "outputTokens": 22, "costMicros": 0, "since": fixtures::NOW },
        { "id": "live", "holder": "gw-1/other", "requests": 1, "inputTokens": 5, "outputTokens": 5, "costMicros": 0, "since": fixtures::NOW },
    ]);
    let world = World::with(run, Upstream::new(|_, _| completion(1, 1)).await).await;
    let state = &world.gateway.state;
    let orphans = Orphans {
        ledger: state.ledger.clone(),
        accounts: state.accounts.clone(),
        clock: state.clock.clone(),
        longest_call: Box::new(|| 600),
    };
    let sweeping = tokio::spawn(orphans.run());
    world.api.until("charged", |run| run.status.as_ref().unwrap().budget.as_ref().unwrap().spent.requests == 1).await;
    sweeping.abort();
    let budget = world.api.budget();
    assert_eq!((budget.spent.input_tokens, budget.spent.output_tokens), (11, 22));
    assert_eq!(budget.reservations.iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["live"]);
}

#[tokio::test]
async fn calls_beyond_the_rate_are_told_when_to_come_again_and_cost_nothing() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let limits = crate::budget::RateLimits { run: std::num::NonZeroU32::new(3), namespace: None };
    let limited = fixtures::gateway_with(&world.api, "gw-1", limits);
    limited.state.model.providers.put(provider(&world.upstream.url()));
    for _ in 0..3 {
        let response = send(&limited, &model_token(), hello().to_string()).await;
        assert_eq!(response.status().as_u16(), 200);
        text(response).await;
    }
    let response = send(&limited, &model_token(), hello().to_string()).await;
    let retry: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!((response.status().as_u16(), (18..=20).contains(&retry)), (429, true), "{retry}");
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((&body["error"]["code"], &body["error"]["type"]), (&json!("rate_limited"), &json!("rate_limit_error")));
    assert_eq!((world.settled().await.spent.requests, world.upstream.seen().len()), (3, 3));
}
