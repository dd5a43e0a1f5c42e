//! Every refusal of the model route, as the client sees it. Nothing in here knows a provider's name, address or words.

use std::time::Duration;

use agentrun_crds::budget::Dimension;
use agentrun_crds::model_provider::Dialect;
use agentrun_crds::period::Window;
use http::{HeaderName, HeaderValue, StatusCode, header};

use super::judge::BodyError;
use super::operation;
use crate::budget::{NotAdmitted, TooSoon};
use crate::error::ApiError;

const INVALID: &str = "invalid_request_error";
const UPSTREAM: &str = "api_error";
/// A Retry-After says no more seconds than this.
const MOST_RETRY_AFTER: i64 = 3600;
/// OpenAI's word for a budget that is spent.
pub const QUOTA: &str = "insufficient_quota";

/// Tells clients that follow OpenAI's conventions not to try again.
fn no_retry(error: ApiError) -> ApiError {
    error.header(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"))
}

/// A body that is not forwarded; it costs nothing.
pub fn body(error: BodyError) -> ApiError {
    match error {
        BodyError::Malformed(error) => ApiError::bad_request("malformed_body", error.to_string()).field("body").kind(INVALID),
        BodyError::Field { code, field, message } => ApiError::bad_request(code, message).field(field).kind(INVALID),
        error @ BodyError::WrongModel(_) => {
            no_retry(ApiError::new(StatusCode::NOT_FOUND, "model_not_offered", error.to_string()).field("model").kind(INVALID))
        }
    }
}

/// The run's model speaks another dialect than the route.
pub fn other_dialect(spoken: Dialect) -> ApiError {
    let message = format!("the run's model speaks {}: its route is {}", spoken.as_str(), operation::route(spoken));
    no_retry(ApiError::bad_request("wrong_dialect", message).kind(INVALID))
}

/// A call that the budget does not admit.
pub fn budget(refused: NotAdmitted) -> ApiError {
    match refused {
        NotAdmitted::Inactive => ApiError::inactive_run_token(),
        NotAdmitted::Exhausted(dimension) => no_retry(
            ApiError::new(
                StatusCode::FORBIDDEN,
                "model_request_budget_exhausted",
                format!("the run's budget of {dimension} is spent, or too little is left for this call; no later retry can succeed"),
            )
            .kind(QUOTA)
            .field(dimension_field(dimension)),
        ),
        // Not 429: most agents try that again for as long as they live, whatever else the answer says.
        NotAdmitted::NamespaceExhausted { dimension, window, seconds_left } => {
            let Window { period, end, .. } = window;
            let message = format!(
                "the namespace's budget of {dimension} for this {period} is spent, or too little is left for this call; it begins anew at {end}"
            );
            let retry_after = HeaderValue::from(seconds_left.clamp(1, MOST_RETRY_AFTER));
            no_retry(
                ApiError::new(StatusCode::FORBIDDEN, "namespace_budget_exhausted", message)
                    .kind(QUOTA)
                    .field(dimension_field(dimension))
                    .header(header::RETRY_AFTER, retry_after),
            )
        }
        NotAdmitted::Unpriced => {
            let message = "the run or its namespace has a cost limit, but the model has no price";
            no_retry(ApiError::new(StatusCode::FORBIDDEN, "unpriced_model", message).kind(QUOTA))
        }
        NotAdmitted::Contended(dimension) => {
            busy(format!("the rest of the budget of {dimension} is reserved by calls in flight; try again when they end"))
        }
        NotAdmitted::TooManyInFlight => too_many_in_flight(),
        NotAdmitted::Failed(error) => error.kind(UPSTREAM),
    }
}

/// The run, or this process, has too many calls open.
pub fn too_many_in_flight() -> ApiError {
    busy("too many calls are in flight; try again when one has ended")
}

/// The run, or its namespace, calls more often than it may.
pub fn too_soon(refused: TooSoon) -> ApiError {
    let TooSoon { of, per_minute, retry_after } = refused;
    let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
    let message = format!("the {of} may make {per_minute} calls a minute; try again in {seconds} s");
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
        .kind("rate_limit_error")
        .header(header::RETRY_AFTER, HeaderValue::from(seconds))
}

fn busy(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_calls_in_flight", message)
        .kind("rate_limit_error")
        .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
}

pub fn dimension_field(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Requests => "budget.requests",
        Dimension::InputTokens => "budget.inputTokens",
        Dimension::OutputTokens => "budget.outputTokens",
        Dimension::Cost => "budget.cost",
    }
}

