//! What comes with a call besides its meaning: query, headers and the bytes of the body, each judged or bounded. Nothing of the
//! client's headers goes to a provider but what a short list names.

use std::time::Duration;

use agentrun_crds::model_provider::Dialect;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;

use super::operation::Operation;
use super::upstream;
use crate::error::ApiError;

/// Longest time for a request's body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// An oversize body is read so far, and thrown away, so that the client sees the answer rather than a reset.
const DRAIN_BYTES: usize = 64 << 20;
/// Longest `anthropic-beta`.
const MAX_BETA_BYTES: usize = 2048;
/// Betas that change the price; without them a call does what the model's price says.
const DEARER_BETAS: &[&str] = &["context-1m", "fast-mode"];
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const ANTHROPIC_BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// Query parameters are never sent on; those that would change an answer are refused.
pub fn judge_query(operation: Operation, query: Option<&str>) -> Result<(), ApiError> {
    for parameter in query.unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let admitted = match operation {
            Operation::Chat | Operation::Responses | Operation::Embeddings => false,
            Operation::Messages | Operation::CountTokens => name == "beta" && value == "true",
            Operation::Generate | Operation::GenerateEvents | Operation::GenerateArray | Operation::CountContents => {
                matches!(name, "alt" | "$alt") && matches!(value, "sse" | "json")
            }
        };
        if !admitted {
            let message = "this query parameter is not supported; a token belongs into a header";
            // A key may stand in it, so nothing of it is repeated.
            return Err(ApiError::bad_request("unsupported_parameter", message).field("query").kind("invalid_request_error"));
        }
    }
    Ok(())
}

/// Whether the body is plain JSON.
pub fn judge_media(headers: &HeaderMap) -> Result<(), ApiError> {
    let refused =
        |message: &str, field: &str| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message).field(field));
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return refused("the body must not be compressed", "content-encoding");
    }
    if headers.contains_key(header::CONTENT_TYPE) && !upstream::is_media_type(headers, "application/json") {
        return refused("the body must be application/json", "content-type");
    }
    Ok(())
}

/// The headers that a provider gets from the client.
pub fn forwarded(dialect: Dialect, headers: &HeaderMap) -> Result<HeaderMap, ApiError> {
    let mut sent = HeaderMap::new();
    if dialect == Dialect::AnthropicMessages {
        sent.insert(ANTHROPIC_VERSION, version(headers)?);
        if let Some(betas) = betas(headers)? {
            sent.insert(ANTHROPIC_BETA, betas);
        }
    }
    Ok(sent)
}

fn bad_header(name: &HeaderName, message: &str) -> ApiError {
    ApiError::bad_request("invalid_header", message).field(name.as_str()).kind("invalid_request_error")
}

fn version(headers: &HeaderMap) -> Result<HeaderValue, ApiError> {
    let Some(value) = headers.get(ANTHROPIC_VERSION) else { return Ok(HeaderValue::from_static("2023-06-01")) };
    let date = value.len() == 10 && value.as_bytes().iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
    date.then(|| value.clone()).ok_or_else(|| bad_header(&ANTHROPIC_VERSION, "it must be a date such as 2023-06-01"))
}

fn betas(headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
    let wrong = || bad_header(&ANTHROPIC_BETA, "it must be names of letters, digits, '-', '_' and '.', separated by commas");
    let mut kept = String::new();
    for value in headers.get_all(ANTHROPIC_BETA) {
        for name in value.to_str().map_err(|_| wrong())?.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
            if !plain || kept.len() + name.len() >= MAX_BETA_BYTES {
                return Err(wrong());
            }
            if DEARER_BETAS.iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix)) {
                continue;
            }
            if !kept.is_empty() {
                kept.push(',');
            }
            kept.push_str(name);
        }
    }
    if kept.is_empty() { Ok(None) } else { HeaderValue::from_str(&kept).map(Some).map_err(|_| wrong()) }
}

/// The whole body, if it has at most `cap` bytes and comes in time.
pub async fn read_body(request: Request<Body>, cap: usize) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::too_large(format!("the body may have at most {cap} bytes")).field("body").kind("invalid_request_error");
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut body = request.into_body();
    let mut read = BytesMut::with_capacity(declared.unwrap_or(0).min(cap));
    let mut over = declared.is_some_and(|length| length > cap);
    let mut drained = 0usize;
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ApiError::bad_request("broken_body", "the body ended too early").field("body"))?;
            let Ok(chunk) = frame.into_data() else { continue };
            over |= read.len() + chunk.len() > cap;
            if over {
                drained += chunk.len();
                if drained > DRAIN_BYTES {
                    break;
                }
            } else {
                read.extend_from_slice(&chunk);
            }
        }
        Ok::<(), ApiError>(())
    };
    match tokio::time::timeout(BODY_TIME, reading).await {
        Ok(done) => done?,
        Err(_) if over => {}
        Err(_) => return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_body", "the body did not arrive within 30 s").field("body")),
    }
    if over { Err(too_large()) } else { Ok(read.freeze()) }
}
