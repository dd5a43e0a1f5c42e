//! A dispatched call with all that its end must write: settlement, event, metrics. Whatever way a call ends, also by being
//! dropped with its client, it ends here, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_crds::budget::Amount;
use agentrun_protocol::event::EventType;
use futures::FutureExt;
use serde_json::json;

use super::prices::Prices;
use super::usage::Usage;
use crate::app::AppState;
use crate::budget::{Charge, Dispatched, Settled};

/// How a call that was sent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Ok,
    /// The answer says what went wrong, and it is complete.
    Refused,
    RateLimited,
    AuthFailed,
    Unreachable,
    Lost,
    TimedOut,
    Incomplete,
    Invalid,
    TooLarge,
    Revoked,
    ClientGone,
    NoKey,
}

impl Ending {
    /// In events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Ok => "ok",
            Ending::Refused => "provider_refused",
            Ending::RateLimited => "provider_rate_limited",
            Ending::AuthFailed => "provider_auth_failed",
            Ending::Unreachable => "provider_unreachable",
            Ending::Lost => "provider_connection_lost",
            Ending::TimedOut => "provider_timeout",
            Ending::Incomplete => "provider_stream_incomplete",
            Ending::Invalid => "provider_response_invalid",
            Ending::TooLarge => "provider_response_too_large",
            Ending::Revoked => "revoked",
            Ending::ClientGone => "client_gone",
            Ending::NoKey => "provider_key_missing",
        }
    }
}

/// What a call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bill {
    /// Unknown outcome: the reservation.
    Reservation,
    /// The provider's own report; `None` is an unknown outcome.
    Reported(Option<Usage>),
    /// The provider refused, completely: the request counts, no tokens.
    RequestOnly,
    /// It never left: the request counts, no upstream attempt.
    NotSent,
    /// Our own fault before anything was sent.
    Nothing,
}

/// See the module.
pub struct Booking {
    state: AppState,
    run: Arc<AgentRun>,
    model: String,
    prices: Option<Prices>,
    started: Instant,
    dispatched: Option<Dispatched>,
}

impl Booking {
    pub fn new(
        state: AppState,
        run: Arc<AgentRun>,
        model: String,
        prices: Option<Prices>,
        started: Instant,
        dispatched: Dispatched,
    ) -> Self {
        Booking { state, run, model, prices, started, dispatched: Some(dispatched) }
    }

    /// The proof that the provider's key may be used.
    pub fn dispatched(&self) -> Option<&Dispatched> {
        self.dispatched.as_ref()
    }

    /// The end. Settlement is enqueued before this returns; a later reservation of the run is decided after it.
    pub fn finish(mut self, bill: Bill, ending: Ending) {
        self.end(bill, ending);
    }

    fn end(&mut self, bill: Bill, ending: Ending) {
        let Some(dispatched) = self.dispatched.take() else { return };
        let (key, granted) = (format!("model-call-{}", dispatched.id()), dispatched.granted().amount);
        let request = Amount { requests: granted.requests, ..Amount::default() };
        let charge = match bill {
            Bill::Reservation | Bill::Reported(None) => Charge::Full { attempts: 1 },
            Bill::Reported(Some(usage)) => Charge::Actual {
                amount: Amount {
                    requests: granted.requests,
                    input_tokens: usage.input_tokens,
                    output_tokens: usage.output_tokens,
                    cost_micros: self.prices.map_or(0, |prices| prices.cost(usage)),
                },
                attempts: 1,
            },
            Bill::RequestOnly => Charge::Actual { amount: request, attempts: 1 },
            Bill::NotSent => Charge::Actual { amount: request, attempts: 0 },
            Bill::Nothing => Charge::Release,
        };
        let attempts = match charge {
            Charge::Release => 0,
            Charge::Full { attempts } | Charge::Actual { attempts, .. } => attempts,
        };
        let settling = dispatched.settle(charge);
        let duration = self.started.elapsed();
        let ended = Ended {
            state: self.state.clone(),
            run: self.run.clone(),
            key,
            model: std::mem::take(&mut self.model),
            ending,
            duration,
            granted,
            attempts,
        };
        let mut settling = settling;
        match (&mut settling).now_or_never() {
            Some(settled) => ended.record(settled),
            None => drop(self.state.model.tasks.spawn(async move { ended.record(settling.await) })),
        }
    }
}

/// What is recorded of a call once it is settled.
struct Ended {
    state: AppState,
    run: Arc<AgentRun>,
    key: String,
    model: String,
    ending: Ending,
    duration: Duration,
    granted: Amount,
    attempts: i64,
}

impl Ended {
    fn record(self, settled: Option<Settled>) {
        let Ended { state, run, key, model, ending, duration, granted, attempts } = self;
        let charged = settled.map_or(granted, |settled| settled.actual);
        state.metrics.call_ended(ending.as_str(), duration, charged.input_tokens, charged.output_tokens, attempts);
        let mut data = json!({
            "model": model,
            "status": ending.as_str(),
            "durationMs": i64::try_from(duration.as_millis()).unwrap_or(i64::MAX),
            "inputTokens": charged.input_tokens,
            "outputTokens": charged.output_tokens,
            "costMicros": charged.cost_micros,
        });
        if let Some(settled) = settled {
            data["requestsSpent"] = settled.requests_spent.into();
            data["requestsLimit"] = settled.requests_limit.into();
        }
        // What counts against no budget is no news either.
        if granted != Amount::default() {
            state.recorder.record_soon(run.clone(), key, EventType::ModelCall, data);
        }
        if settled.is_some_and(|settled| settled.overrun) {
            tracing::error!(run = crate::runs::name(&run), "a provider reported more than was reserved; the budget is closed");
            let data = json!({ "gate": "Closed", "dimension": "overrun" });
            state.recorder.record_soon(run, "budget-overrun".into(), EventType::Budget, data);
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.end(Bill::Reservation, Ending::ClientGone);
    }
}
