//! Servers that are slow, huge, elsewhere, of another kind, or tell what they were shown.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use http::{StatusCode, header};

use super::{KEY, Server};

const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
const RESULT: &str = "application/x-git-upload-pack-result";
const COMMIT: &str = "0123456789012345678901234567890123456789";

fn line(text: &str) -> String {
    format!("{:04x}{text}", text.len() + 4)
}

fn hello() -> String {
    [line("# service=git-upload-pack\n").as_str(), "0000", &line("version 2\n"), &line("ls-refs\n"), &line("fetch=shallow\n"), "0000"]
        .concat()
}

fn answer(media_type: &'static str, body: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, media_type)], body.into()).into_response()
}

/// A server that answers the first request with `hello` and the others with `fetch`.
async fn server(
    hello: impl Fn() -> Response + Clone + Send + Sync + 'static,
    fetch: impl Fn() -> Response + Clone + Send + Sync + 'static,
) -> Server {
    let router = Router::new().fallback(move |request: HttpRequest| {
        let (hello, fetch) = (hello.clone(), fetch.clone());
        async move { if request.method() == http::Method::GET { hello() } else { fetch() } }
    });
    Server::start(router).await
}

#[tokio::test(flavor = "multi_thread")]
async fn first_answers_that_are_no_git_server() {
    let plain = |text: &'static str| move || answer(ADVERTISEMENT, text);
    let sha256 = [line("version 2\n"), line("fetch=shallow\n"), line("object-format=sha256\n"), "0000".into()].concat();
    type Answer = Box<dyn Fn() -> Response + Send + Sync>;
    let rows: Vec<(Answer, &str)> = vec![
        (Box::new(|| Redirect::temporary("https://169.254.169.254/x").into_response()), "a redirect (307), which is not followed"),
        (Box::new(|| Redirect::permanent("/other").into_response()), "a redirect (308), which is not followed"),
        (Box::new(|| answer("text/html", "<html>")), "no git server with smart HTTP"),
        (Box::new(|| answer("text/plain", "0123 refs/heads/main")), "no git server with smart HTTP"),
        (Box::new(plain("zzzz")), "not in the form of git's protocol"),
        (Box::new(plain("001e# service=git-upload-pack\n0000")), "does not speak version 2"),
        (Box::new(plain("")), "does not speak version 2"),
        (Box::new(|| answer(ADVERTISEMENT, line(&format!("{COMMIT} HEAD\0multi_ack\n")) + "0000")), "does not speak version 2"),
        (Box::new(move || answer(ADVERTISEMENT, sha256.clone())), "by SHA-256; only SHA-1"),
        (Box::new(|| StatusCode::SERVICE_UNAVAILABLE.into_response()), "failed (503)"),
        (Box::new(|| (StatusCode::BAD_REQUEST, KEY).into_response()), "refused the request (400)"),
        (Box::new(|| answer(ADVERTISEMENT, line(&format!("ERR {KEY}")))), "in git's own terms"),
        (
            Box::new(|| {
                let gzip = [(header::CONTENT_TYPE, ADVERTISEMENT), (header::CONTENT_ENCODING, "gzip")];
                (gzip, vec![0x1f, 0x8b]).into_response()
            }),
            "no git server with smart HTTP",
        ),
    ];
    for (hello, part) in rows {
        let hello = std::sync::Arc::new(hello);
        let server = server(move || hello(), || StatusCode::NOT_FOUND.into_response()).await;
        let mut request = server.request("/shop.git", "main");
        request.how.secret = Some("private".into());
        let message = server.failure(&request).await;
        assert!(message.contains(part), "{message} has no {part:?}");
        assert!(!message.contains(KEY), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_end_early_or_never() {
    let endless = || {
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        let pack = Bytes::from([b"fff0\x01".as_slice(), &piece[..0xffeb]].concat());
        let head = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(line("packfile\n")))]);
        answer(RESULT, Body::from_stream(futures::StreamExt::chain(head, futures::stream::repeat_with(move || Ok(pack.clone())))))
    };
    let silent = || {
        let head = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(line("packfile\n")))]);
        answer(RESULT, Body::from_stream(futures::StreamExt::chain(head, futures::stream::pending())))
    };
    type Answer = Box<dyn Fn() -> Response + Send + Sync>;
    let rows: Vec<(Answer, &str)> = vec![
        (Box::new(endless), "more than the policy's git.maxBytes"),
        (Box::new(silent), "longer than the policy's git.timeout"),
        (Box::new(|| answer(RESULT, line("packfile\n") + &line("\u{1}PACK"))), "broke off"),
        (Box::new(|| answer(RESULT, line("packfile\n") + &line(&format!("\u{3}{KEY}")))), "reported an error"),
        (Box::new(|| answer(RESULT, line("packfile\n") + &line("\u{1}PACK") + "0000")), "is cut off"),
        (Box::new(|| answer(RESULT, line("packfile\n") + &line("\u{4}PACK") + "0000")), "not in the form"),
        (Box::new(|| answer(RESULT, "0000")), "not in the form"),
        (Box::new(|| answer(RESULT, line("ERR upload-pack: not our ref 01"))), "does not have the commit"),
    ];
    for (fetch, part) in rows {
        let fetch = std::sync::Arc::new(fetch);
        let server = server(|| answer(ADVERTISEMENT, hello()), move || fetch()).await;
        let mut request = server.request("/shop.git", COMMIT);
        request.how.secret = Some("private".into());
        (request.how.timeout_seconds, request.how.max_bytes) = (5, 1 << 20);
        if part.contains("git.timeout") {
            request.how.timeout_seconds = 1;
        }
        let begun = Instant::now();
        let message = server.failure(&request).await;
        assert!(message.contains(part) && !message.contains(KEY), "{message} has no {part:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_refs_than_are_read() {
    let refs = || {
        let one = line(&format!("{COMMIT} refs/heads/main-and-much-more\n"));
        answer(RESULT, one.repeat(20_000))
    };
    let server = server(|| answer(ADVERTISEMENT, hello()), refs).await;
    let message = server.failure(&server.request("/shop.git", "main")).await;
    assert!(message.contains("lists more refs than are read"), "{message}");
}
