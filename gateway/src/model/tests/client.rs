//! Clients that try what they should not: headers, queries, and bytes on the wire that are no clean request.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dialects::{ALL, CHAT, GEMINI, MESSAGES};
use super::upstream::{Upstream, completion};
use super::*;
use crate::serve::{Listener, Stop, bind};

#[tokio::test]
async fn a_token_is_taken_from_each_dialects_header_and_a_stand_in_beside_it_does_no_harm() {
    let world = World::new(Upstream::new(|_, _| completion(1, 1)).await).await;
    let bearer = format!("Bearer {}", model_token());
    for headers in [
        vec![("authorization", bearer.clone())],
        vec![("x-api-key", model_token())],
        vec![("x-goog-api-key", model_token())],
        vec![("authorization", "Bearer dummy".into()), ("x-api-key", model_token())],
    ] {
        let request = headers.iter().fold(Request::post("/v1/chat/completions"), |request, (name, value)| request.header(*name, value));
        let response = world.gateway.sandbox.clone().oneshot(request.body(Body::from(hello().to_string())).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{headers:?}");
    }
    for (headers, _) in world.upstream.seen() {
        assert!(!headers.values().any(|value| value.to_str().unwrap_or_default().contains("ar1.")), "the token goes to no provider");
    }
    world.settled().await;
}

#[tokio::test]
async fn queries_are_judged_and_never_sent_on() {
    let world = GEMINI.world(Upstream::new(|_, _| GEMINI.good()).await).await;
    let path = "/v1beta/models/demo:generateContent";
    for (query, expected) in [("", 200), ("?alt=json", 200), ("?key=ar1.secret", 400), ("?alt=proto", 400), ("?x", 400)] {
        let response = GEMINI.post(&world, &format!("{path}{query}"), GEMINI.body(false)).await;
        assert_eq!(response.status().as_u16(), expected, "{query}");
        let body = text(response).await;
        assert!(expected == 200 || (GEMINI.code(&body) == "unsupported_parameter" && !body.contains("secret")), "{body}");
    }
    assert!(world.upstream.paths().iter().all(|path| !path.contains('?')), "{:?}", world.upstream.paths());
    for (path, status, code) in [
        ("/v1beta/models/other:generateContent", 404, "model_not_offered"),
        ("/v1beta/models/demo:embedContent", 404, "not_found"),
        ("/v1beta/models/demo", 404, "not_found"),
    ] {
        let response = GEMINI.post(&world, path, GEMINI.body(false)).await;
        assert_eq!((response.status().as_u16(), GEMINI.code(&text(response).await).as_str()), (status, code), "{path}");
    }
    world.settled().await;
}

#[tokio::test]
async fn betas_that_change_the_price_are_left_out_and_others_pass() {
    let world = MESSAGES.world(Upstream::new(|_, _| MESSAGES.good()).await).await;
    let send = async |version: &str, beta: &str| {
        let request = Request::post("/v1/messages").header("x-api-key", model_token()).header("anthropic-version", version);
        let request = request.header("anthropic-beta", beta).header("anthropic-beta", "last-2026-01-01");
        let response = world.gateway.sandbox.clone().oneshot(request.body(Body::from(MESSAGES.body(false))).unwrap()).await.unwrap();
        (response.status().as_u16(), text(response).await)
    };
    assert_eq!(send("2023-06-01", "claude-code-20250219, Context-1M-2025-08-07,fast-mode-2026-02-01").await.0, 200);
    let (headers, _) = world.upstream.seen().remove(0);
    assert_eq!(
        (&headers["anthropic-version"], &headers["anthropic-beta"]),
        (&"2023-06-01".parse().unwrap(), &"claude-code-20250219,last-2026-01-01".parse().unwrap())
    );
    for (version, beta) in [("latest", "a"), ("2023-06-01", "a b"), ("2023-06-01", "a\"b")] {
        let (status, body) = send(version, beta).await;
        assert_eq!((status, MESSAGES.code(&body).as_str()), (400, "invalid_header"), "{version} {beta}");
    }
    world.settled().await;
}

/// The sandbox listener of a world, without TLS.
pub async fn listening(world: &World) -> (SocketAddr, Stop) {
    let tcp = bind("test", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let (address, stop) = (tcp.local_addr().unwrap(), Stop::default());
    let router = world.gateway.sandbox.clone();
    tokio::spawn(Listener { name: "test", tcp, tls: None, router, max_connections: 8 }.serve(stop.clone()));
    (address, stop)
}

/// What a client's bytes come to on a real connection; `ends` if it says that no more will come.
async fn on_the_wire(world: &World, bytes: &[u8], ends: bool) -> String {
    let (address, stop) = listening(world).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    if ends {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    stop.now.cancel();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn bytes_that_two_readers_would_read_in_two_ways_reach_no_provider() {
    let seen: Arc<std::sync::Mutex<Vec<Value>>> = Arc::default();
    let log = seen.clone();
    let world = CHAT
        .world(
            Upstream::new(move |_, body| {
                log.lock().unwrap().push(body.clone());
                CHAT.good()
            })
            .await,
        )
        .await;
    let body = CHAT.body(false);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", model_token());
    let smuggled = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let mut failed = Vec::new();
    // Refused, or read in the one way that the first line of each row says.
    for (name, request, status) in [
        ("a clean one", format!("{head}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()), "200"),
        ("two lengths", format!("{head}content-length: {}\r\ncontent-length: 3\r\n\r\n{body}", body.len()), "400"),
        ("a length that is no number", format!("{head}content-length: +{}\r\n\r\n{body}", body.len()), "400"),
        ("a coding that is not chunked last", format!("{head}transfer-encoding: chunked, identity\r\n\r\n{chunked}"), "400"),
        ("a folded header", format!("{head}x: a\r\n b: c\r\ncontent-length: {}\r\n\r\n{body}", body.len()), "400"),
        ("a blank before the colon", format!("{head}content-length : {}\r\n\r\n{body}", body.len()), "400"),
        ("headers of 200 KB", format!("{head}x: {}\r\ncontent-length: 2\r\n\r\n{{}}", "y".repeat(200_000)), "431"),
        ("a length below nothing", format!("{head}content-length: -1\r\n\r\n{body}"), "400"),
        ("a length in hexadecimal", format!("{head}content-length: 0x{:x}\r\n\r\n{body}", body.len()), "400"),
        ("a list of lengths", format!("{head}content-length: {0}, 3\r\n\r\n{body}", body.len()), "400"),
        ("a coding that is almost chunked", format!("{head}transfer-encoding: xchunked\r\n\r\n{chunked}"), "400"),
        ("chunks in HTTP/1.0", format!("{head}transfer-encoding: chunked\r\n\r\n{chunked}").replace("HTTP/1.1", "HTTP/1.0"), "400"),
        ("a chunk of no number", format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n{body}\r\n0\r\n\r\n"), "400"),
        ("a chunk beyond 64 bits", format!("{head}transfer-encoding: chunked\r\n\r\n10000000000000001\r\n{body}\r\n0\r\n\r\n"), "400"),
        ("a chunk that is longer", format!("{head}transfer-encoding: chunked\r\n\r\n3\r\n{body}\r\n0\r\n\r\n"), "400"),
        (
            "a bare line feed in a chunk's size",
            format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\n{body}\r\n0\r\n\r\n", body.len()),
            "400",
        ),
        ("a bare carriage return", format!("{head}x: a\rcontent-length: 3\r\ncontent-length: {}\r\n\r\n{body}", body.len()), "400"),
        ("a zero in a header", format!("{head}x: a\0b\r\ncontent-length: {}\r\n\r\n{body}", body.len()), "400"),
        ("a header without a name", format!("{head}: b\r\ncontent-length: {}\r\n\r\n{body}", body.len()), "400"),
        ("10,000 headers", format!("{head}{}content-length: 2\r\n\r\n{{}}", "a: b\r\n".repeat(10_000)), "431"),
        ("a body that is cut", format!("{head}content-length: {}\r\n\r\n{}", body.len() + 10, body), "400"),
    ] {
        let before = seen.lock().unwrap().len();
        let answer = on_the_wire(&world, request.as_bytes(), name.contains("cut")).await;
        let as_said = answer.starts_with(&format!("HTTP/1.1 {status}")) || (status != "200" && answer.is_empty());
        if !as_said || seen.lock().unwrap().len() - before != usize::from(status == "200") {
            failed.push(format!("{name}: {answer:.200}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    // Line feeds alone end lines, too, as RFC 9112 allows: in one way, to the end.
    let lines = format!("{head}content-length: {}\r\nconnection: close\r\n\r\n", body.len()).replace("\r\n", "\n") + &body;
    let before = seen.lock().unwrap().len();
    assert!(on_the_wire(&world, lines.as_bytes(), false).await.starts_with("HTTP/1.1 200"));
    assert_eq!(seen.lock().unwrap().len() - before, 1);
    // Both framings at once: chunked wins, what follows is a request of its own without a token, and nothing of it is forwarded.
    let both = format!("{head}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n{chunked}{smuggled}");
    let before = seen.lock().unwrap().len();
    let answer = on_the_wire(&world, both.as_bytes(), false).await;
    assert!(
        answer.starts_with("HTTP/1.1 400") || answer.contains("401 Unauthorized") || answer.starts_with("HTTP/1.1 200"),
        "{answer:.300}"
    );
    assert!(seen.lock().unwrap().len() - before <= 1, "the smuggled request was forwarded");
    world.settled().await;
}

#[tokio::test]
async fn a_body_over_the_cap_is_answered_and_not_reset() {
    let world = CHAT.world(Upstream::new(|_, _| CHAT.good()).await).await;
    let large = "x".repeat(8 << 20);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", model_token());
    for (name, request) in [
        ("with its length", format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n{large}", large.len())),
        ("in chunks", format!("{head}connection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n", large.len())),
    ] {
        let answer = on_the_wire(&world, request.as_bytes(), false).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{name}: {answer:.200}");
        assert!(answer.contains("too_large"), "{name}: {answer:.400}");
    }
    assert_eq!((world.api.lock().writes, world.upstream.seen().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_refused_after_its_time_and_costs_nothing() {
    for spoken in ALL {
        let world = spoken.world(Upstream::new(|_, _| CHAT.good()).await).await;
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let request = Request::post(spoken.paths[0]).header("authorization", format!("Bearer {}", model_token()));
        let response = world.gateway.sandbox.clone().oneshot(request.body(silent).unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), 408, "{}", spoken.dialect);
        assert_eq!(spoken.code(&text(response).await), "slow_body", "{}", spoken.dialect);
        assert_eq!((world.api.lock().writes, world.upstream.seen().len()), (0, 0), "{}", spoken.dialect);
    }
}
