//! The model proxy: several dialects, JSON and streamed. A call's phases are types: a verified token (`RunCaller<Model>`), a
//! judged body (`Call`), an admitted call (`Reserved`, `Admitted`), a dispatched one (`Dispatched`, `Booking`); the provider's
//! key can be had in the last only, and every way out of it settles.

mod booking;
mod breaker;
mod call;
mod envelope;
mod forward;
mod inbound;
mod json;
mod judge;
mod listing;
mod operation;
mod prices;
mod provider;
mod providers;
mod pump;
mod refusal;
mod relay;
mod revocation;
mod sse;
mod target;
#[cfg(test)]
mod tests;
mod upstream;
mod usage;

use std::sync::Arc;
use std::time::Instant;

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::ResolvedModel;
use agentrun_crds::budget::Dimension;
use agentrun_crds::model_provider::Dialect;
use agentrun_crds::period::Window;
use agentrun_protocol::event::EventType;
use agentrun_protocol::routes;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::app::AppState;
use crate::auth::{Model, RunCaller};
use crate::budget::NotAdmitted;
use crate::error::ApiError;
use crate::places::Places;
use crate::runs::{self, CONFIRMATION_TTL, RunDirectory};

pub use call::Call;
pub use judge::BodyError;
pub use operation::Operation;
pub use provider::{Provider, ProviderError, Timeouts};
pub use providers::Providers;
pub use revocation::Revocation;

/// Most calls of all runs at once, on this process: each may hold a request and a response in memory.
const MOST_IN_FLIGHT: usize = 512;
/// Large JSON answers that are held whole at a time, of one run and in all: each may be as large as its provider's `responseBytes`.
const LARGE_OF_A_RUN: usize = 2;
const LARGE: usize = 8;

/// The proxy's state.
#[derive(Clone)]
pub struct ModelProxy {
    pub providers: Providers,
    pub revocation: Revocation,
    /// Streams, settlements and their events that are still under way.
    pub tasks: TaskTracker,
    slots: Arc<Semaphore>,
    /// For large answers that are held whole; by run.
    large: Places,
}

impl ModelProxy {
    pub fn new(client: kube::Client, namespace: &str, directory: RunDirectory) -> Self {
        ModelProxy {
            providers: Providers::new(client, namespace),
            revocation: Revocation::new(directory),
            tasks: TaskTracker::new(),
            slots: Arc::new(Semaphore::new(MOST_IN_FLIGHT)),
            large: Places::new(LARGE_OF_A_RUN, LARGE),
        }
    }

    /// Longest total time of any call, in seconds. Which of a model's providers a reservation was for stands nowhere, so it is that of
    /// the slowest one.
    pub fn longest_call(&self) -> i64 {
        // A retry may begin at the end of the first try's wait.
        self.providers.longest_total().map_or(2 * 3600, |total| i64::try_from(total.as_secs()).unwrap_or(i64::MAX / 4).saturating_mul(2))
    }
}

/// The model routes, each with the operation that it asks for.
pub fn routes() -> Router<AppState> {
    Router::new()
        .route(routes::CHAT_COMPLETIONS, asking_for(Operation::Chat))
        .route(routes::RESPONSES, asking_for(Operation::Responses))
        .route(routes::EMBEDDINGS, asking_for(Operation::Embeddings))
        .route(routes::MESSAGES, asking_for(Operation::Messages))
        .route(routes::COUNT_TOKENS, asking_for(Operation::CountTokens))
        .route(&format!("{}/{{*call}}", routes::GEMINI_MODELS), post(gemini).get(listing::gemini_model))
        .route(routes::GEMINI_MODELS, get(listing::gemini_models))
        .route(&format!("{}/{{*name}}", routes::MODELS), get(listing::model))
        .route(routes::MODELS, get(listing::models))
}

type Caller = Result<RunCaller<Model>, ApiError>;

fn asking_for(operation: Operation) -> MethodRouter<AppState> {
    post(async move |State(state): State<AppState>, caller: Caller, request: Request<Body>| {
        let started = Instant::now();
        let answer = match caller {
            Ok(caller) => call(&state, operation, None, caller, request, started).await,
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| refuse(&state, operation, error))
    })
}

