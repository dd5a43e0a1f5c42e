//! Streams that are ended from our side: the client leaves, the run loses its authority, the API server is gone.

use std::time::Instant;

use super::upstream::{Piece, Upstream, piece, stream};
use super::*;
use crate::fake_api::Fault;

const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";

/// A provider that streams one chunk and then says nothing, patiently awaited.
async fn slow() -> World {
    let world = World::new(Upstream::new(|_, _| stream(vec![piece(CHUNK), Piece::Hang])).await).await;
    let mut provider = provider(&world.upstream.url());
    provider.spec.timeouts.idle = Some("30s".into());
    provider.spec.timeouts.total = Some("60s".into());
    world.gateway.state.model.providers.put(provider);
    world
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_provider_and_pays_the_reservation() {
    let world = slow().await;
    let mut body = world.send(&streamed()).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), CHUNK);
    drop(body);
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.output_tokens), (1, 4096));
    assert_eq!(world.gateway.state.model.revocation.open_calls(), 0);
    assert_eq!(world.gateway.events.of(agentrun_protocol::event::EventType::ModelCall)[0]["status"], "client_gone");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_pays_the_reservation() {
    let world = World::new(Upstream::new(|_, _| stream(vec![])).await).await;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    world.gateway.state.model.providers.put(provider(&format!("http://{}/v1", listener.local_addr().unwrap())));
    let call = tokio::spawn({
        let sandbox = world.gateway.sandbox.clone();
        let request = Request::post("/v1/chat/completions").header("authorization", format!("Bearer {}", model_token()));
        async move { sandbox.oneshot(request.body(Body::from(hello().to_string())).unwrap()).await }
    });
    let (mut upstream, _) = listener.accept().await.unwrap();
    let mut first = [0; 4];
    tokio::io::AsyncReadExt::read_exact(&mut upstream, &mut first).await.unwrap();
    assert_eq!(&first, b"POST");
    call.abort();
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.output_tokens, spent.upstream_attempts), (1, 4096, 1));
    let mut rest = Vec::new();
    let closed = tokio::io::AsyncReadExt::read_to_end(&mut upstream, &mut rest);
    tokio::time::timeout(Duration::from_secs(5), closed).await.expect("the provider's connection is closed").unwrap();
}

#[tokio::test]
async fn a_run_that_loses_its_authority_loses_its_streams_within_two_seconds() {
    for (pointer, value) in [
        ("/status/budget/gate", json!("Closed")),
        ("/spec/cancel", json!(true)),
        ("/status/phase", json!("Failed")),
        ("/status/exchange/compromised", json!(true)),
    ] {
        let world = slow().await;
        let mut body = world.send(&streamed()).await.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), CHUNK);
        let revoked = Instant::now();
        world.api.edit(pointer, value);
        let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(revoked.elapsed() < Duration::from_secs(2), "{pointer}: {:?}", revoked.elapsed());
        assert_eq!(code(std::str::from_utf8(&last).unwrap().trim().strip_prefix("data: ").unwrap()), "inactive_run_token", "{pointer}");
        assert!(body.frame().await.unwrap().is_err(), "{pointer}: it does not look whole");
        assert_eq!(world.settled().await.spent.output_tokens, 4096, "{pointer}");
    }
}

/// The API server's own answer still says that the run is open, so it is the watch that cuts it.
#[tokio::test]
async fn what_the_watch_brings_cuts_a_stream_before_the_next_confirmation() {
    let world = slow().await;
    tokio::spawn(world.gateway.state.model.revocation.clone().heed_the_watch());
    let mut body = world.send(&streamed()).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), CHUNK);
    let mut run = world.api.run();
    run.spec.cancel = true;
    world.gateway.state.runs.insert_for_test(run);
    let last = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.unwrap().unwrap().unwrap().into_data().unwrap();
    assert_eq!(code(std::str::from_utf8(&last).unwrap().trim().strip_prefix("data: ").unwrap()), "inactive_run_token");
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_ends_streams_within_two_seconds() {
    for fault in [Fault::Hang, Fault::Broken] {
        let world = slow().await;
        let mut body = world.send(&streamed()).await.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), CHUNK);
        let gone = Instant::now();
        world.api.lock().read_fault = Some(fault);
        let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let last = std::str::from_utf8(&last).unwrap().trim().strip_prefix("data: ").unwrap();
        assert_eq!(code(last), "api_server_unavailable", "a retry may help");
        assert!(gone.elapsed() < Duration::from_millis(2200), "{fault:?}: {:?}", gone.elapsed());
        world.api.lock().read_fault = None;
        assert_eq!(world.settled().await.spent.output_tokens, 4096);
    }
}

#[tokio::test]
async fn a_stream_of_a_healthy_run_goes_on_beyond_two_seconds() {
    let world = slow().await;
    let mut body = world.send(&streamed()).await.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    let more = tokio::time::timeout(Duration::from_millis(3500), body.frame()).await;
    assert!(more.is_err(), "nothing ends it: {more:?}");
}

#[tokio::test]
async fn a_reservation_that_cannot_be_written_is_refused_in_time_and_given_back() {
    let world = slow().await;
    world.api.lock().patch_faults = vec![Fault::Hang].into();
    world.api.lock().read_fault = Some(Fault::Hang);
    // Confirmed a moment ago, so that the call gets as far as the ledger.
    world.gateway.state.runs.confirmed(tokio::time::Instant::now(), world.api.run());
    let asked = Instant::now();
    let (status, body) = world.ask(&hello()).await;
    assert_eq!((status, code(&body).as_str()), (503, "api_server_unavailable"));
    assert!(asked.elapsed() < Duration::from_millis(2200), "{:?}", asked.elapsed());
    world.api.lock().read_fault = None;
    world.gateway.state.ledger.idle().await;
    let budget = world.settled().await;
    assert_eq!((budget.spent.requests, world.upstream.seen().len()), (0, 0));
}

#[tokio::test]
async fn a_call_that_starts_on_an_old_confirmation_is_not_cut() {
    let world = slow().await;
    let since = tokio::time::Instant::now() - Duration::from_millis(1900);
    let permit = world.gateway.state.model.revocation.enter(&crate::fixtures::claims(Audience::Model), since, 64).unwrap();
    let cut = tokio::time::timeout(Duration::from_secs(1), permit.revoked().cancelled()).await;
    assert!(cut.is_err(), "the run is live and the API server answers");
}
