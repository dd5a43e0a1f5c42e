//! The HTTP side: choose the script and turn, apply its faults, count.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::ledger::{Ledger, Line, Seen};
use crate::request::{Dialect, Request};
use crate::script::{FaultKind, Script, Turn};
use crate::wire::{self, Answer, Part};

/// Largest request body.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// Most scripts.
const MAX_SCRIPTS: usize = 4096;
/// Longest wait for requests to come.
const MOST_WAIT: Duration = Duration::from_secs(30);
/// Bytes in one piece of a JSON body that is sent slowly or cut.
const JSON_PIECE: usize = 256;

/// The server's state: scripts by name, the key wanted, what was served.
#[derive(Clone)]
pub struct ScriptedModel {
    inner: Arc<Inner>,
}

struct Inner {
    scripts: RwLock<BTreeMap<String, Script>>,
    key: Option<String>,
    ledger: Ledger,
}

impl ScriptedModel {
    /// With these scripts. Without a key any bearer key will do, but there must be one.
    pub fn new(scripts: impl IntoIterator<Item = Script>, key: Option<String>) -> ScriptedModel {
        let scripts = scripts.into_iter().map(|script| (script.name.clone(), script)).collect();
        ScriptedModel { inner: Arc::new(Inner { scripts: RwLock::new(scripts), key, ledger: Ledger::default() }) }
    }

    /// Add or replace a script.
    pub fn register(&self, script: Script) -> Result<(), String> {
        script.check()?;
        let mut scripts = self.inner.scripts.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if scripts.len() >= MAX_SCRIPTS && !scripts.contains_key(&script.name) {
            return Err(format!("there are {MAX_SCRIPTS} scripts already"));
        }
        scripts.insert(script.name.clone(), script);
        Ok(())
    }

    /// What was served, by the model asked for.
    pub fn bill(&self) -> BTreeMap<String, Line> {
        self.inner.ledger.bill()
    }

    /// The last requests.
    pub fn seen(&self, model: Option<&str>) -> Vec<Seen> {
        self.inner.ledger.seen(model)
    }

    /// Every route.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/chat/completions", post(|State(model), headers, body| served(model, Dialect::Chat, String::new(), headers, body)))
            .route("/v1/messages", post(|State(model), headers, body| served(model, Dialect::Messages, String::new(), headers, body)))
            .route("/v1/messages/count_tokens", post(count_messages))
            .route("/v1/responses", post(|State(model), headers, body| served(model, Dialect::Responses, String::new(), headers, body)))
            .route("/v1beta/models/{*call}", post(gemini))
            .route("/v1/embeddings", post(embeddings))
            .route("/__bill", get(|State(model): State<ScriptedModel>| async move { Json(model.bill()) }))
            .route("/__seen", get(seen))
            .route("/__wait", get(wait))
            .route("/__script", post(register))
            .route("/healthz", get(|| async { "ok" }))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(self.clone())
    }

    fn choose(&self, request: &Request) -> Option<Script> {
        self.by_name(request.marker.as_deref(), &request.model)
    }

    fn by_name(&self, marker: Option<&str>, model: &str) -> Option<Script> {
        let scripts = self.inner.scripts.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let by_model = || {
            let name = model.strip_prefix("scripted/").unwrap_or(model);
            scripts.get(name).or_else(|| scripts.values().find(|script| script.models.iter().any(|named| named == model)))
        };
        marker.and_then(|name| scripts.get(name)).or_else(by_model).cloned()
    }
}

#[derive(serde::Deserialize)]
struct SeenQuery {
    model: Option<String>,
}

async fn seen(State(model): State<ScriptedModel>, Query(query): Query<SeenQuery>) -> Json<Vec<Seen>> {
    Json(model.seen(query.model.as_deref()))
}

#[derive(serde::Deserialize)]
struct WaitQuery {
    model: String,
    requests: u64,
}

