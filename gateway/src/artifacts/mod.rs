//! Artifacts over HTTP: the runner uploads blobs and names them, people download them, always as attachments.

mod download;
mod upload;

use axum::Router;
use axum::routing::{get, post, put};

use crate::app::AppState;

/// The artifact that the gateway renders; a sandbox cannot take the name.
pub const PATCH_NAME: &str = "changes.patch";

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    use agentrun_protocol::routes::{ARTIFACTS, BLOBS};
    Router::new().route(&format!("{BLOBS}/{{digest}}"), put(upload::blob)).route(ARTIFACTS, post(upload::name))
}

/// Routes of the people listener.
pub fn people_routes() -> Router<AppState> {
    Router::new()
        .route("/v1/namespaces/{ns}/runs/{name}/artifacts", get(download::list))
        .route("/v1/namespaces/{ns}/runs/{name}/artifacts/{digest}", get(download::blob))
        .route("/v1/namespaces/{ns}/runs/{name}/patch", get(download::patch))
}
