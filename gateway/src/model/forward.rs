//! From a reservation to an answer: dispatch, at most one retry with a reservation of its own, then the reply read and judged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_protocol::token::Claims;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::booking::{Bill, Booking, Ending};
use super::call::Call;
use super::provider::Provider;
use super::pump::Pump;
use super::refusal;
use super::revocation::Permit;
use super::upstream::{self, Failure, ReadError};
use super::usage;
use crate::app::AppState;
use crate::budget::{Ask, Reserved};
use crate::error::ApiError;

/// Wait before the one retry.
const BACKOFF: Duration = Duration::from_millis(250);
/// What is read of a provider's error.
const ERROR_BYTES: usize = 64 * 1024;
const ERROR_TIME: Duration = Duration::from_secs(5);

/// A call that was authenticated, judged and admitted.
pub struct Admitted {
    pub state: AppState,
    pub run: Arc<AgentRun>,
    pub claims: Claims,
    pub call: Call,
    pub provider: Arc<Provider>,
    /// The upstream's name of the model.
    pub upstream_model: String,
    /// The run's name of the model.
    pub model: String,
    pub ask: Ask,
    pub permit: Permit,
    pub slot: OwnedSemaphorePermit,
    pub started: Instant,
}

/// What one dispatch came to, if not an answer to hand on.
struct Failed {
    error: ApiError,
    /// Nothing was answered that could not be asked again.
    retry: bool,
}

impl Admitted {
    /// Send it and answer.
    pub async fn forward(self, reserved: Reserved) -> Result<Response, ApiError> {
        let deadline = tokio::time::Instant::now() + self.provider.timeouts.total;
        let revoked = self.permit.revoked().clone();
        // When the run loses its authority, dropping the call stops the upstream and charges the reservation.
        let (booking, answer) = tokio::select! {
            biased;
            () = revoked.cancelled() => return Err(self.permit.refusal()),
            dispatched = self.dispatch_with_retry(reserved) => dispatched?,
        };
        if self.call.stream() { self.stream(booking, answer, deadline) } else { self.whole(booking, answer, deadline).await }
    }