/// 204 once so many requests have come for the model, 408 if they have not within half a minute.
async fn wait(State(model): State<ScriptedModel>, Query(query): Query<WaitQuery>) -> StatusCode {
    let came = model.inner.ledger.until_requests(&query.model, query.requests);
    match tokio::time::timeout(MOST_WAIT, came).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::REQUEST_TIMEOUT,
    }
}

async fn register(State(model): State<ScriptedModel>, body: String) -> Response {
    match Script::parse(&body).and_then(|script| model.register(script)) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(message) => answer_error(wire::error(Dialect::Chat, 400, &message, None)),
    }
}

fn answer_error((status, body): (u16, Value)) -> Response {
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(body)).into_response()
}

/// The key, in the header in which the dialect wants it.
fn key(dialect: Dialect, headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = match dialect {
        Dialect::Chat | Dialect::Responses => text("authorization").and_then(|value| value.strip_prefix("Bearer ")),
        Dialect::Messages => text("x-api-key"),
        Dialect::Gemini => text("x-goog-api-key"),
    };
    key.filter(|key| !key.is_empty())
}

/// Keep the request, and check its key and model; the answer otherwise is a refusal.
fn admit(
    model: &ScriptedModel,
    dialect: Dialect,
    name: &str,
    script: Option<&Script>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<String, Box<Response>> {
    let ledger = &model.inner.ledger;
    ledger.keep(name, headers, body);
    let key = key(dialect, headers);
    let wanted = script.and_then(|script| script.key.as_ref()).or(model.inner.key.as_ref());
    let Some(key) = key.filter(|key| wanted.is_none_or(|wanted| wanted == key)) else {
        ledger.count(name, |line| line.unauthorized += 1);
        let message = format!("Incorrect API key provided: {}.", key.unwrap_or_default());
        return Err(Box::new(answer_error(wire::error(dialect, 401, &message, None))));
    };
    ledger.count(name, |line| line.requests += 1);
    Ok(key.to_owned())
}

fn no_model(dialect: Dialect, name: &str) -> Response {
    answer_error(wire::error(dialect, 404, &format!("The model `{name}` does not exist or you do not have access to it."), None))
}

async fn served(model: ScriptedModel, dialect: Dialect, path: String, headers: HeaderMap, body: Bytes) -> Response {
    let request = Request::parse(dialect, &path, &body);
    let name = request.as_ref().map_or("invalid", |request| &request.model).to_owned();
    let script = request.as_ref().ok().and_then(|request| model.choose(request));
    let key = match admit(&model, dialect, &name, script.as_ref(), &headers, &body) {
        Ok(key) => key,
        Err(refused) => return *refused,
    };
    let request = match request {
        Ok(request) => request,
        Err(bad) => return answer_error(wire::refused(dialect, &bad)),
    };
    let Some(script) = script else { return no_model(dialect, &name) };
    let tries = model.inner.ledger.try_number(&script.name, request.conversation);
    let turn = &script.turns[request.turn.min(script.turns.len() - 1)];
    let faults: Vec<&FaultKind> =
        turn.faults.iter().filter(|fault| fault.times.is_none_or(|times| tries < times)).map(|fault| &fault.kind).collect();
    respond(&model, turn, &request, &faults, &key).await
}

#[derive(serde::Deserialize)]
struct GeminiQuery {
    alt: Option<String>,
}

/// `{model}:generateContent`, `{model}:streamGenerateContent?alt=sse` and `{model}:countTokens`.
async fn gemini(
    State(model): State<ScriptedModel>,
    Path(path): Path<String>,
    Query(query): Query<GeminiQuery>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match path.rsplit_once(':').map(|(_, call)| call) {
        Some("generateContent") => served(model, Dialect::Gemini, path, headers, body).await,
        Some("streamGenerateContent") if query.alt.as_deref() == Some("sse") => served(model, Dialect::Gemini, path, headers, body).await,
        Some("countTokens") => {
            let name = path.trim_end_matches(":countTokens");
            counted(&model, Dialect::Gemini, name, &headers, &body, |tokens| json!({"totalTokens": tokens, "promptTokensDetails": []}))
        }
        _ => answer_error(wire::error(Dialect::Gemini, 404, "there is no such call; streams are served with alt=sse", None)),
    }
}

async fn count_messages(State(model): State<ScriptedModel>, headers: HeaderMap, body: Bytes) -> Response {
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = value["model"].as_str().unwrap_or("invalid");
    counted(&model, Dialect::Messages, name, &headers, &body, |tokens| json!({"input_tokens": tokens}))
}

fn counted(
    model: &ScriptedModel,
    dialect: Dialect,
    name: &str,
    headers: &HeaderMap,
    body: &[u8],
    answer: impl FnOnce(u64) -> Value,
) -> Response {
    let script = model.by_name(None, name);
    match admit(model, dialect, name, script.as_ref(), headers, body) {
        Err(refused) => *refused,
        Ok(_) if script.is_none() => no_model(dialect, name),
        Ok(_) => Json(answer(wire::tokens(body.len() as u64))).into_response(),
    }
}

async fn embeddings(State(model): State<ScriptedModel>, headers: HeaderMap, body: Bytes) -> Response {
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = value["model"].as_str().unwrap_or("invalid");
    let script = model.by_name(None, name);
    match admit(&model, Dialect::Chat, name, script.as_ref(), &headers, &body) {
        Err(refused) => *refused,
        Ok(_) if script.is_none() => no_model(Dialect::Chat, name),
        Ok(_) => {
            let part = wire::embeddings::answer(&value);
            sent(&model, name, part.reports);
            model.inner.ledger.count(name, |line| line.finished += 1);
            ([(header::CONTENT_TYPE, "application/json")], part.bytes).into_response()
        }
    }
}

async fn respond(model: &ScriptedModel, turn: &Turn, request: &Request, faults: &[&FaultKind], bearer: &str) -> Response {
    let mut pace = Duration::ZERO;
    let mut cut = None;
    let mut padding = None;
    let (mut done, mut endless, mut malformed) = (true, false, false);
    for fault in faults {
        match fault {
            FaultKind::DelayHeader { ms } => tokio::time::sleep(Duration::from_millis(*ms)).await,
            FaultKind::Slow { ms_per_chunk } => pace = Duration::from_millis(*ms_per_chunk),
            FaultKind::Cut { after_chunks } => cut = Some(*after_chunks),
            FaultKind::NoDone => done = false,
            FaultKind::HugeBody { bytes } => padding = Some(*bytes),
            FaultKind::Malformed => malformed = true,
            FaultKind::Endless { ms_per_chunk } => {
                endless = true;
                pace = Duration::from_millis(*ms_per_chunk);
            }
            FaultKind::Redirect { location } => {
                model.inner.ledger.count(&request.model, |line| line.failed += 1);
                return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location.clone())]).into_response();
            }
            FaultKind::Status { code, retry_after, echo_key } => {
                model.inner.ledger.count(&request.model, |line| line.failed += 1);
                let message = if *echo_key {
                    format!("The scripted model failed for key {bearer}.")
                } else {
                    "The scripted model failed as told.".into()
                };
                let mut response = answer_error(wire::error(request.dialect, *code, &message, None));
                if let Some(value) = retry_after.as_ref().and_then(|value| value.parse().ok()) {
                    response.headers_mut().insert(header::RETRY_AFTER, value);
                }
                return response;
            }
        }
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let answer = Answer::new(turn, request, created);
    let whole = pace.is_zero() && cut.is_none() && padding.is_none();
    let mut parts: Box<dyn Iterator<Item = Part> + Send> = match (malformed, request.stream) {
        (true, true) => Box::new([Part::plain("data: {\"choices\": [{\"delta\": \n\n"), Part::plain("data: [DONE]\n\n")].into_iter()),
        (true, false) => Box::new(std::iter::once(Part::plain("{\"choices\": [{\"message\": "))),
        (false, true) if endless => Box::new(std::iter::repeat_with(move || answer.endless_chunk())),
        (false, true) => Box::new(answer.stream(done).into_iter()),
        (false, false) if endless => {
            Box::new(std::iter::once(Part::plain("{\"padding\":\"")).chain(std::iter::repeat_with(|| Part::plain("and so on "))))
        }
        (false, false) if whole => Box::new(std::iter::once(answer.json())),
        (false, false) => Box::new(in_pieces(answer.json())),
    };
    if let Some(bytes) = padding {
        parts = Box::new(padded(parts, bytes, request));
    }
    let kind = if request.stream { "text/event-stream; charset=utf-8" } else { "application/json" };
    let headers = [(header::CONTENT_TYPE, kind), (header::HeaderName::from_static("x-request-id"), "req_scripted")];
    if !request.stream && whole && !endless {
        let part = parts.next().unwrap_or_else(|| Part::plain(""));
        sent(model, &request.model, part.reports);
        model.inner.ledger.count(&request.model, |line| line.finished += 1);
        return (headers, part.bytes).into_response();
    }
    (headers, Body::from_stream(paced(model.clone(), request.model.clone(), parts, pace, cut))).into_response()
}

