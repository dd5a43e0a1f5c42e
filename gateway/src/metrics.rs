//! Health and metrics on the operations listener. Labels come from closed lists.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{StatusCode, header};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::app::AppState;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// The process's metrics. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    model_calls: Family<Outcome, Counter>,
    refused_calls: Family<Outcome, Counter>,
    exchanges: Family<Outcome, Counter>,
    call_seconds: Histogram,
    overhead_seconds: Histogram,
    input_tokens: Counter,
    output_tokens: Counter,
    upstream_attempts: Counter,
    failovers: Counter,
    breakers_opened: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("agentrun_gateway");
        let model_calls = Family::default();
        registry.register("model_calls", "Model calls that were sent upstream, by how they ended", model_calls.clone());
        let refused_calls = Family::default();
        registry.register("refused_calls", "Model calls that were refused before anything was sent, by error code", refused_calls.clone());
        let exchanges = Family::default();
        registry.register("exchanges", "Ticket exchanges, by outcome", exchanges.clone());
        let call_seconds = Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0]);
        registry.register("call_seconds", "Duration of model calls, from request to settlement", call_seconds.clone());
        let overhead_seconds = Histogram::new([0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0]);
        registry.register("overhead_seconds", "Time from the request until it was sent upstream", overhead_seconds.clone());
        let input_tokens = Counter::default();
        registry.register("input_tokens", "Input tokens charged", input_tokens.clone());
        let output_tokens = Counter::default();
        registry.register("output_tokens", "Output tokens charged", output_tokens.clone());
        let upstream_attempts = Counter::default();
        registry.register("upstream_attempts", "Requests sent to providers, retries included", upstream_attempts.clone());
        let failovers = Counter::default();
        registry.register("failovers", "Calls that went on to another provider", failovers.clone());
        let breakers_opened = Counter::default();
        registry.register("breakers_opened", "Times that a provider was left alone since it kept failing", breakers_opened.clone());
        Metrics {
            registry: Arc::new(registry),
            model_calls,
            refused_calls,
            exchanges,
            call_seconds,
            overhead_seconds,
            input_tokens,
            output_tokens,
            upstream_attempts,
            failovers,
            breakers_opened,
        }
    }
}

impl Metrics {
    /// A call that was sent has ended.
    pub fn call_ended(&self, outcome: &'static str, duration: Duration, input_tokens: i64, output_tokens: i64, attempts: i64) {
        self.model_calls.get_or_create(&Outcome { outcome }).inc();
        self.call_seconds.observe(duration.as_secs_f64());
        self.input_tokens.inc_by(input_tokens.max(0).unsigned_abs());
        self.output_tokens.inc_by(output_tokens.max(0).unsigned_abs());
        self.upstream_attempts.inc_by(attempts.max(0).unsigned_abs());
    }

    /// A call was refused; `code` is the error's code, a closed list.
    pub fn call_refused(&self, code: &'static str) {
        self.refused_calls.get_or_create(&Outcome { outcome: code }).inc();
    }

    /// Everything before the provider.
    pub fn dispatched_after(&self, overhead: Duration) {
        self.overhead_seconds.observe(overhead.as_secs_f64());
    }

    /// A call goes on to another provider.
    pub fn failed_over(&self) {
        self.failovers.inc();
    }

    /// A provider is left alone for a while.
    pub fn breaker_opened(&self) {
        self.breakers_opened.inc();
    }

    /// `outcome`: `granted` or the error's code.
    pub fn exchange(&self, outcome: &'static str) {
        self.exchanges.get_or_create(&Outcome { outcome }).inc();
    }
}

/// `/livez`, `/readyz`, `/metrics`.
/// The state comes when start-up is done; until then the process lives and is not ready.
pub fn routes() -> Router<Arc<OnceLock<AppState>>> {
    Router::new().route("/livez", get(async || "ok\n")).route("/readyz", get(ready)).route("/metrics", get(encode))
}

async fn ready(State(state): State<Arc<OnceLock<AppState>>>) -> impl IntoResponse {
    if state.get().is_some_and(|state| state.is_ready()) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn encode(State(state): State<Arc<OnceLock<AppState>>>) -> impl IntoResponse {
    let Some(state) = state.get() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let mut buffer = String::new();
    match text::encode(&mut buffer, &state.metrics.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], buffer).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
