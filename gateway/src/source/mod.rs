//! Source archives: people upload the one that the run names by its digest, its runner fetches it. An archive is read entry by
//! entry and never unpacked.

mod download;
mod upload;

use agentrun_crds::AgentRun;
use axum::Router;
use axum::routing::get;

pub(crate) use upload::put;

use crate::app::AppState;
use crate::error::ApiError;
use crate::store::Digest;

/// Routes of the sandbox listener.
pub fn sandbox_routes() -> Router<AppState> {
    Router::new().route(agentrun_protocol::routes::SOURCE, get(download::archive))
}

/// The archive of the run's source, whether it was uploaded or made from a commit. `None`: the source is in the AgentRun itself, or
/// the commit has not been fetched yet.
pub(crate) fn archive(run: &AgentRun) -> Option<&str> {
    let stored = || Some(run.status.as_ref()?.source.as_ref()?.digest.as_str());
    let source = &run.spec.source;
    source.archive.as_ref().map(|archive| archive.digest.as_str()).or_else(|| source.git.as_ref().and_then(|_| stored()))
}

/// The archive that people are to upload.
fn wanted(run: &AgentRun) -> Result<Digest, ApiError> {
    let archive = run.spec.source.archive.as_ref();
    let archive = archive.ok_or_else(|| {
        ApiError::not_found("this run takes no source archive: its source is in the AgentRun itself, or fetched from git")
    })?;
    Digest::parse(&archive.digest).map_err(|error| ApiError::internal(format!("spec.source.archive.digest {error}")))
}

/// 503: it has not been uploaded yet.
pub(crate) fn not_uploaded() -> ApiError {
    ApiError::unavailable("source_not_uploaded", "the run's source archive has not been uploaded yet")
}
