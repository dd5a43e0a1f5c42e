//! What handlers share, and the routers of the listeners. Handlers are thin: extract, authorise, act, answer.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use agentrun_crds::AgentRun;
use agentrun_protocol::event::EventType;
use agentrun_protocol::routes;
use axum::Router;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::auth::TokenKeys;
use crate::budget::{Accounts, CallLimits, LeasedLedger, Ledger, Rates};
use crate::clock::Clock;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::model::ModelProxy;
use crate::people::Site;
use crate::policies::{PolicyDirectory, PolicyWriter};
use crate::runs::{RunDirectory, StatusWriter};
use crate::store::Stores;
use crate::{approvals, artifacts, events, exchange, job, metrics, model, people, result, source};

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// See `AppState`.
pub struct Shared {
    pub clock: Clock,
    pub kube: kube::Client,
    /// The gateway's own namespace.
    pub namespace: String,
    pub runs: RunDirectory,
    pub status: StatusWriter,
    pub keys: TokenKeys,
    pub stores: Stores,
    pub recorder: Arc<dyn Recorder>,
    pub policies: PolicyDirectory,
    /// Every budget's place.
    pub accounts: Accounts,
    pub ledger: Arc<dyn Ledger>,
    /// Ceilings over what policies say.
    call_limits: CallLimits,
    pub rates: Rates,
    pub model: ModelProxy,
    pub metrics: Metrics,
    /// Set when the process has begun to end.
    draining: AtomicBool,
}

/// What a state is made from.
pub struct Parts {
    pub clock: Clock,
    pub kube: kube::Client,
    pub namespace: String,
    /// Survives restarts of the process.
    pub instance: String,
    pub keys: TokenKeys,
    pub stores: Stores,
    pub recorder: Arc<dyn Recorder>,
    pub call_limits: CallLimits,
}

impl AppState {
    /// Starts nothing: the caller runs `runs.run()`, `policies.run()`, `model.providers.run()` and the sweeps.
    pub fn assemble(parts: Parts) -> Self {
        let Parts { clock, kube, namespace, instance, keys, stores, recorder, call_limits } = parts;
        let runs = RunDirectory::new(kube.clone());
        let status = StatusWriter::new(kube.clone(), runs.clone());
        let policies = PolicyDirectory::default();
        let policy_status = PolicyWriter::new(kube.clone(), policies.clone());
        let accounts = Accounts { runs: runs.clone(), run_status: status.clone(), policies: policies.clone(), policy_status };
        let ledger = LeasedLedger::new(&instance, accounts.clone(), kube.clone(), stores.ledger.clone(), clock.clone());
        AppState(Arc::new(Shared {
            model: ModelProxy::new(kube.clone(), &namespace, runs.clone()),
            clock,
            kube,
            namespace,
            runs,
            status,
            policies,
            accounts,
            keys,
            stores,
            recorder,
            ledger: Arc::new(ledger),
            call_limits,
            rates: Rates::default(),
            metrics: Metrics::default(),
            draining: AtomicBool::new(false),
        }))
    }
}

impl Shared {
    /// From now on this process is not ready.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// What bounds the calls of a namespace's runs, besides budgets.
    pub fn call_limits(&self, namespace: &str) -> CallLimits {
        self.policies.get(namespace).map_or(self.call_limits, |policy| self.call_limits.over(&policy.spec.rate_limits))
    }

    /// Whether the watches are in and the process is not ending.
    pub fn is_ready(&self) -> bool {
        self.runs.is_synced() && self.policies.is_synced() && !self.draining.load(Ordering::Acquire)
    }
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Takes the gateway's own events (model_call, budget, …) of a run. Recording the same key with the same data again is
/// harmless; failures are the recorder's to log, since a model call that was made cannot be undone for want of an event.
pub trait Recorder: Send + Sync + 'static {
    fn record(&self, run: Arc<AgentRun>, key: String, kind: EventType, data: Value) -> BoxFuture<'static, ()>;

    /// The same a moment later, together with others, and before whatever is recorded after it. What a crash catches in
    /// between is not recorded.
    fn record_soon(&self, run: Arc<AgentRun>, key: String, kind: EventType, data: Value);

    /// Wait until everything that was to be recorded soon is.
    fn flush(&self) -> BoxFuture<'static, ()>;
}

/// Which credential a sandbox route wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Ticket, Pod token and key, in the body.
    Exchange,
    ModelToken,
    EventsToken,
    ApprovalsToken,
    /// A live run token of any audience.
    AnyToken,
}

/// Every route of the sandbox listener, for tests that try each with each wrong credential. `{digest}` stands for a digest,
/// `{approval}` for an approval's id.
pub const SANDBOX_ROUTES: &[(&str, &str, Access)] = &[
    ("POST", routes::EXCHANGE, Access::Exchange),
    ("POST", routes::RENEW, Access::AnyToken),
    ("GET", routes::JOB, Access::EventsToken),
    ("POST", routes::EVENTS, Access::EventsToken),
    ("PUT", "/sandbox/v1/blobs/{digest}", Access::EventsToken),
    ("POST", routes::ARTIFACTS, Access::EventsToken),
    ("POST", routes::RESULT, Access::EventsToken),
    ("GET", routes::SOURCE, Access::EventsToken),
    ("POST", routes::CHAT_COMPLETIONS, Access::ModelToken),
    ("POST", routes::MESSAGES, Access::ModelToken),
    ("POST", routes::COUNT_TOKENS, Access::ModelToken),
    ("POST", routes::RESPONSES, Access::ModelToken),
    ("POST", routes::EMBEDDINGS, Access::ModelToken),
    ("POST", "/v1beta/models/small:generateContent", Access::ModelToken),
    ("POST", "/v1beta/models/small:streamGenerateContent", Access::ModelToken),
    ("POST", "/v1beta/models/small:countTokens", Access::ModelToken),
    ("GET", routes::MODELS, Access::ModelToken),
    ("GET", routes::GEMINI_MODELS, Access::ModelToken),
    ("POST", routes::APPROVALS, Access::ApprovalsToken),
    ("GET", "/sandbox/v1/approvals/{approval}", Access::ApprovalsToken),
    ("POST", "/sandbox/v1/approvals/{approval}/consume", Access::ApprovalsToken),
];

/// The sandbox listener.
pub fn sandbox_router(state: AppState) -> Router {
    Router::new()
        .merge(exchange::routes())
        .merge(job::routes())
        .merge(model::routes())
        .merge(events::sandbox_routes())
        .merge(artifacts::sandbox_routes())
        .merge(result::sandbox_routes())
        .merge(approvals::sandbox_routes())
        .merge(source::sandbox_routes())
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
}

/// The people listener.
pub fn people_router(state: AppState, site: Arc<Site>) -> Router {
    Router::new().merge(people::routes(site)).fallback(no_such_route).method_not_allowed_fallback(wrong_method).with_state(state)
}

/// The operations listener; it may be up before there is a state.
pub fn operations_router(state: Arc<OnceLock<AppState>>) -> Router {
    metrics::routes().fallback(no_such_route).with_state(state)
}

pub(crate) async fn no_such_route() -> ApiError {
    ApiError::not_found("there is no such route on this listener")
}

pub(crate) async fn wrong_method() -> ApiError {
    ApiError::new(http::StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the route exists, but not for this method")
}
