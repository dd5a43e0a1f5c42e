//! Connections that are used again: one that was closed meanwhile costs nothing, and what was said on it without being asked for is
//! nobody's answer. A request is sent again only if the provider cannot have looked at it.

use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::dialects::{CHAT, FULL};
use super::raw::{Raw, Step, body, good, of_length, say};
use super::wire::against;
use super::*;
use crate::serve::HTTP2;

const MOMENT: Duration = Duration::from_millis(100);

fn first() -> Step {
    Step::Say(good(CHAT, false))
}

fn second() -> Step {
    let body = body(CHAT, false).replace("content", "second!");
    say(of_length(false, body.len()) + &body)
}

#[tokio::test]
async fn what_may_happen_to_an_idle_connection() {
    // after the first request, after the second, its status, the output of both
    type Row = (&'static str, Vec<Step>, Vec<Step>, u16, i64);
    let rows: Vec<Row> = vec![
        ("kept", vec![first(), Step::Next], vec![second(), Step::Next], 200, 8),
        ("closed", vec![first()], vec![second()], 200, 8),
        ("reset", vec![first(), Step::Pause(MOMENT), Step::Reset], vec![second()], 200, 8),
        ("an answer to nothing, at once", vec![Step::Say(good(CHAT, false).repeat(2)), Step::Next], vec![second()], 200, 8),
        ("an answer to nothing, later", vec![first(), Step::Pause(MOMENT), first(), Step::Next], vec![second()], 200, 8),
        ("reset when it is used", vec![first(), Step::Next], vec![Step::Reset], 502, 4 + FULL),
        ("closed when it is used", vec![first(), Step::Next], vec![], 502, 4 + FULL),
    ];
    for (name, before, after, status, output) in rows {
        let answers = [before, after];
        let raw = Raw::new(move |number| answers[number].clone()).await;
        let world = against(CHAT, &raw, run_json()).await;
        assert_eq!(CHAT.send(&world, false).await.status(), 200, "{name}");
        raw.until(|progress| progress.done == 1).await;
        tokio::time::sleep(MOMENT).await; // what the kernel has told the pool cannot be asked for
        let response = CHAT.send(&world, false).await;
        assert_eq!(response.status().as_u16(), status, "{name}");
        let answer = text(response).await;
        assert!(status != 200 || answer.contains("second!"), "{name}: {answer}");
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (2, 2, output), "{name}");
        assert_eq!(raw.progress().requests, 2, "{name}: nothing is sent twice");
    }
}

#[tokio::test]
async fn what_a_provider_says_it_has_not_looked_at_is_sent_again_and_nothing_else() {
    const RST_STREAM: u8 = 3;
    const GOAWAY: u8 = 7;
    let (no_error, internal_error, refused_stream) = ([0, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 7]);
    let nothing_taken = [0, 0, 0, 0];
    // what the first connection says to its first request, status, upstream attempts, output
    for (name, said, status, attempts, output) in [
        ("it goes and has taken nothing", frame(GOAWAY, 0, &[nothing_taken, no_error].concat()), 200, 2, 4),
        ("it refuses the stream", frame(RST_STREAM, 1, &refused_stream), 200, 2, 4),
        ("it fails within the stream", frame(RST_STREAM, 1, &internal_error), 502, 1, FULL),
    ] {
        let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("https://localhost:{}/v1/chat/completions", listener.local_addr().unwrap().port());
        let acceptor = acceptor(&key);
        let serving = tokio::spawn(async move {
            let mut first = accept(&listener, &acceptor).await;
            one_request(&mut first).await;
            first.write_all(&said).await.unwrap();
            first.shutdown().await.unwrap();
            let second = accept(&listener, &acceptor).await;
            let router = axum::Router::new().fallback(async || CHAT.good());
            let service = TowerToHyperService::new(router);
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(second), service).await;
        });
        let world = CHAT.world(upstream::Upstream::new(|_, _| panic!("nobody asks this one")).await).await;
        let mut provider = CHAT.provider_at("scripted", &url);
        (provider.spec.ca_bundle, provider.spec.timeouts.first_byte) = (Some(key.cert.pem()), Some("60s".into()));
        world.gateway.state.model.providers.put(provider);
        let response = CHAT.send(&world, false).await;
        assert_eq!(response.status().as_u16(), status, "{name}: {}", text(response).await);
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (1, attempts, output), "{name}");
        serving.abort();
    }
}

fn acceptor(key: &rcgen::CertifiedKey<rcgen::KeyPair>) -> TlsAcceptor {
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let certificate = CertificateDer::from(key.cert.der().to_vec());
    let mut tls = tls.with_no_client_auth().with_single_cert(vec![certificate], private).unwrap();
    tls.alpn_protocols = vec![HTTP2.to_vec()];
    TlsAcceptor::from(Arc::new(tls))
}

async fn accept(listener: &TcpListener, acceptor: &TlsAcceptor) -> TlsStream<TcpStream> {
    let (stream, _) = listener.accept().await.unwrap();
    acceptor.accept(stream).await.unwrap()
}

/// A short frame of HTTP/2.
fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, 0];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Speak HTTP/2 as far as the header of the first request.
async fn one_request(stream: &mut TlsStream<TcpStream>) {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    stream.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
    stream.read_exact(&mut [0; PREFACE]).await.unwrap();
    let mut head = [0; 9];
    while head[3] != HEADERS {
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        stream.read_exact(&mut vec![0; length]).await.unwrap();
    }
}