fn in_pieces(part: Part) -> impl Iterator<Item = Part> {
    let mut rest = part.bytes;
    let mut reports = part.reports;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bytes = rest.split_to(JSON_PIECE.min(rest.len()));
        Some(Part { bytes, reports: if rest.is_empty() { reports.take() } else { None } })
    })
}

/// Put a long string before the rest, in the first event of a stream or as the first member of the JSON object.
fn padded(parts: Box<dyn Iterator<Item = Part> + Send>, bytes: u64, request: &Request) -> impl Iterator<Item = Part> + Send + use<> {
    const BLOCK: u64 = 64 * 1024;
    let stream = request.stream;
    let (open, close) = if stream { wire::padding(request.dialect) } else { ("{\"padding\":\"", "\",") };
    let block = Bytes::from(vec![b'x'; BLOCK as usize]);
    let blocks = (0..bytes.div_ceil(BLOCK)).map(move |at| Part::plain(block.slice(..BLOCK.min(bytes - at * BLOCK) as usize)));
    let rest = parts.enumerate().map(move |(at, mut part)| {
        if at == 0 && !stream {
            part.bytes = part.bytes.slice(1..);
        }
        part
    });
    std::iter::once(Part::plain(open)).chain(blocks).chain(std::iter::once(Part::plain(close))).chain(rest)
}

