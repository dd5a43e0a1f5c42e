//! The runner fetches the archive.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderValue, header};

use super::not_uploaded;
use crate::app::AppState;
use crate::auth::{Events, RunCaller};
use crate::error::ApiError;
use crate::runs;
use crate::store::Digest;

/// The bytes of the archive; 404 if the run has none, 503 until it has been uploaded.
pub(super) async fn archive(caller: RunCaller<Events>, State(state): State<AppState>) -> Result<Response, ApiError> {
    if !caller.run.spec.source.comes_later() {
        return Err(ApiError::not_found("this run has no source archive: its source is in the AgentRun itself"));
    }
    let here = caller.run.status.as_ref().is_some_and(|status| status.source.is_some());
    let digest = super::archive(&caller.run).filter(|_| here).ok_or_else(not_uploaded)?;
    let digest = Digest::parse(digest).map_err(|error| ApiError::internal(format!("the source's digest {error}")))?;
    let blob = state.stores.artifacts.open(runs::uid(&caller.run), digest).await?.ok_or_else(not_uploaded)?;
    let mut response = Response::new(Body::from_stream(blob.content));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(blob.bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(response)
}
