//! Health and metrics over plain HTTP. Says nothing about any run.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;

/// How far the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Starting,
    /// Healthy, and another process works.
    Standby,
    /// Leading, but the kinds are not installed.
    NoKinds,
    /// Leading; the watches are filling.
    Filling,
    Working,
}

/// Shared with the start-up.
#[derive(Clone)]
pub struct Health(Arc<Mutex<Progress>>);

impl Default for Health {
    fn default() -> Self {
        Health(Arc::new(Mutex::new(Progress::Starting)))
    }
}

impl Health {
    pub fn set(&self, progress: Progress) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = progress;
    }

    fn get(&self) -> Progress {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Admin {
    health: Health,
    registry: Arc<Registry>,
}

/// `/livez`, `/readyz`, `/metrics`.
pub fn router(health: Health, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Admin { health, registry })
}

async fn ready(State(admin): State<Admin>) -> Response {
    match admin.health.get() {
        Progress::Working => "ok\n".into_response(),
        Progress::Standby => "ok: waiting for the lease\n".into_response(),
        Progress::Starting => (StatusCode::SERVICE_UNAVAILABLE, "not ready: starting\n").into_response(),
        Progress::NoKinds => (StatusCode::SERVICE_UNAVAILABLE, "not ready: the CustomResourceDefinitions are missing\n").into_response(),
        Progress::Filling => (StatusCode::SERVICE_UNAVAILABLE, "not ready: the watches are filling\n").into_response(),
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    #[tokio::test]
    async fn answers() {
        let health = Health::default();
        let mut registry = Registry::default();
        crate::metrics::Metrics::new(&mut registry).reconciled("done", 0.1);
        let app = router(health.clone(), Arc::new(registry));
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        for (progress, status) in [
            (Progress::Starting, 503),
            (Progress::Standby, 200),
            (Progress::NoKinds, 503),
            (Progress::Filling, 503),
            (Progress::Working, 200),
        ] {
            health.set(progress);
            assert_eq!(ask("/readyz").await.0, status, "{progress:?}");
            assert_eq!(ask("/livez").await.0, 200);
        }
        let (status, text) = ask("/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("agentrun_operator_reconciles_total{outcome=\"done\"} 1"), "{text}");
    }
}
