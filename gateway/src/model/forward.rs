//! From a reservation to an answer: dispatch, one retry or the next provider with a reservation of its own, then the reply read
//! and judged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_protocol::token::Claims;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::booking::{Bill, Booking, Ending};
use super::call::Call;
use super::provider::Provider;
use super::pump::Pump;
use super::refusal;
use super::revocation::Permit;
use super::target::{self, Target};
use super::upstream::{self, Failure, Large, Outgoing, ReadError};
use super::usage;
use crate::app::AppState;
use crate::budget::Reserved;
use crate::error::ApiError;

/// Wait before the one retry at the same provider.
const BACKOFF: Duration = Duration::from_millis(250);
/// A provider that limits the rate is asked again if it says that it will be no longer than this.
const SHORT_WAIT: Duration = Duration::from_secs(2);
/// What is read of a provider's error.
const ERROR_BYTES: usize = 64 * 1024;
const ERROR_TIME: Duration = Duration::from_secs(5);

/// A call that was authenticated, judged and admitted.
pub struct Admitted {
    pub state: AppState,
    pub run: Arc<AgentRun>,
    pub claims: Claims,
    pub call: Call,
    /// For the provider, besides our own.
    pub headers: HeaderMap,
    pub targets: Vec<Target>,
    /// The target that the reservation was made for.
    pub first: usize,
    /// The run's name of the model.
    pub model: String,
    pub permit: Permit,
    pub slot: OwnedSemaphorePermit,
    pub started: Instant,
}

/// What one dispatch came to, if not an answer to hand on.
struct Failed {
    error: ApiError,
    next: Next,
    /// The request counts, also if nothing else of it does.
    counted: bool,
}

/// What may still be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The request itself is at fault.
    Nothing,
    /// It may have been taken, or this provider will not have it.
    OtherProvider,
    /// Nothing was taken: the same provider may be asked again after a while.
    Again(Duration),
}

/// A provider's answer that is one.
struct Answered {
    booking: Booking,
    response: http::Response<Incoming>,
    provider: Arc<Provider>,
}

impl Admitted {
    /// Send it and answer.
    pub async fn forward(self, reserved: Reserved) -> Result<Response, ApiError> {
        let started = tokio::time::Instant::now();
        let revoked = self.permit.revoked().clone();
        // When the run loses its authority, dropping the call stops the upstream and charges the reservation.
        let answered = tokio::select! {
            biased;
            () = revoked.cancelled() => return Err(self.permit.refusal()),
            answered = self.ask_in_turn(reserved) => answered?,
        };
        let deadline = started + answered.provider.timeouts.total;
        if self.call.stream() { self.stream(answered, deadline) } else { self.whole(answered, deadline).await }
    }

    /// One provider after the other until one answers; a single one is asked once more if nothing was taken. All of it is one
    /// request of the run, and each dispatch has a reservation of its own.
    async fn ask_in_turn(&self, reserved: Reserved) -> Result<Answered, ApiError> {
        let mut at = self.first;
        let mut failed = match self.dispatch(&self.targets[at], reserved).await {
            Ok(answered) => return Ok(answered),
            Err(failed) => failed,
        };
        let mut counted = failed.counted;
        loop {
            let now = tokio::time::Instant::now();
            at = match failed.next {
                Next::Nothing => return Err(failed.error),
                // Another one, if there is one that is worth it.
                next => match (target::first_willing(&self.targets, at + 1, now), next) {
                    (Ok(other), _) => {
                        self.state.metrics.failed_over();
                        other
                    }
                    (Err(_), Next::Again(wait)) if self.targets.len() == 1 && at == self.first => {
                        tokio::time::sleep(wait).await;
                        self.targets.len() // past the end: the same once more
                    }
                    _ => return Err(failed.error),
                },
            };
            let target = self.targets.get(at).unwrap_or(&self.targets[self.first]);
            let ask = target.ask(&self.call, i64::from(!counted));
            let Ok(reserved) = self.state.ledger.reserve(self.run.clone(), self.claims, ask).await else { return Err(failed.error) };
            failed = match self.dispatch(target, reserved).await {
                Ok(answered) => return Ok(answered),
                Err(failed) => failed,
            };
            counted |= failed.counted;
        }
    }