/// 502 with one of our own sentences.
pub fn bad_gateway(code: &'static str, message: &'static str) -> ApiError {
    ApiError::new(StatusCode::BAD_GATEWAY, code, message).kind(UPSTREAM)
}

pub fn misconfigured() -> ApiError {
    no_retry(bad_gateway("provider_misconfigured", "the model provider is not set up rightly; the gateway's log says what is wrong"))
}

pub fn auth_failed() -> ApiError {
    no_retry(bad_gateway("provider_auth_failed", "the model provider refused the gateway's key"))
}

pub fn unavailable() -> ApiError {
    bad_gateway("provider_unavailable", "the model provider could not be reached or failed")
}

/// Its providers have failed too often of late to be asked again at once.
pub fn resting(wait: Option<Duration>) -> ApiError {
    let seconds = wait.unwrap_or(Duration::from_secs(1)).as_secs().saturating_add(1);
    unavailable_for_now().header(header::RETRY_AFTER, HeaderValue::from(seconds))
}

fn unavailable_for_now() -> ApiError {
    let message = "the model provider keeps failing and is left alone for a while; try again later";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "provider_unavailable", message).kind(UPSTREAM)
}

pub fn timed_out() -> ApiError {
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "provider_timeout", "the model provider did not answer in time").kind(UPSTREAM)
}

pub fn invalid_response() -> ApiError {
    bad_gateway("provider_response_invalid", "the model provider's answer is not what its dialect says")
}

pub fn response_too_large() -> ApiError {
    no_retry(bad_gateway("provider_response_too_large", "the model provider's answer is larger than the provider's cap allows"))
}

pub fn incomplete() -> ApiError {
    bad_gateway("provider_stream_incomplete", "the model provider's stream broke off before its end")
}

fn overloaded(retry_after: Option<HeaderValue>) -> ApiError {
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "provider_overloaded", "the model provider is overloaded").kind(UPSTREAM);
    match retry_after {
        Some(value) => error.header(header::RETRY_AFTER, value),
        None => error,
    }
}

/// What to answer for a provider's complete error response. `code` is the provider's own word, from a closed list.
pub fn provider_status(status: StatusCode, code: Option<&'static str>, retry_after: Option<HeaderValue>) -> ApiError {
    match status.as_u16() {
        300..=399 => no_retry(bad_gateway("provider_redirect", "the model provider redirects, which is not followed")),
        401 | 403 => auth_failed(),
        402 => no_retry(bad_gateway("provider_auth_failed", "the model provider's account has no credit left")),
        404 | 405 => misconfigured(),
        413 => ApiError::too_large("the model provider finds the request too large").kind(INVALID),
        408 | 425 | 429 => {
            let error =
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "provider_rate_limited", "the model provider limits the rate of calls");
            let error = error.kind("rate_limit_error");
            match retry_after {
                Some(value) => error.header(header::RETRY_AFTER, value),
                None => error,
            }
        }
        400..=499 => match code {
            Some("context_length_exceeded") => {
                ApiError::bad_request("context_length_exceeded", "the conversation is longer than the model's context")
                    .field("messages")
                    .kind(INVALID)
            }
            _ => ApiError::bad_request("provider_rejected_request", "the model provider refused the request as invalid").kind(INVALID),
        },
        529 => overloaded(retry_after),
        _ => unavailable(),
    }
}

/// A Retry-After of seconds.
pub fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The embeddings route of a run that has no model for it.
pub fn no_embeddings() -> ApiError {
    let message = "the run has no model for embeddings; the AgentPolicy offers one beside a model, as models[].embeddings";
    no_retry(ApiError::bad_request("wrong_dialect", message).kind(INVALID))
}

/// A path that names a call that is not served.
pub fn no_such_call() -> ApiError {
    let message = "supported calls: generateContent, streamGenerateContent, countTokens";
    ApiError::not_found(message).kind(INVALID)
}

/// A listing's model that is none of the run's.
pub fn no_such_model() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "model_not_found", "the run may use no such model; GET the list for those that it may use")
        .kind(INVALID)
}

/// A provider's Retry-After, if it is a plain number of seconds or a date.
pub fn safe_retry_after(value: Option<&HeaderValue>) -> Option<HeaderValue> {
    let text = value?.to_str().ok()?;
    let seconds = text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
    let date = jiff::fmt::rfc2822::parse(text).is_ok();
    (seconds || date).then(|| value.cloned()).flatten()
}
