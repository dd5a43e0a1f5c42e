//! The listener behind the cluster's own API server: subresources of AgentRuns in a group of our own, so that any kubeconfig
//! reaches them. The API server has authenticated whoever asks, and its RBAC has let them to the subresource; the right on the
//! AgentRun itself is asked for here, as on the listener for people.

mod discovery;
mod front_proxy;
mod status;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};

pub use discovery::DISCOVERY;
pub use front_proxy::FrontProxy;

use crate::app::{self, AppState};
use crate::error::ApiError;
use crate::people;
use crate::serve::PeerCertificates;

/// Where the subresources of a run are.
pub const RUN_PREFIX: &str = "/apis/run.agentrun.dev/v1alpha1/namespaces/{ns}/agentruns/{name}";

/// Where Kubernetes would have the objects themselves.
pub const KEPT_ELSEWHERE: [&str; 3] =
    [RUN_PREFIX, "/apis/run.agentrun.dev/v1alpha1/agentruns", "/apis/run.agentrun.dev/v1alpha1/namespaces/{ns}/agentruns"];

/// The aggregated listener.
pub fn router(state: AppState, front_proxy: FrontProxy) -> Router {
    Router::new()
        .merge(discovery::routes())
        .nest(RUN_PREFIX, people::run_routes())
        .merge(KEPT_ELSEWHERE.iter().fold(Router::new(), |router, path| router.route(path, get(kept_elsewhere))))
        .route("/readyz", get(ready))
        .fallback(app::no_such_route)
        .method_not_allowed_fallback(app::wrong_method)
        .layer(from_fn_with_state(front_proxy, front_proxy_only))
        .layer(from_fn(status::add))
        .with_state(state)
}

/// Puts who asks into the request, or refuses it.
async fn front_proxy_only(State(front_proxy): State<FrontProxy>, mut request: Request, next: Next) -> Result<Response, ApiError> {
    let identity = front_proxy.identify(request.extensions().get::<PeerCertificates>(), request.headers())?;
    request.extensions_mut().insert(identity);
    Ok(next.run(request).await)
}

async fn kept_elsewhere() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "AgentRuns themselves are in group agentrun.dev (kubectl get agentruns.agentrun.dev); this group has their subresources only",
    )
}

async fn ready(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    if state.is_ready() { Ok(Json(json!({"ready": true}))) } else { Err(ApiError::unavailable("not_ready", "starting or ending")) }
}
