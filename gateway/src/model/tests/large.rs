//! Large answers are held whole until their usage is known: so many at a time, and the others wait at the provider.

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::dialects::CHAT;
use super::raw::{Raw, Step, body, of_length, say};
use super::wire::{nobody, patient};
use super::*;
use crate::model::LARGE_OF_A_RUN;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_large_answers_few_are_held_and_all_arrive() {
    const CALLS: usize = 6;
    // More than sockets take by themselves.
    let large = format!("{}{}", " ".repeat(12 << 20), body(CHAT, false));
    let (recorded, small) = (large.clone(), body(CHAT, false));
    let raw = Raw::new(move |number| {
        let (begin, end) = recorded.split_at(recorded.len() - 1);
        match number {
            CALLS => vec![say(of_length(false, small.len()) + &small)],
            _ => vec![say(of_length(false, recorded.len()) + begin), Step::Held, say(end)],
        }
    })
    .await;
    let world = nobody(CHAT, run_json()).await;
    let mut provider = patient(CHAT, &raw);
    provider.spec.caps.response_bytes = Some(16 << 20);
    world.gateway.state.model.providers.put(provider);

    let mut calls: FuturesUnordered<_> = (0..CALLS).map(|_| async { all(CHAT.send(&world, false).await).await }).collect();
    let begun = async {
        raw.until(|progress| progress.requests == CALLS && progress.held == LARGE_OF_A_RUN).await;
        let (answer, clean) = all(CHAT.send(&world, false).await).await;
        assert!(clean && answer == body(CHAT, false), "a small one waits for nobody");
        assert_eq!(raw.progress().held, LARGE_OF_A_RUN, "large answers are taken in beyond their places");
        raw.release();
    };
    let arriving = async {
        while calls.next().await.is_some_and(|(answer, clean)| {
            assert!(clean && answer == large);
            true
        }) {}
    };
    tokio::join!(begun, arriving);
    assert_eq!(raw.progress().held, CALLS);
    assert_eq!(world.settled().await.spent.requests, CALLS as i64 + 1);
}
