//! Artifacts over HTTP: the runner uploads blobs and names them, people download them, always as attachments.

mod download;
mod upload;

use axum::Router;
use axum::routing::{post, put};

pub(crate) use download::{blob, list, patch};

use crate::app::AppState;

/// The artifact that the gateway renders; a sandbox cannot take the name.
pub const PATCH_NAME: &str = "changes.patch";

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    use agentrun_protocol::routes::{ARTIFACTS, BLOBS};
    Router::new().route(&format!("{BLOBS}/{{digest}}"), put(upload::blob)).route(ARTIFACTS, post(upload::name))
}