    async fn dispatch(&self, target: &Target, reserved: Reserved) -> Result<Answered, Failed> {
        let provider = target.provider.clone();
        let operation = self.call.operation();
        let Ok(uri) = provider.uri(operation, &target.model) else {
            tracing::error!(provider = provider.name, "a model's name does not fit into its provider's URL");
            return Err(Failed { error: refusal::misconfigured(), next: Next::OtherProvider, counted: false });
        };
        let body = self.call.render(&target.model, provider.output_limit(&target.model), reserved.granted().amount.output_tokens);
        let outgoing = Outgoing { uri, headers: self.headers.clone(), body, stream: self.call.stream() };
        self.state.metrics.dispatched_after(self.started.elapsed());
        let dispatched = reserved.dispatch();
        let booking = Booking::new(self.state.clone(), self.run.clone(), self.model.clone(), target.prices, self.started, dispatched);
        let Some(proof) = booking.dispatched() else {
            return Err(Failed { error: ApiError::internal("no reservation"), next: Next::Nothing, counted: false });
        };
        let sent = upstream::send(&self.state.model.providers, &provider, proof, outgoing).await;
        if !matches!(sent, Ok(_) | Err(Failure::NoKey(_))) {
            self.note_failure(&provider);
        }
        let (bill, ending, error, next) = match sent {
            Ok(response) if response.status() == StatusCode::OK => {
                provider.breaker.answered();
                return Ok(Answered { booking, response, provider });
            }
            Ok(response) => return Err(self.refused(booking, response, &provider).await),
            Err(Failure::NoKey(error)) => {
                tracing::error!(provider = provider.name, %error, "a provider's key cannot be used");
                booking.finish(Bill::Nothing, Ending::NoKey);
                return Err(Failed { error: refusal::misconfigured(), next: Next::OtherProvider, counted: false });
            }
            Err(Failure::NotSent) => (Bill::NotSent, Ending::Unreachable, refusal::unavailable(), Next::Again(BACKOFF)),
            Err(Failure::Unprocessed) => (Bill::RequestOnly, Ending::Unreachable, refusal::unavailable(), Next::Again(BACKOFF)),
            Err(Failure::Lost) => (Bill::Reservation, Ending::Lost, refusal::unavailable(), Next::OtherProvider),
            Err(Failure::Slow) => (Bill::Reservation, Ending::TimedOut, refusal::timed_out(), Next::OtherProvider),
        };
        booking.finish(bill, ending);
        Err(Failed { error, next, counted: true })
    }

    fn large(&self) -> Large<'_> {
        Large { places: &self.state.model.large, key: crate::runs::uid(&self.run) }
    }

    fn note_failure(&self, provider: &Provider) {
        if provider.breaker.failed(tokio::time::Instant::now()) {
            tracing::warn!(provider = provider.name, "a provider keeps failing; it is left alone for a while");
            self.state.metrics.breaker_opened();
        }
    }

    /// The provider answered, but not with a completion.
    async fn refused(&self, booking: Booking, response: http::Response<Incoming>, provider: &Provider) -> Failed {
        let status = response.status();
        tracing::warn!(
            provider = provider.name,
            run = crate::runs::uid(&self.run),
            provider_status = status.as_u16(),
            "a provider refused a call"
        );
        if status.is_success() || status.is_informational() {
            booking.finish(Bill::Reservation, Ending::Invalid);
            return Failed { error: refusal::invalid_response(), next: Next::OtherProvider, counted: true };
        }
        let retry_after = refusal::safe_retry_after(response.headers().get(header::RETRY_AFTER));
        let deadline = tokio::time::Instant::now() + ERROR_TIME;
        let body = upstream::collect(response.into_body(), ERROR_BYTES, ERROR_TIME, deadline, self.large()).await;
        // An answer that is cut says nothing for sure, not even that nothing was billed.
        let bill = if body.is_ok() { Bill::RequestOnly } else { Bill::Reservation };
        let (ending, next) = match status.as_u16() {
            401 | 403 => {
                self.state.model.providers.forget_key(provider);
                (Ending::AuthFailed, Next::OtherProvider)
            }
            429 => match retry_after.as_ref().and_then(refusal::seconds).filter(|wait| *wait <= SHORT_WAIT) {
                Some(wait) => (Ending::RateLimited, Next::Again(wait.max(BACKOFF))),
                None => (Ending::RateLimited, Next::OtherProvider),
            },
            500 | 502 | 503 | 504 | 529 => (Ending::Refused, Next::Again(BACKOFF)),
            400 | 413 | 422 => (Ending::Refused, Next::Nothing),
            _ => (Ending::Refused, Next::OtherProvider),
        };
        if status.is_server_error() {
            self.note_failure(provider);
        } else {
            provider.breaker.answered();
        }
        // The same provider must not be asked again for what may have been taken.
        let next = if body.is_ok() || next == Next::Nothing { next } else { Next::OtherProvider };
        booking.finish(bill, ending);
        let code = body.ok().and_then(|body| upstream::known_error_code(&body));
        Failed { error: refusal::provider_status(status, code, retry_after), next, counted: true }
    }

    fn stream(self, answered: Answered, deadline: tokio::time::Instant) -> Result<Response, ApiError> {
        let Answered { booking, response: answer, provider } = answered;
        if !upstream::is_media_type(answer.headers(), "text/event-stream") {
            booking.finish(Bill::Reservation, Ending::Invalid);
            return Err(refusal::invalid_response());
        }
        let pump = Pump {
            upstream: answer.into_body(),
            operation: self.call.operation(),
            usage_wanted: self.call.usage_wanted(),
            booking,
            permit: self.permit,
            slot: self.slot,
            idle: provider.timeouts.idle,
            deadline,
            response_bytes: provider.response_bytes,
        };
        Ok(pump.start(&self.state.model.tasks))
    }

    async fn whole(self, answered: Answered, deadline: tokio::time::Instant) -> Result<Response, ApiError> {
        let Answered { booking, response: answer, provider } = answered;
        if !upstream::is_media_type(answer.headers(), "application/json") {
            booking.finish(Bill::Reservation, Ending::Invalid);
            return Err(refusal::invalid_response());
        }
        let reading = upstream::collect(answer.into_body(), provider.response_bytes, provider.timeouts.idle, deadline, self.large());
        let body = tokio::select! {
            biased;
            () = self.permit.revoked().cancelled() => {
                booking.finish(Bill::Reservation, Ending::Revoked);
                return Err(self.permit.refusal());
            }
            body = reading => body,
        };
        let (ending, error) = match body {
            Ok(body) => match usage::of_reply(self.call.operation(), &body) {
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
