//! A provider whose every answer a test chooses.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

type Answer = Arc<dyn Fn(usize, &Value) -> Response + Send + Sync>;

/// Serves until dropped.
pub struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    paths: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Upstream {
    /// `answer` gets the number of the request, from 0, and its body.
    pub async fn new(answer: impl Fn(usize, &Value) -> Response + Send + Sync + 'static) -> Self {
        let seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>> = Arc::default();
        let paths: Arc<Mutex<Vec<String>>> = Arc::default();
        let answer: Answer = Arc::new(answer);
        let handler = {
            let (seen, paths) = (seen.clone(), paths.clone());
            async move |request: Request| {
                let (parts, body) = request.into_parts();
                paths.lock().unwrap().push(parts.uri.to_string());
                let body = to_bytes(body, usize::MAX).await.unwrap();
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push((parts.headers, body.clone()));
                    seen.len() - 1
                };
                answer(number, &serde_json::from_slice(&body).unwrap())
            }
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await.unwrap() });
        Upstream { address, seen, paths, task }
    }

    pub fn url(&self) -> String {
        self.url_of("/v1/chat/completions")
    }

    pub fn url_of(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Path and query of each request so far.
    pub fn paths(&self) -> Vec<String> {
        self.paths.lock().unwrap().clone()
    }

    /// Headers and body of each request so far.
    pub fn seen(&self) -> Vec<(HeaderMap, Bytes)> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A completion that took so many tokens.
pub fn completion(input: i64, output: i64) -> Response {
    let usage = json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output });
    reply(&json!({ "id": "x", "choices": [{ "message": { "role": "assistant", "content": "hi" } }], "usage": usage }).to_string())
}

/// A JSON reply, byte for byte.
pub fn reply(body: &str) -> Response {
    ([(CONTENT_TYPE, "application/json")], body.to_owned()).into_response()
}

/// An error with the key in its words.
pub fn error(status: u16) -> Response {
    let body = json!({ "error": { "message": format!("{} is wrong, says api.provider.example", super::KEY), "code": "x" } });
    (StatusCode::from_u16(status).unwrap(), [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// A stream of these pieces; `Err` breaks the connection, and a stream without an end hangs if it ends with `Pending`.
pub fn stream(pieces: Vec<Piece>) -> Response {
    let pieces = futures::stream::unfold(pieces.into_iter(), |mut pieces| async move {
        match pieces.next()? {
            Piece::Text(text) => Some((Ok(Bytes::from(text)), pieces)),
            Piece::Bytes(bytes) => Some((Ok(Bytes::from(bytes)), pieces)),
            Piece::Break => {
                tokio::task::yield_now().await; // the server flushes what came before
                Some((Err(std::io::Error::other("broken")), pieces))
            }
            Piece::Hang => std::future::pending().await,
        }
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
}

/// A part of a stream.
#[derive(Clone)]
pub enum Piece {
    Text(String),
    Bytes(Vec<u8>),
    Break,
    Hang,
}

pub fn piece(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}
