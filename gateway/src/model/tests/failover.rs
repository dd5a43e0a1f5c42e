//! Several providers of one model: who is asked, what each dispatch costs, and when one is left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::response::IntoResponse;
use http::StatusCode;
use http::header::RETRY_AFTER;

use super::dialects::{ALL, CHAT, Spoken};
use super::upstream::{Upstream, error, reply};
use super::*;

/// A world whose model is also at a second provider, with another name and prices.
async fn with_second(spoken: Spoken, first: Upstream, second: &Upstream) -> World {
    let mut run = run_json();
    run["status"]["resolved"]["model"]["fallbacks"] = json!([{
        "provider": "second", "model": "other-name", "maxOutputTokens": 100, "inputMicrosPerMillion": 10_000_000, "outputMicrosPerMillion": 20_000_000,
    }]);
    let world = spoken.world_with(run, first).await;
    world.gateway.state.model.providers.put(spoken.provider("second", second));
    world
}

#[tokio::test]
async fn another_provider_answers_and_all_of_it_is_one_request() {
    for spoken in ALL {
        let name = spoken.dialect;
        let second = Upstream::new(move |_, _| spoken.good()).await;
        let world = with_second(spoken, Upstream::new(|_, _| error(500)).await, &second).await;
        let response = spoken.send(&world, false).await;
        assert_eq!(response.status(), 200, "{name}");
        assert_eq!((world.upstream.seen().len(), second.seen().len()), (1, 1), "{name}");
        let sent = String::from_utf8(second.seen()[0].1.to_vec()).unwrap() + &second.paths()[0];
        assert!(sent.contains("other-name") && sent.contains(":100") && !sent.contains("fix-calc"), "{name}: {sent}");
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts, spent.input_tokens, spent.output_tokens), (1, 2, 30, 4), "{name}");
        assert_eq!(spent.cost_micros, 30 * 10 + 4 * 20, "{name}: at the prices of who answered");
    }
}

#[tokio::test]
async fn who_is_asked_next_depends_on_what_went_wrong() {
    let limited = || (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], "").into_response();
    type Answer = Box<dyn Fn() -> axum::response::Response + Send + Sync>;
    // status of the first, whether the second is asked, output charged for the first, with its 4,096 if it may have been taken
    let rows: Vec<(&str, Answer, bool)> = vec![
        ("503", Box::new(|| error(503)), true),
        ("529", Box::new(|| error(529)), true),
        ("429", Box::new(limited), true),
        ("401", Box::new(|| error(401)), true),
        ("404", Box::new(|| error(404)), true),
        ("400", Box::new(|| error(400)), false),
        ("422", Box::new(|| error(422)), false),
        ("an answer that is none", Box::new(|| reply("{}")), false),
    ];
    for (name, answer, asked) in rows {
        let second = Upstream::new(|_, _| CHAT.good()).await;
        let world = with_second(CHAT, Upstream::new(move |_, _| answer()).await, &second).await;
        let response = CHAT.send(&world, false).await;
        assert_eq!((response.status() == 200, second.seen().len()), (asked, usize::from(asked)), "{name}");
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts), (1, 1 + i64::from(asked)), "{name}");
    }
}

#[tokio::test]
async fn a_dispatch_that_may_have_been_taken_is_charged_beside_the_one_that_answers() {
    let second = Upstream::new(|_, _| CHAT.good()).await;
    let world = with_second(CHAT, Upstream::new(|_, _| CHAT.good()).await, &second).await;
    // It takes the request and says nothing.
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    world.gateway.state.model.providers.put(provider(&format!("http://{}/v1", silent.local_addr().unwrap())));
    assert_eq!(CHAT.send(&world, false).await.status(), 200);
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (1, 2, 4096 + 4));
}

#[tokio::test]
async fn a_provider_without_its_key_is_passed_over_and_the_request_still_counts() {
    let second = Upstream::new(|_, _| CHAT.good()).await;
    let world = with_second(CHAT, Upstream::new(|_, _| CHAT.good()).await, &second).await;
    let mut keyless = CHAT.provider("scripted", &world.upstream);
    keyless.spec.secret_ref.name = "none".into();
    world.gateway.state.model.providers.put(keyless);
    assert_eq!(CHAT.send(&world, false).await.status(), 200);
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (1, 1, 4));
    assert_eq!(world.upstream.seen().len(), 0);
}

#[tokio::test]
async fn a_budget_that_has_no_room_for_the_second_dispatch_ends_it() {
    let mut run = run_json();
    run["status"]["budget"]["limit"]["inputTokens"] = json!(400);
    let second = Upstream::new(|_, _| CHAT.good()).await;
    run["status"]["resolved"]["model"]["fallbacks"] = json!([{ "provider": "second", "model": "other-name", "maxOutputTokens": 100 }]);
    let world = CHAT.world_with(run, Upstream::new(|_, _| CHAT.good()).await).await;
    world.gateway.state.model.providers.put(CHAT.provider("second", &second));
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    world.gateway.state.model.providers.put(provider(&format!("http://{}/v1", silent.local_addr().unwrap())));
    let response = CHAT.send(&world, false).await;
    assert_eq!((response.status().as_u16(), code(&text(response).await).as_str()), (504, "provider_timeout"));
    assert_eq!(second.seen().len(), 0);
    assert_eq!(world.settled().await.spent.upstream_attempts, 1);
}

#[tokio::test]
async fn a_provider_that_keeps_failing_is_left_alone() {
    let (down, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let first = Upstream::new({
        let (down, asked) = (down.clone(), asked.clone());
        move |_, _| {
            asked.fetch_add(1, Ordering::Relaxed);
            if down.load(Ordering::Relaxed) { error(500) } else { CHAT.good() }
        }
    });
    let second = Upstream::new(|_, _| CHAT.good()).await;
    let mut run = run_json();
    run["status"]["budget"]["limit"]["requests"] = json!(100);
    run["status"]["resolved"]["model"]["fallbacks"] = json!([{ "provider": "second", "model": "other-name", "maxOutputTokens": 100 }]);
    let world = CHAT.world_with(run, first.await).await;
    world.gateway.state.model.providers.put(CHAT.provider("second", &second));
    for _ in 0..10 {
        assert_eq!(CHAT.send(&world, false).await.status(), 200);
    }
    let asked = asked.load(Ordering::Relaxed);
    assert!((5..10).contains(&asked), "after five failures hardly anybody asks it: {asked}");
    assert_eq!(second.seen().len(), 10);

    // Alone, it is refused without being asked, and says when to come back; nothing is charged.
    let world = CHAT.world(Upstream::new(|_, _| error(500)).await).await;
    let mut last = None;
    for _ in 0..4 {
        last = Some(CHAT.send(&world, false).await);
    }
    let last = last.unwrap();
    assert_eq!(last.status(), 503);
    let wait: u64 = last.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&wait), "{wait}");
    assert_eq!(code(&text(last).await), "provider_unavailable");
    assert_eq!(world.upstream.seen().len(), 6);
    assert_eq!(world.settled().await.spent.requests, 3);
}

#[tokio::test]
async fn a_provider_that_asks_for_a_short_wait_is_asked_once_more() {
    for (seconds, attempts, status) in [("1", 2, 200), ("7", 1, 429)] {
        let world = CHAT
            .world(
                Upstream::new(move |n, _| {
                    if n == 0 { (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)], "").into_response() } else { CHAT.good() }
                })
                .await,
            )
            .await;
        assert_eq!(CHAT.send(&world, false).await.status().as_u16(), status, "{seconds}");
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts), (1, attempts), "{seconds}");
    }
}
