//! The proxy's listener: plain HTTP/1.1 on loopback, one request passed on after the other.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use super::{Fault, Plan, Site, State, WatchFault};

type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

/// Bytes at a time.
const PIECE: usize = 7;
/// Watches of one path that come to nothing, one after the other.
const TIMES: usize = 3;
const DRIP: Duration = Duration::from_millis(1);

pub async fn run(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let state = state.clone();
                async move { answer(&state, request).await }
            });
            // An error of the service ends the connection without an answer, as it should.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(state: &State, request: Request<Incoming>) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let Some(site) = Site::of(&parts.method, parts.uri.path()) else {
        let watches = parts.uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
        let answer = pass(state, &parts, body).await?;
        let watched = |answer| watched(state, parts.uri.path(), answer);
        return Ok(if watches && answer.status().is_success() { watched(answer) } else { whole(answer) });
    };
    let fault = decide(&mut state.plan(), &site);
    match fault {
        Some(Fault::CutBefore) => bail!("{site} is cut off before it was committed"),
        Some(Fault::Duplicated) => drop(pass(state, &parts, body.clone()).await?.bytes().await?),
        Some(fault) => {
            if let Some((status, reason)) = fault.refusal() {
                return Ok(refusal(status, reason));
            }
        }
        None => {}
    }
    let answer = pass(state, &parts, body).await?;
    let committed = answer.status().is_success();
    let (head, body) = whole(answer).into_parts();
    let body = body.collect().await?.to_bytes();
    let crash = if committed { counted(&mut state.plan()) } else { None };
    if let Some(crash) = crash {
        crash();
        bail!("{site} was the last that the process wrote");
    }
    if fault == Some(Fault::CutAfter) {
        bail!("{site} is cut off after it was committed");
    }
    Ok(Response::from_parts(head, full(body)))
}

/// What this write meets.
fn decide(plan: &mut Plan, site: &Site) -> Option<Fault> {
    let before = plan.seen.entry(site.clone()).or_default();
    *before += 1;
    let fault = plan.fault.filter(|_| *before == 1);
    if fault.is_some() {
        plan.met.insert(site.clone());
    }
    fault
}

/// The crash that this write calls for.
fn counted(plan: &mut Plan) -> Option<super::Crash> {
    plan.writes += 1;
    match plan.crash.take() {
        Some((number, crash)) if number == plan.writes => Some(crash),
        other => {
            plan.crash = other;
            None
        }
    }
}

async fn pass(state: &State, parts: &http::request::Parts, body: Bytes) -> Result<reqwest::Response> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = parts.headers.clone();
    for name in [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        headers.remove(name);
    }
    Ok(state.upstream.request(parts.method.clone(), format!("{}{path}", state.base)).headers(headers).body(body).send().await?)
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn refusal(status: StatusCode, reason: &str) -> Response<Body> {
    let object = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status.as_u16(),
        "message": format!("{reason}: injected by the fault proxy"), "metadata": {}});
    let mut response = Response::new(full(object.to_string().into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn with_head(answer: &reqwest::Response, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    for name in [header::TRANSFER_ENCODING, header::CONNECTION, header::CONTENT_LENGTH] {
        response.headers_mut().remove(name);
    }
    response
}

fn streamed(chunks: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync()
}

fn whole(answer: reqwest::Response) -> Response<Body> {
    let head = with_head(&answer, full(Bytes::new()));
    head.map(|_| streamed(answer.bytes_stream().map_err(Into::into)))
}

/// A watch, until the plan changes.
fn watched(state: &State, path: &str, answer: reqwest::Response) -> Response<Body> {
    let fault = disturbance(&mut state.plan(), path);
    let head = with_head(&answer, full(Bytes::new()));
    let mut changed = state.changed.subscribe();
    let until = async move {
        let _ = changed.changed().await;
    };
    let lines = lines(answer.bytes_stream().map_err(Into::into)).boxed();
    let body = match fault {
        None => streamed(lines.take_until(until)),
        Some(WatchFault::Dropped) => streamed(lines.take(1).take_until(until)),
        Some(WatchFault::Truncated) => streamed(lines.take(1).map_ok(|line| line.slice(..line.len() / 2)).take_until(until)),
        Some(WatchFault::Gone) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
                "message": "too old resource version: injected by the fault proxy", "metadata": {}});
            full(format!("{}\n", json!({"type": "ERROR", "object": status})).into())
        }
        Some(WatchFault::Repeated) => {
            let twice = lines.flat_map(|line| match line {
                Ok(line) => stream::iter(vec![Ok(line.clone()), Ok(line)]),
                Err(error) => stream::iter(vec![Err(error)]),
            });
            streamed(twice.take_until(until))
        }
        Some(WatchFault::Dripping) => {
            let pieces = lines.flat_map(|line| match line {
                Ok(line) => stream::iter(
                    (0..line.len()).step_by(PIECE).map(|at| Ok(line.slice(at..line.len().min(at + PIECE)))).collect::<Vec<_>>(),
                ),
                Err(error) => stream::iter(vec![Err(error)]),
            });
            let slow = pieces.then(|piece| async move {
                tokio::time::sleep(DRIP).await; // the fault itself
                piece
            });
            streamed(slow.take_until(until))
        }
    };
    head.map(|_| body)
}

/// What a watch of this path meets. One that would never come to an event is spared after some times: nobody could go on then.
fn disturbance(plan: &mut Plan, path: &str) -> Option<WatchFault> {
    let before = plan.disturbed.entry(path.to_owned()).or_default();
    *before += 1;
    plan.watches.filter(|fault| !fault.stops_all() || *before <= TIMES)
}

/// The same bytes, cut at the ends of lines.
fn lines(chunks: impl Stream<Item = Result<Bytes>> + Send + Unpin + 'static) -> impl Stream<Item = Result<Bytes>> + Send {
    stream::try_unfold((chunks, BytesMut::new()), |(mut chunks, mut buffer)| async move {
        loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1).freeze();
                return Ok(Some((line, (chunks, buffer))));
            }
            match chunks.next().await {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None => return Ok(None),
            }
        }
    })
}
