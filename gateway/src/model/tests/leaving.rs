//! Clients that leave, over the real listener: the provider stops at once, the reservation is charged, and an answer that comes all
//! the same changes nothing.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::listening;
use super::dialects::{ALL, FULL, Spoken};
use super::raw::{Raw, Step, good, of_length, say};
use super::wire::against;
use super::*;

/// A client that has sent its call.
async fn calling(spoken: Spoken, address: SocketAddr, streamed: bool) -> TcpStream {
    let (path, body, token) = (spoken.paths[usize::from(streamed)], spoken.body(streamed), model_token());
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n");
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all((head + &body).as_bytes()).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_stops_the_provider_within_a_second() {
    for spoken in ALL {
        let raw = Raw::new(move |_| vec![say(of_length(true, 100_000) + spoken.chunk), Step::Hang]).await;
        let world = against(spoken, &raw, run_json()).await;
        let (address, stop) = listening(&world).await;
        let mut client = calling(spoken, address, true).await;
        let (mut seen, first) = (Vec::new(), spoken.chunk.lines().next().unwrap());
        while !String::from_utf8_lossy(&seen).contains(first) {
            assert_ne!(client.read_buf(&mut seen).await.unwrap(), 0, "{}", spoken.dialect);
        }
        assert_eq!(raw.progress().done, 0);
        let left = Instant::now();
        drop(client);
        raw.until(|progress| progress.done == 1).await;
        assert!(left.elapsed() < Duration::from_secs(1), "{}: {:?}", spoken.dialect, left.elapsed());
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (1, 1, FULL), "{}", spoken.dialect);
        stop.now.cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_the_end_changes_nothing() {
    for spoken in ALL {
        for (streamed, cancelled) in [(false, false), (true, false), (false, true), (true, true)] {
            let name = format!("{} streamed: {streamed}, cancelled: {cancelled}", spoken.dialect);
            let raw = Raw::new(move |_| vec![Step::Held, Step::Say(good(spoken, streamed)), Step::Next]).await;
            let world = against(spoken, &raw, run_json()).await;
            let (address, stop) = listening(&world).await;
            let mut client = calling(spoken, address, streamed).await;
            raw.until(|progress| progress.requests == 1).await;
            if cancelled {
                world.api.edit("/spec/cancel", json!(true));
                let mut answer = [0; 12];
                client.read_exact(&mut answer).await.unwrap();
                assert_eq!(&answer, b"HTTP/1.1 401", "{name}");
            } else {
                drop(client);
            }
            let before = world.settled().await.spent;
            assert_eq!((before.requests, before.output_tokens), (1, FULL), "{name}");
            raw.release();
            raw.until(|progress| progress.done == 1).await;
            world.gateway.state.ledger.idle().await;
            assert_eq!(world.api.budget().spent, before, "{name}");
            stop.now.cancel();
        }
    }
}
