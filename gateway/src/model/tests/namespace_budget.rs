//! What all runs of a namespace may spend in a period: exact, over two processes, over a period's end, while limits change.

use agentrun_crds::agent_policy_status::PeriodStatus;
use agentrun_crds::period::Period;
use agentrun_protocol::event::EventType;
use serde_json::json;

use super::upstream::{Upstream, completion};
use super::*;
use crate::budget::{Ask, NotAdmitted, Reserved};

const ASK: Ask = Ask { requests: 1, input_tokens: 10, output_tokens: 5, price: None };

/// The world's run, under these budgets of its namespace.
async fn world(budgets: Value) -> World {
    let upstream = Upstream::new(|_, _| completion(5, 5)).await;
    let world = World::new(upstream).await;
    world.api.set_policy(budgets, json!({}));
    show(&world.gateway, &world);
    world
}

/// As the watch would.
fn show(gateway: &Gateway, world: &World) {
    gateway.state.policies.insert_for_test(world.api.policy());
}

fn a_day(limit: Value) -> Value {
    json!([{ "period": "Day", "limit": limit }])
}

async fn reserve(world: &World) -> Result<Reserved, NotAdmitted> {
    world.gateway.state.ledger.reserve(std::sync::Arc::new(world.api.run()), fixtures::claims(Audience::Model), ASK).await
}

