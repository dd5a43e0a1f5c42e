//! Events over HTTP: the runner appends, people read and follow; and the gateway's own events, derived from committed status.

mod append;
mod approval_events;
mod cursor;
mod cut_short;
mod derive;
mod follow;
mod frames;
mod read;
mod recorder;

use axum::Router;
use axum::routing::post;

pub use approval_events::approval_events;
pub use derive::result_event;
pub(crate) use read::{log_of_run, of_run};
pub use recorder::LogRecorder;

use crate::app::AppState;

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    Router::new().route(agentrun_protocol::routes::EVENTS, post(append::append))
}
