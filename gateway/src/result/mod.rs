//! Takes the sandbox's result. Nothing in it is believed: its shape is checked (`claims`), what it says is held against what
//! we know (`judge`), and the patch is rendered from our own base and the blobs we hold (`patch`).

mod base;
mod claims;
mod collision;
mod exhausted;
mod intake;
mod judge;
mod patch;
mod unapproved;

use axum::Router;
use axum::routing::post;

pub(crate) use patch::hunks;

use crate::app::AppState;

/// Largest body of a result: the most changes with the longest paths, and the checks.
const MAX_RESULT_BYTES: usize = 2 * 1024 * 1024;
/// Largest patch.
const MAX_PATCH_BYTES: usize = 32 * 1024 * 1024;

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    Router::new().route(agentrun_protocol::routes::RESULT, post(intake::result))
}
