//! events (half B).

use axum::Router;

use crate::app::AppState;

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    Router::new()
}

/// Routes of the people listener.
pub fn people_routes() -> Router<AppState> {
    Router::new()
}
