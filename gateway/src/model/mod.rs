//! The model proxy: OpenAI chat/completions, JSON and streamed. Its phases are types: a verified token (`RunCaller<Model>`), a
//! judged body (`Call`), an admitted call (`Reserved`, `Admitted`), a dispatched one (`Dispatched`, `Booking`); the provider's
//! key can be had in the last only, and every way out of it settles.

mod booking;
mod call;
mod forward;
mod json;
mod provider;
mod providers;
mod pump;
mod refusal;
mod revocation;
mod sse;
#[cfg(test)]
mod tests;
mod upstream;
mod usage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentrun_crds::agent_run_status::ResolvedModel;
use agentrun_crds::budget::Dimension;
use agentrun_protocol::event::EventType;
use agentrun_protocol::routes::CHAT_COMPLETIONS;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::app::AppState;
use crate::auth::{Model, RunCaller};
use crate::budget::{Ask, NotAdmitted, Price};
use crate::error::ApiError;
use crate::runs::{self, CONFIRMATION_TTL, RunDirectory};

pub use call::{BodyError, Call};
pub use provider::{Provider, ProviderError, Timeouts};
pub use providers::Providers;
pub use revocation::Revocation;

/// Most calls of all runs at once, on this process: each may hold a request and a response in memory.
const MOST_IN_FLIGHT: usize = 512;
/// Longest time for a request's body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// An oversize body is read so far, so that the client sees the answer rather than a reset.
const DRAIN_BYTES: usize = 4 << 20;

/// The proxy's state.
#[derive(Clone)]
pub struct ModelProxy {
    pub providers: Providers,
    pub revocation: Revocation,
    /// Streams, settlements and their events that are still under way.
    pub tasks: TaskTracker,
    slots: Arc<Semaphore>,
}

impl ModelProxy {
    pub fn new(client: kube::Client, namespace: &str, directory: RunDirectory, most_per_run: usize) -> Self {
        ModelProxy {
            providers: Providers::new(client, namespace),
            revocation: Revocation::new(directory, most_per_run),
            tasks: TaskTracker::new(),
            slots: Arc::new(Semaphore::new(MOST_IN_FLIGHT)),
        }
    }

    /// Longest total time of a call to the named provider, in seconds; the longest that any may have if it is not known.
    pub fn longest_call(&self, provider: &str) -> i64 {
        match self.providers.get(provider) {
            // A retry may begin at the end of the first try's wait.
            Some(Ok(provider)) => i64::try_from(provider.timeouts.total.as_secs()).unwrap_or(i64::MAX / 4).saturating_mul(2),
            _ => 2 * 3600,
        }
    }
}

/// The model route.
pub fn routes() -> Router<AppState> {
    Router::new().route(CHAT_COMPLETIONS, post(chat_completions))
}

async fn chat_completions(State(state): State<AppState>, caller: RunCaller<Model>, request: Request<Body>) -> Result<Response, ApiError> {
    let started = Instant::now();
    let answer = call(&state, caller, request, started).await;
    if let Err(error) = &answer {
        state.metrics.call_refused(error.code);
    }
    answer
}

async fn call(state: &AppState, caller: RunCaller<Model>, request: Request<Body>, started: Instant) -> Result<Response, ApiError> {
    let RunCaller { claims, run, .. } = caller;
    // Half of the time that a read counts, so that the call's own watch has the other half for its first one.
    let (since, _) = state.runs.confirm_within(runs::uid(&run), CONFIRMATION_TTL / 2).await?;
    let permit = state.model.revocation.enter(&claims, since).ok_or_else(refusal::too_many_in_flight)?;
    let slot = state.model.slots.clone().try_acquire_owned().map_err(|_| refusal::too_many_in_flight())?;

    let model = run.status.as_ref().and_then(|status| status.resolved.as_ref()).map(|resolved| resolved.model.clone());
    let model = model.ok_or_else(ApiError::inactive_run_token)?;
    let provider = match state.model.providers.get(&model.provider) {
        Some(Ok(provider)) => provider,
        Some(Err(error)) => {
            tracing::error!(provider = model.provider, %error, "this ModelProvider cannot be used");
            return Err(refusal::misconfigured());
        }
        None => {
            tracing::error!(provider = model.provider, "there is no such ModelProvider");
            return Err(refusal::misconfigured());
        }
    };

    acceptable(request.headers())?;
    let revoked = permit.revoked().clone();
    let body = tokio::select! {
        biased;
        () = revoked.cancelled() => return Err(permit.refusal()),
        body = read_body(request, provider.request_bytes) => body?,
    };
    let call = Call::parse(body, &model.name).map_err(refusal::body)?;
    let ask = ask(&call, &model);
    let reserved = tokio::select! {
        biased;
        // Should it be written yet, it is given back.
        () = revoked.cancelled() => return Err(permit.refusal()),
        reserved = state.ledger.reserve(run.clone(), claims, ask) => reserved,
    };
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(refused) => {
            if let NotAdmitted::Exhausted(dimension) = refused {
                say_exhausted(state, &run, dimension);
            }
            return Err(refusal::budget(refused));
        }
    };
    let admitted = forward::Admitted {
        state: state.clone(),
        run,
        claims,
        call,
        provider,
        upstream_model: model.model,
        model: model.name,
        ask,
        permit,
        slot,
        started,
    };
    admitted.forward(reserved).await
}

/// The worst case of one dispatch.
fn ask(call: &Call, model: &ResolvedModel) -> Ask {
    let most = model.max_output_tokens.max(1);
    let price = match (model.input_micros_per_million, model.output_micros_per_million) {
        (Some(input), Some(output)) => Some(Price { input, output }),
        _ => None,
    };
    Ask {
        requests: 1,
        input_tokens: call.input_tokens(),
        output_tokens: call.wanted_output().map_or(most, |wanted| wanted.min(most)),
        price,
    }
}

fn say_exhausted(state: &AppState, run: &Arc<agentrun_crds::AgentRun>, dimension: Dimension) {
    let word = refusal::dimension_field(dimension).trim_start_matches("budget.");
    let data = json!({ "gate": "Open", "dimension": word });
    state.model.tasks.spawn(state.recorder.record(run.clone(), format!("budget-exhausted-{word}"), EventType::Budget, data));
}

fn acceptable(headers: &HeaderMap) -> Result<(), ApiError> {
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

async fn read_body(request: Request<Body>, cap: usize) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::too_large(format!("the body may have at most {cap} bytes")).field("body").kind("invalid_request_error");
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut body = request.into_body();
    let mut read = bytes::BytesMut::with_capacity(declared.unwrap_or(0).min(cap));
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
