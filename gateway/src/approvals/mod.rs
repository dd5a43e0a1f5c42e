//! Approvals: the runner asks before it performs an action, people decide, the runner consumes what was allowed, once. All of
//! it is in the run's status and changes by compare-and-swap; what is decided stands in `decide`, which knows no HTTP.

mod action;
mod decide;
mod people;
mod refusal;
mod sandbox;
mod shown;
mod sweep;
mod view;

use agentrun_protocol::routes::APPROVALS;
use axum::Router;
use axum::routing::{get, post};

pub(crate) use people::{decide, list, one};
pub use sweep::Expiry;

use crate::app::AppState;

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    Router::new()
        .route(APPROVALS, post(sandbox::ask))
        .route(&format!("{APPROVALS}/{{approval}}"), get(sandbox::wait))
        .route(&format!("{APPROVALS}/{{approval}}/consume"), post(sandbox::consume))
}
