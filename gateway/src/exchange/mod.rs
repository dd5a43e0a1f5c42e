//! The exchange: one-shot ticket, Pod-bound ServiceAccount token and an ephemeral key become three audience tokens, once an
//! attempt and for one holder. Renewal keeps them fresh until the wall time is over.

mod decide;
mod network;
mod pod;
mod request;
#[cfg(test)]
mod tests;
mod tokens;

use std::time::Duration;

use agentrun_protocol::exchange::{ExchangeResponse, RenewResponse};
use agentrun_protocol::routes::{EXCHANGE, RENEW};
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::Request;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use kube::Api;
use tokio::sync::Semaphore;

use crate::app::AppState;
use crate::auth::{AnyAudience, RunCaller};
use crate::error::ApiError;
use crate::runs;

use decide::{Decision, Facts, decide};
use request::Presented;

/// Largest body.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Longest exchange; a repeat gets the same answer.
const TIME: Duration = Duration::from_secs(20);
/// Exchanges at once: each costs the API server several requests before the caller is known.
static SLOTS: Semaphore = Semaphore::const_new(32);

/// Exchange and renewal.
pub fn routes() -> Router<AppState> {
    Router::new().route(EXCHANGE, post(exchange)).route(RENEW, post(renew))
}

async fn exchange(State(state): State<AppState>, request: Request<Body>) -> Result<Json<ExchangeResponse>, ApiError> {
    let answer = tokio::time::timeout(TIME, perform(&state, request))
        .await
        .unwrap_or_else(|_| Err(ApiError::api_server("an exchange took too long")));
    state.metrics.exchange(answer.as_ref().map_or_else(|error| error.code, |_| "granted"));
    answer.map(Json)
}

async fn perform(state: &AppState, request: Request<Body>) -> Result<ExchangeResponse, ApiError> {
    let body = to_bytes(request.into_body(), MAX_BODY_BYTES)
        .await
        .map_err(|_| ApiError::too_large(format!("the body may have at most {MAX_BODY_BYTES} bytes")).field("body"))?;
    let presented = Presented::parse(&body)?;
    let _slot = SLOTS.try_acquire().map_err(|_| ApiError::unavailable("busy", "too many exchanges are under way; try again"))?;
    let pod = pod::authenticate(&state.kube, &presented.pod_token).await?;
    let api: Api<agentrun_crds::AgentRun> = Api::namespaced(state.kube.clone(), &pod.namespace);
    let run =
        api.get_opt(&pod.run_name).await.map_err(ApiError::api_server)?.filter(|run| runs::uid(run) == pod.run_uid).ok_or_else(refused)?;

    let facts = Facts { pod_name: pod.name, pod_uid: pod.uid, presented };
    let now = state.clock.unix_seconds();
    let (decision, run) = state
        .status
        .update(&run, |run, status| {
            let decision = decide(run, &facts, now)?;
            match &decision {
                Decision::Grant(exchange) => status.exchange = Some(exchange.clone()),
                Decision::Repeat(_) => {}
                Decision::Compromise => {
                    if let Some(exchange) = &mut status.exchange {
                        exchange.compromised = true;
                    }
                }
            }
            Ok(decision)
        })
        .await?;
    match decision {
        Decision::Grant(exchange) | Decision::Repeat(exchange) => {
            tracing::info!(run = runs::name(&run), namespace = runs::namespace(&run), attempt = exchange.attempt, "tokens handed out");
            tokens::mint_all(&state.keys.current(), &run, &exchange)
        }
        Decision::Compromise => {
            tracing::error!(run = runs::name(&run), namespace = runs::namespace(&run), "a second holder presented a run's credentials");
            Err(compromised())
        }
    }
}

async fn renew(State(state): State<AppState>, caller: RunCaller<AnyAudience>) -> Result<Json<RenewResponse>, ApiError> {
    let now = state.clock.unix_seconds();
    tokens::renew(&state.keys.current(), &caller.run, &caller.claims, now).map(Json)
}

/// Less than both credentials. Which one was wrong is in the log only.
fn refused() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "exchange_refused",
        "the exchange needs the attempt's ticket, the token of its live Pod, and a signature by the key presented",
    )
}

fn compromised() -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "compromised", "this attempt's credentials were presented by two holders; the run ends")
}
