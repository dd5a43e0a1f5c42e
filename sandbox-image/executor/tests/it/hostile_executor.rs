//! What a taken-over executor can send: the runner gives up on it, in bounded memory, and never waits for ever.

use std::time::Duration;

use agentrun_protocol::executor::{Envelope, Hello, INITIAL_CREDIT_BYTES, Kind, MAX_CHUNK_BYTES, worker_client::WorkerClient};
use agentrun_runner::{connection::listen, executor::Executor};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::{net::UnixStream, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::sandbox::{PATIENCE, Place};

async fn channel(place: &Place) -> Channel {
    let stream = std::sync::Mutex::new(Some(UnixStream::connect(place.socket()).await.unwrap()));
    let connector = tower::service_fn(move |_| {
        let stream = stream.lock().unwrap().take().map(TokioIo::new);
        async move { stream.ok_or_else(|| std::io::Error::other("used")) }
    });
    Endpoint::from_static("http://runner.invalid").connect_with_connector(connector).await.unwrap()
}

/// The frames to send as the answer to the first request, whose id they get; then silence.
async fn against(frames: Vec<Envelope>) -> Result<(), String> {
    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let mut client = WorkerClient::new(channel(&place).await);
    let (out, outgoing) = mpsc::channel(4);
    let hello = Envelope { kind: Kind::Hello.into(), payload: Hello::default().encode_to_vec(), ..Envelope::default() };
    out.send(hello).await.unwrap();
    tokio::spawn(async move {
        let mut incoming = client.serve(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        let request = incoming.message().await.unwrap().unwrap();
        for frame in frames {
            if out.send(Envelope { id: if frame.id == 0 { request.id } else { frame.id }, ..frame }).await.is_err() {
                return;
            }
        }
        while let Ok(Some(_)) = incoming.message().await {}
    });
    let (connection, _) = listening.accept(PATIENCE).await.unwrap();
    let executor = Executor::new(connection);
    let answer = timeout(PATIENCE, executor.read("x", 100)).await.expect("an answer or a lost executor");
    answer.map(drop).map_err(|error| error.to_string())
}

fn frame(kind: Kind, payload: Vec<u8>) -> Envelope {
    Envelope { kind: kind.into(), payload, ..Envelope::default() }
}

#[tokio::test]
async fn rules_that_are_broken_lose_the_executor() {
    let many = |frame: Envelope, count: usize| vec![frame; count];
    let chunk = frame(Kind::Chunk, vec![0; MAX_CHUNK_BYTES]);
    for (name, frames) in [
        ("more bytes than asked for", many(chunk, 1)),
        ("an answer that cannot be read", many(frame(Kind::Response, vec![0xff; 9]), 1)),
        ("a request of its own", many(frame(Kind::Request, vec![]), 1)),
        ("a second hello", many(Envelope { id: 77, ..frame(Kind::Hello, vec![]) }, 1)),
        ("a frame that is too large", many(frame(Kind::Chunk, vec![0; 2 << 20]), 1)),
    ] {
        let error = against(frames).await.expect_err(name);
        assert!(error.contains("the executor is lost"), "{name}: {error}");
    }
    // Strange but harmless.
    let mut frames = many(Envelope { id: 4711, ..frame(Kind::Chunk, vec![1; 10]) }, 100);
    frames.push(frame(Kind::Response, vec![]));
    against(frames).await.unwrap();
}

#[tokio::test]
async fn a_flood_of_frames_for_a_call_that_is_not_read_is_cut_off() {
    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let mut client = WorkerClient::new(channel(&place).await);
    let (out, outgoing) = mpsc::channel(4);
    out.send(frame(Kind::Hello, Hello::default().encode_to_vec())).await.unwrap();
    let flood = tokio::spawn(async move {
        let mut incoming = client.serve(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        let id = incoming.message().await.unwrap().unwrap().id;
        let mut sent = 0u64;
        while out.send(Envelope { id, ..frame(Kind::Chunk, vec![0; MAX_CHUNK_BYTES]) }).await.is_ok() && sent < (1 << 30) {
            sent += MAX_CHUNK_BYTES as u64;
        }
        sent
    });
    let (connection, _) = listening.accept(PATIENCE).await.unwrap();
    let _unread = connection.call("fs.Read", vec![]);
    timeout(PATIENCE, connection.closed()).await.unwrap();
    let sent = flood.await.unwrap();
    assert!(sent < 8 * INITIAL_CREDIT_BYTES, "{sent}");
}

#[tokio::test]
async fn one_that_says_nothing_or_the_wrong_thing_is_not_accepted() {
    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let error = listening.accept(Duration::from_millis(50)).await.err().unwrap();
    assert!(error.contains("did not connect"), "{error}");

    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let mut client = WorkerClient::new(channel(&place).await);
    let (out, outgoing) = mpsc::channel(4);
    out.send(frame(Kind::Response, vec![])).await.unwrap();
    tokio::spawn(async move { client.serve(ReceiverStream::new(outgoing)).await.map(drop) });
    let error = listening.accept(PATIENCE).await.err().unwrap();
    assert!(error.contains("not its hello"), "{error}");
    drop(out);
}

#[tokio::test]
async fn only_one_stream_is_served() {
    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let mut client = WorkerClient::new(channel(&place).await);
    let mut second = client.clone();
    let (out, outgoing) = mpsc::channel(4);
    out.send(frame(Kind::Hello, Hello::default().encode_to_vec())).await.unwrap();
    let (first, accepted) = tokio::join!(client.serve(ReceiverStream::new(outgoing)), listening.accept(PATIENCE));
    assert!(first.is_ok() && accepted.is_ok());
    let (_out, outgoing) = mpsc::channel(1);
    assert_eq!(second.serve(ReceiverStream::new(outgoing)).await.err().unwrap().code(), tonic::Code::AlreadyExists);
}
