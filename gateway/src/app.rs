//! What handlers share, and the routers of the three listeners. Handlers are thin: extract, authorise, act, answer.

use std::ops::Deref;
use std::sync::Arc;

use agentrun_crds::AgentRun;
use agentrun_protocol::event::EventType;
use axum::Router;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::auth::TokenKeys;
use crate::clock::Clock;
use crate::runs::{RunDirectory, StatusWriter};
use crate::store::Stores;
use crate::{artifacts, events, result};

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
}

impl AppState {
    pub fn new(shared: Shared) -> Self {
        AppState(Arc::new(shared))
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
}

/// The sandbox listener.
pub fn sandbox_router(state: AppState) -> Router {
    Router::new().merge(events::sandbox_routes()).merge(artifacts::sandbox_routes()).merge(result::sandbox_routes()).with_state(state)
}

/// The people listener.
pub fn people_router(state: AppState) -> Router {
    Router::new().merge(events::people_routes()).merge(artifacts::people_routes()).with_state(state)
}