fn paced(
    model: ScriptedModel,
    name: String,
    parts: Box<dyn Iterator<Item = Part> + Send>,
    pace: Duration,
    cut: Option<usize>,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    // The iterators are Send but not Sync; a body stream needs no Sync.
    futures::stream::unfold((parts, 0usize), move |(mut parts, number)| {
        let (model, name) = (model.clone(), name.clone());
        async move {
            if cut == Some(number) {
                tokio::task::yield_now().await; // lets the server flush what came before
                let cut = std::io::Error::other("cut as told");
                return Some((Err(cut), (Box::new(std::iter::empty()) as Box<dyn Iterator<Item = Part> + Send>, usize::MAX)));
            }
            let Some(part) = parts.next() else {
                if number != usize::MAX {
                    model.inner.ledger.count(&name, |line| line.finished += 1);
                }
                return None;
            };
            if !pace.is_zero() {
                tokio::time::sleep(pace).await;
            }
            sent(&model, &name, part.reports);
            Some((Ok(part.bytes), (parts, number.saturating_add(1))))
        }
    })
    .boxed()
}

fn sent(model: &ScriptedModel, name: &str, reports: Option<(i64, i64)>) {
    let Some((prompt, completion)) = reports else { return };
    model.inner.ledger.count(name, |line| {
        line.prompt_tokens = line.prompt_tokens.saturating_add(prompt);
        line.completion_tokens = line.completion_tokens.saturating_add(completion);
    });
}

/// The answer to `GET /__bill`, for clients.
pub fn parse_bill(body: &[u8]) -> Result<BTreeMap<String, Line>, serde_json::Error> {
    serde_json::from_slice(body)
}

/// A minimal request body, for tests of what lies between.
pub fn request_body(model: &str, text: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]})
}