/// `{model}:{call}` behind `models/`.
async fn gemini(State(state): State<AppState>, caller: Caller, request: Request<Body>) -> Response {
    let started = Instant::now();
    let path = request.uri().path().strip_prefix(routes::GEMINI_MODELS).unwrap_or_default().trim_start_matches('/');
    let events = request.uri().query().unwrap_or_default().split('&').any(|parameter| parameter == "alt=sse" || parameter == "$alt=sse");
    let (model, word) = path.rsplit_once(':').unwrap_or((path, ""));
    let (model, operation) = (listing::unescaped(model), Operation::of_gemini(word, events));
    let answer = match (caller, operation) {
        (Err(error), _) => Err(error),
        (Ok(_), None) => Err(refusal::no_such_call()),
        (Ok(caller), Some(operation)) => call(&state, operation, Some(model), caller, request, started).await,
    };
    answer.unwrap_or_else(|error| refuse(&state, operation.unwrap_or(Operation::Generate), error))
}

fn refuse(state: &AppState, operation: Operation, error: ApiError) -> Response {
    state.metrics.call_refused(error.code);
    envelope::respond(operation, error)
}

/// `named`: the model as the path names it, where the body does not.
async fn call(
    state: &AppState,
    operation: Operation,
    named: Option<String>,
    caller: RunCaller<Model>,
    request: Request<Body>,
    started: Instant,
) -> Result<Response, ApiError> {
    let RunCaller { claims, run, .. } = caller;
    // Half of the time that a read counts, so that the call's own watch has the other half for its first one.
    let (since, _) = state.runs.confirm_within(runs::uid(&run), CONFIRMATION_TTL / 2).await?;
    let limits = state.call_limits(runs::namespace(&run));
    let permit = state.model.revocation.enter(&claims, since, limits.in_flight).ok_or_else(refusal::too_many_in_flight)?;
    let slot = state.model.slots.clone().try_acquire_owned().map_err(|_| refusal::too_many_in_flight())?;

    let model = model_for(&run, operation)?;
    let targets = target::of(&state.model.providers, &model, operation)?;
    if named.is_some_and(|named| named != model.name) {
        return Err(refusal::body(BodyError::WrongModel(model.name)));
    }
    inbound::judge_query(operation, request.uri().query())?;
    inbound::judge_media(request.headers())?;
    let headers = inbound::forwarded(operation.dialect(), request.headers())?;
    let most = targets.iter().map(|target| target.provider.request_bytes).min().unwrap_or_default();
    let revoked = permit.revoked().clone();
    let body = tokio::select! {
        biased;
        () = revoked.cancelled() => return Err(permit.refusal()),
        body = inbound::read_body(request, most) => body?,
    };
    let call = Call::parse(operation, body, &model.name).map_err(refusal::body)?;
    let first = target::first_willing(&targets, 0, tokio::time::Instant::now()).map_err(refusal::resting)?;
    let ask = targets[first].ask(&call, 1);
    state.rates.take(limits.rates, runs::uid(&run), runs::namespace(&run), tokio::time::Instant::now()).map_err(refusal::too_soon)?;
    let reserved = tokio::select! {
        biased;
        // Should it be written yet, it is given back.
        () = revoked.cancelled() => return Err(permit.refusal()),
        reserved = state.ledger.reserve(run.clone(), claims, ask) => reserved,
    };
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(refused) => {
            match refused {
                NotAdmitted::Exhausted(dimension) => say_exhausted(state, &run, dimension, None),
                NotAdmitted::NamespaceExhausted { dimension, window, .. } => say_exhausted(state, &run, dimension, Some(window)),
                _ => {}
            }
            return Err(refusal::budget(refused));
        }
    };
    let state = state.clone();
    let admitted = forward::Admitted { state, run, claims, call, headers, targets, first, model: model.name, permit, slot, started };
    admitted.forward(reserved).await
}

/// The model that the run uses for an operation.
fn model_for(run: &AgentRun, operation: Operation) -> Result<ResolvedModel, ApiError> {
    let resolved = run.status.as_ref().and_then(|status| status.resolved.as_ref()).ok_or_else(ApiError::inactive_run_token)?;
    if operation == Operation::Embeddings && resolved.model.dialect != Some(Dialect::OpenAIEmbeddings) {
        return resolved.embeddings.clone().ok_or_else(refusal::no_embeddings);
    }
    Ok(resolved.model.clone())
}

/// `window`: it is the namespace's budget that is spent, until then.
fn say_exhausted(state: &AppState, run: &Arc<AgentRun>, dimension: Dimension, window: Option<Window>) {
    let word = refusal::dimension_field(dimension).trim_start_matches("budget.");
    let mut data = json!({ "gate": "Open", "dimension": word });
    let mut key = format!("budget-exhausted-{word}");
    if let Some(window) = window {
        data["namespacePeriod"] = window.period.as_str().into();
        data["until"] = window.end.to_string().into();
        key = format!("namespace-{key}-{}-{}", window.period.as_str(), window.start.as_second());
    }
    state.model.tasks.spawn(state.recorder.record(run.clone(), key, EventType::Budget, data));
}
