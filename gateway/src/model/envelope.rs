//! Refusals in the words of each dialect: what its clients look for is in the place where they look for it, and our own code beside
//! it. `{"error": {code, message, field, type}}` for OpenAI's, `{"type": "error", "error": {type, message}}` for Anthropic's,
//! `{"error": {code, message, status, details}}` for Google's.

use agentrun_crds::model_provider::Dialect;
use agentrun_protocol::error::ERROR_HEADER;
use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::operation::Operation;
use super::refusal;
use crate::error::ApiError;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A refusal as the answer to a request.
pub fn respond(operation: Operation, mut error: ApiError) -> Response {
    // A run that has ended stays so; without this some clients ask for minutes.
    if error.status == StatusCode::UNAUTHORIZED {
        error = error.header(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if operation == Operation::Responses {
        error = for_codex(error);
    }
    let body = body(operation, &error);
    let mut response = (error.status, Json(body)).into_response();
    response.headers_mut().insert(HeaderName::from_static(ERROR_HEADER), HeaderValue::from_static(error.code));
    for (name, value) in error.headers {
        response.headers_mut().append(name, value);
    }
    response
}

/// The same as the last event of a stream that has begun; `first` if it is the first element of an array.
pub fn event(operation: Operation, error: &ApiError, first: bool) -> Bytes {
    let body = body(operation, error);
    Bytes::from(match operation.dialect() {
        Dialect::OpenAIChat | Dialect::OpenAIEmbeddings => format!("data: {body}\n\n"),
        Dialect::AnthropicMessages => format!("event: error\ndata: {body}\n\n"),
        // What ends a stream of this dialect, so that no client waits for another.
        Dialect::OpenAIResponses => {
            let failure = json!({ "code": error.code, "message": error.message });
            let response = json!({ "object": "response", "status": "failed", "error": failure, "output": [], "usage": null });
            let event = json!({ "type": "response.failed", "response": response });
            format!("event: response.failed\ndata: {event}\n\n")
        }
        Dialect::Gemini if operation == Operation::GenerateArray => format!("{}{body}]\r\n", if first { "[" } else { ",\r\n" }),
        Dialect::Gemini => format!("data: {body}\n\n"),
    })
}

fn body(operation: Operation, error: &ApiError) -> Value {
    match operation.dialect() {
        Dialect::OpenAIChat | Dialect::OpenAIResponses | Dialect::OpenAIEmbeddings => {
            serde_json::to_value(error.body()).unwrap_or_default()
        }
        Dialect::Gemini => {
            let mut info = json!({ "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code, "domain": "agentrun.dev" });
            if let Some(field) = &error.field {
                info["metadata"] = json!({ "field": field });
            }
            let detail = json!({
                "code": error.status.as_u16(), "message": error.message, "status": gemini_status(error.status), "details": [info],
            });
            json!({ "error": detail })
        }
        Dialect::AnthropicMessages => {
            let mut detail = json!({ "type": anthropic_type(error.status), "message": error.message, "code": error.code });
            if let Some(field) = &error.field {
                detail["field"] = field.as_str().into();
            }
            json!({ "type": "error", "error": detail })
        }
    }
}

/// The chief client of Responses takes a 403 for something that may pass; what ends it at once is a 429 that says that the quota is
/// spent.
fn for_codex(mut error: ApiError) -> ApiError {
    if error.kind == Some(refusal::QUOTA) {
        error.status = StatusCode::TOO_MANY_REQUESTS;
    }
    error
}

fn gemini_status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        400..=499 => "INVALID_ARGUMENT",
        504 => "DEADLINE_EXCEEDED",
        502 | 503 => "UNAVAILABLE",
        _ => "INTERNAL",
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}