/// Once nobody holds anything in the period.
async fn settled(world: &World, period: Period) -> PeriodStatus {
    let waiting = async {
        loop {
            let status = world.api.period(period);
            if status.reservations.is_empty() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("something is held for ever");
    world.settled().await;
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_parallel_calls_on_two_gateways_the_namespace_lets_exactly_7_pass() {
    let world = world(a_day(json!({ "requests": 7 }))).await;
    world.api.lock().latency = Duration::from_millis(2);
    let other = start(&world.api, "gw-1", &world.upstream);
    let calls = (0..64).map(|n| {
        let gateway = if n % 2 == 0 { world.gateway.sandbox.clone() } else { other.sandbox.clone() };
        let request = Request::post("/v1/chat/completions").header("authorization", format!("Bearer {}", model_token()));
        let request = request.body(Body::from(hello().to_string())).unwrap();
        tokio::spawn(async move { gateway.oneshot(request).await.unwrap().status().as_u16() })
    });
    let statuses: Vec<u16> = futures::future::join_all(calls).await.into_iter().map(Result::unwrap).collect();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    // The run's last requests may be held for calls that the namespace refuses a moment later.
    assert_eq!((count(200), count(403) + count(429)), (7, 57), "{statuses:?}");
    let status = settled(&world, Period::Day).await;
    assert_eq!((status.spent.requests, status.used_percent, status.warned), (7, 100, 100));
    assert_eq!((world.api.budget().spent.requests, world.upstream.seen().len()), (7, 7), "what was refused cost the run nothing");
}

#[tokio::test]
async fn a_refusal_is_final_and_says_when_the_next_period_begins() {
    let world = world(a_day(json!({ "requests": 1 }))).await;
    assert_eq!(world.ask(&hello()).await.0, 200);
    for _ in 0..2 {
        let response = world.send(&hello()).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!((response.status().as_u16(), header("x-should-retry"), header("retry-after")), (403, "false".into(), "3600".into()));
        let body: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(body["error"]["code"], "namespace_budget_exhausted");
        assert_eq!(body["error"]["type"], "insufficient_quota");
        assert!(body["error"]["message"].as_str().unwrap().contains("2027-01-16T00:00:00Z"), "{body}");
    }
    settled(&world, Period::Day).await;
    let events = world.gateway.events.of(EventType::Budget);
    let event = json!({ "gate": "Open", "dimension": "requests", "namespacePeriod": "Day", "until": "2027-01-16T00:00:00Z" });
    assert_eq!(events, [event.clone(), event], "the same data under one key, so one event in the log");
}

#[tokio::test]
async fn what_one_period_refuses_is_given_back_to_the_other_and_to_the_run() {
    let world = world(json!([
        { "period": "Hour", "limit": { "requests": 5 } },
        { "period": "Month", "limit": { "requests": 2 } },
    ]))
    .await;
    for _ in 0..2 {
        assert_eq!(world.ask(&hello()).await.0, 200);
    }
    assert_eq!(code(&world.ask(&hello()).await.1), "namespace_budget_exhausted");
    assert_eq!(settled(&world, Period::Hour).await.spent.requests, 2);
    assert_eq!(settled(&world, Period::Month).await.spent.requests, 2);
    assert_eq!(world.api.budget().spent.requests, 2);
}

#[tokio::test]
async fn a_call_is_charged_to_the_period_in_which_it_was_reserved() {
    let world = world(json!([{ "period": "Hour", "limit": { "requests": 1 } }])).await;
    let across = reserve(&world).await.expect("there is room").dispatch();
    assert!(matches!(reserve(&world).await, Err(NotAdmitted::NamespaceExhausted { .. })));
    let before = world.api.period(Period::Hour);
    world.api.set_clock(before.ends_at.0.as_second());
    let after = reserve(&world).await.expect("a new hour").dispatch();
    let standing = world.api.period(Period::Hour);
    assert_eq!((standing.starts_at, standing.spent.requests, standing.reservations.len()), (before.ends_at, 0, 1));
    drop(across.settle(crate::budget::Charge::Full { attempts: 1 }));
    assert!(matches!(reserve(&world).await, Err(NotAdmitted::NamespaceExhausted { .. })));
    drop(after.settle(crate::budget::Charge::Full { attempts: 1 }));
    world.gateway.state.ledger.idle().await;
    assert_eq!(settled(&world, Period::Hour).await.spent.requests, 1, "the call of the last hour counts in no other");
    assert_eq!(world.api.budget().spent.requests, 2);
}

#[tokio::test]
async fn a_gateway_whose_clock_is_behind_books_in_the_period_that_has_begun() {
    let world = world(json!([{ "period": "Hour", "limit": { "requests": 2 } }])).await;
    let start = world.api.clock().load(std::sync::atomic::Ordering::Relaxed);
    world.api.set_clock(start + 3600);
    drop(reserve(&world).await.expect("there is room").dispatch());
    let begun = settled(&world, Period::Hour).await.starts_at;
    world.api.set_clock(start);
    drop(reserve(&world).await.expect("there is room").dispatch());
    world.gateway.state.ledger.idle().await;
    let status = settled(&world, Period::Hour).await;
    assert_eq!((status.starts_at, status.spent.requests), (begun, 2));
}

#[tokio::test]
async fn a_lower_limit_counts_at_once_also_for_what_is_held_in_advance_and_a_higher_one_too() {
    let mut run = run_json();
    run["status"]["budget"]["limit"]["requests"] = json!(5000);
    let upstream = Upstream::new(|_, _| completion(5, 5)).await;
    let world = World::with(run, upstream).await;
    world.api.set_policy(a_day(json!({ "requests": 1000 })), json!({}));
    show(&world.gateway, &world);
    for _ in 0..4 {
        drop(reserve(&world).await.expect("there is room").dispatch());
    }
    let held = world.api.period(Period::Day).reservations;
    assert!(held.iter().any(|r| r.slice), "nothing is held in advance, so this tests nothing: {held:?}");
    world.api.set_policy(a_day(json!({ "requests": 3 })), json!({}));
    show(&world.gateway, &world);
    assert!(matches!(reserve(&world).await, Err(NotAdmitted::NamespaceExhausted { .. } | NotAdmitted::Contended(_))));
    world.gateway.state.ledger.idle().await;
    let status = settled(&world, Period::Day).await;
    assert_eq!((status.limit.requests, status.spent.requests, status.used_percent), (Some(3), 4, 133));
    world.api.set_policy(a_day(json!({ "requests": 5 })), json!({}));
    show(&world.gateway, &world);
    drop(reserve(&world).await.expect("there is room again").dispatch());
    assert!(matches!(reserve(&world).await, Err(NotAdmitted::NamespaceExhausted { .. })));
    // Without a budget there is none, and what was spent stays.
    world.gateway.state.ledger.idle().await;
    world.api.set_policy(json!([]), json!({}));
    show(&world.gateway, &world);
    drop(reserve(&world).await.expect("there is no limit").dispatch());
    assert_eq!(settled(&world, Period::Day).await.spent.requests, 5);
}

#[tokio::test]
async fn a_changed_limit_shows_without_a_call() {
    let world = world(a_day(json!({ "requests": 100 }))).await;
    drop(reserve(&world).await.expect("there is room").dispatch());
    world.gateway.state.ledger.idle().await;
    assert_eq!(settled(&world, Period::Day).await.limit.requests, Some(100));
    let other = start(&world.api, "gw-1", &world.upstream);
    for (limit, percent) in [(1, 100), (5, 20)] {
        world.api.set_policy(a_day(json!({ "requests": limit })), json!({}));
        show(&world.gateway, &world);
        show(&other, &world);
        let shown = async {
            while world.api.period(Period::Day).limit.requests != Some(limit) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), shown).await.expect("the new limit in status");
        world.gateway.state.ledger.idle().await;
        other.state.ledger.idle().await;
        let status = settled(&world, Period::Day).await;
        assert_eq!((status.spent.requests, status.used_percent), (1, percent));
    }
}

#[tokio::test]
async fn two_gateways_tell_of_80_and_of_100_per_cent_once_each() {
    let world = world(a_day(json!({ "requests": 5 }))).await;
    let other = start(&world.api, "gw-1", &world.upstream);
    for n in 0..7 {
        let gateway = if n % 2 == 0 { &world.gateway } else { &other };
        text(send(gateway, &model_token(), hello().to_string()).await).await;
        gateway.state.ledger.idle().await;
    }
    let told = async {
        while world.api.lock().events.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("two Events");
    settled(&world, Period::Day).await;
    let mut events: Vec<(String, String)> = Vec::new();
    for event in world.api.lock().events.values() {
        let word = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        assert_eq!((word("type"), &event["regarding"]["kind"]), ("Warning".into(), &json!("AgentPolicy")));
        events.push((word("reason"), word("note")));
    }
    events.sort();
    assert_eq!(events[0].0, "NamespaceBudgetLow");
    assert!(events[0].1.contains("4 of 5 requests"), "{events:?}");
    assert_eq!(events[1].0, "NamespaceBudgetSpent");
    assert!(events[1].1.contains("5 of 5 requests") && events[1].1.contains("2027-01-16T00:00:00Z"), "{events:?}");
    let posted = world.api.lock().requests.iter().filter(|request| request.ends_with("/events")).count();
    assert_eq!((events.len(), posted), (2, 2), "and nobody tried a second time");
}

#[tokio::test]
async fn a_provider_that_takes_more_than_was_reserved_closes_the_run_and_not_the_namespace() {
    let upstream = Upstream::new(|_, _| completion(5, 5000)).await;
    let mut run = run_json();
    run["status"]["budget"]["limit"]["outputTokens"] = json!(20);
    let world = World::with(run, upstream).await;
    world.api.set_policy(a_day(json!({ "requests": 10, "outputTokens": 9000 })), json!({}));
    show(&world.gateway, &world);
    world.ask(&hello()).await;
    world.gateway.state.ledger.idle().await;
    let status = settled(&world, Period::Day).await;
    assert_eq!((status.spent.output_tokens, status.overrun.map(|over| over.output_tokens)), (5000, Some(4980)));
    assert_eq!(world.api.budget().gate, agentrun_crds::budget::Gate::Closed);
    let account = crate::budget::Account::of_period(std::sync::Arc::new(world.api.policy().unwrap()), Period::Day, status.starts_at.0);
    assert!(!account.is_ending(), "other runs go on");
}

#[tokio::test]
async fn a_policy_that_is_deleted_and_made_again_has_not_spent_less() {
    let world = world(a_day(json!({ "requests": 3 }))).await;
    for _ in 0..2 {
        drop(reserve(&world).await.expect("there is room").dispatch());
    }
    world.gateway.state.ledger.idle().await;
    assert_eq!(settled(&world, Period::Day).await.spent.requests, 2);
    world.api.forget_policy_status();
    show(&world.gateway, &world);
    drop(reserve(&world).await.expect("there is room for one").dispatch());
    assert!(matches!(reserve(&world).await, Err(NotAdmitted::NamespaceExhausted { .. })));
    world.gateway.state.ledger.idle().await;
    assert_eq!(settled(&world, Period::Day).await.spent.requests, 3);
}

#[tokio::test]
async fn a_policy_bounds_how_often_and_how_many_at_once() {
    let world = world(json!([])).await;
    world.api.set_policy(json!([]), json!({ "requestsPerMinutePerRun": 2, "maxInFlightPerRun": 1 }));
    show(&world.gateway, &world);
    let since = tokio::time::Instant::now();
    let limits = world.gateway.state.call_limits("team");
    let permit = world.gateway.state.model.revocation.enter(&fixtures::claims(Audience::Model), since, limits.in_flight).unwrap();
    assert_eq!(code(&world.ask(&hello()).await.1), "too_many_calls_in_flight");
    drop(permit);
    for _ in 0..2 {
        assert_eq!(world.ask(&hello()).await.0, 200);
    }
    assert_eq!(code(&world.ask(&hello()).await.1), "rate_limited");
    assert_eq!(world.gateway.state.call_limits("elsewhere").in_flight, 64);
}