    async fn dispatch_with_retry(&self, reserved: Reserved) -> Result<(Booking, http::Response<Incoming>), ApiError> {
        let first = match self.dispatch(reserved).await {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        if !first.retry {
            return Err(first.error);
        }
        tokio::time::sleep(BACKOFF).await;
        let again = Ask { requests: 0, ..self.ask };
        let Ok(reserved) = self.state.ledger.reserve(self.run.clone(), self.claims, again).await else { return Err(first.error) };
        self.dispatch(reserved).await.map_err(|second| second.error)
    }

    async fn dispatch(&self, reserved: Reserved) -> Result<(Booking, http::Response<Incoming>), Failed> {
        let body = self.call.render(&self.upstream_model, reserved.granted().amount.output_tokens);
        self.state.metrics.dispatched_after(self.started.elapsed());
        let dispatched = reserved.dispatch();
        let booking = Booking::new(self.state.clone(), self.run.clone(), self.model.clone(), self.ask.price, self.started, dispatched);
        let Some(proof) = booking.dispatched() else { return Err(Failed { error: ApiError::internal("no reservation"), retry: false }) };
        let sent = upstream::send(&self.state.model.providers, &self.provider, proof, body, self.call.stream()).await;
        let response = match sent {
            Ok(response) => response,
            Err(Failure::NoKey(error)) => {
                tracing::error!(%error, "a provider's key cannot be used");
                booking.finish(Bill::Nothing, Ending::NoKey);
                return Err(Failed { error: refusal::misconfigured(), retry: false });
            }
            Err(Failure::NotSent) => {
                booking.finish(Bill::NotSent, Ending::Unreachable);
                return Err(Failed { error: refusal::unavailable(), retry: true });
            }
            Err(Failure::Lost) => {
                booking.finish(Bill::Reservation, Ending::Lost);
                return Err(Failed { error: refusal::unavailable(), retry: false });
            }
            Err(Failure::Slow) => {
                booking.finish(Bill::Reservation, Ending::TimedOut);
                return Err(Failed { error: refusal::timed_out(), retry: false });
            }
        };
        if response.status() == StatusCode::OK {
            return Ok((booking, response));
        }
        Err(self.refused(booking, response).await)
    }

    /// The provider answered, but not with a completion.
    async fn refused(&self, booking: Booking, response: http::Response<Incoming>) -> Failed {
        let status = response.status();
        tracing::warn!(provider_status = status.as_u16(), "a provider refused a call");
        if status.is_success() || status.is_informational() {
            booking.finish(Bill::Reservation, Ending::Invalid);
            return Failed { error: refusal::invalid_response(), retry: false };
        }
        let retry_after = refusal::safe_retry_after(response.headers().get(header::RETRY_AFTER));
        let body = upstream::collect(response.into_body(), ERROR_BYTES, ERROR_TIME, tokio::time::Instant::now() + ERROR_TIME).await;
        // An answer that is cut says nothing for sure, not even that nothing was billed.
        let bill = if body.is_ok() { Bill::RequestOnly } else { Bill::Reservation };
        let ending = match status.as_u16() {
            401 | 403 => {
                self.state.model.providers.forget_key(&self.provider);
                Ending::AuthFailed
            }
            429 => Ending::RateLimited,
            _ => Ending::Refused,
        };
        booking.finish(bill, ending);
        let code = body.ok().and_then(|body| upstream::known_error_code(&body));
        Failed { error: refusal::provider_status(status, code, retry_after), retry: matches!(status.as_u16(), 500 | 502 | 503 | 504) }
    }

    fn stream(self, booking: Booking, answer: http::Response<Incoming>, deadline: tokio::time::Instant) -> Result<Response, ApiError> {
        if !upstream::is_media_type(answer.headers(), "text/event-stream") {
            booking.finish(Bill::Reservation, Ending::Invalid);
            return Err(refusal::invalid_response());
        }
        let pump = Pump {
            upstream: answer.into_body(),
            usage_wanted: self.call.usage_wanted(),
            booking,
            permit: self.permit,
            slot: self.slot,
            idle: self.provider.timeouts.idle,
            deadline,
            response_bytes: self.provider.response_bytes,
        };
        Ok(pump.start(&self.state.model.tasks))
    }

    async fn whole(self, booking: Booking, answer: http::Response<Incoming>, deadline: tokio::time::Instant) -> Result<Response, ApiError> {
        if !upstream::is_media_type(answer.headers(), "application/json") {
            booking.finish(Bill::Reservation, Ending::Invalid);
            return Err(refusal::invalid_response());
        }
        let reading = upstream::collect(answer.into_body(), self.provider.response_bytes, self.provider.timeouts.idle, deadline);
        let body = tokio::select! {
            biased;
            () = self.permit.revoked().cancelled() => {
                booking.finish(Bill::Reservation, Ending::Revoked);
                return Err(self.permit.refusal());
            }
            body = reading => body,
        };
        let (ending, error) = match body {
            Ok(body) => match usage::of_reply(&body) {
                Ok(usage) => {
                    booking.finish(Bill::Reported(usage), Ending::Ok);
                    let mut response = Response::new(Body::from(body));
                    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                    return Ok(response);
                }
                Err(()) => (Ending::Invalid, refusal::invalid_response()),
            },
            Err(ReadError::TooLarge) => (Ending::TooLarge, refusal::response_too_large()),
            Err(ReadError::TimedOut) => (Ending::TimedOut, refusal::timed_out()),
            Err(ReadError::Broken) => (Ending::Incomplete, refusal::incomplete()),
        };
        booking.finish(Bill::Reservation, ending);
        Err(error)
    }
}
