//! Asks a run to end, as `spec.cancel: true` does by any other way.

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::{AgentRun, names};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::error::ApiError;

/// Writes that lost against another before this is given up.
const TRIES: usize = 8;

/// Harmless if it was asked before. 409 `already_completed` if the run has ended otherwise, or has its result, which decides:
/// a result is taken of no run that was asked to end.
pub async fn cancel(kube: &Client, run: &AgentRun) -> Result<(), ApiError> {
    let api: Api<AgentRun> = Api::namespaced(kube.clone(), super::namespace(run));
    let name = super::name(run);
    let gone = || ApiError::not_found("the AgentRun has just been deleted");
    for _ in 0..TRIES {
        let reading = tokio::time::timeout(super::ANSWER_TIME, api.get_opt(name)).await.map_err(ApiError::api_server)?;
        let live = reading.map_err(ApiError::api_server)?.filter(|live| live.metadata.uid == run.metadata.uid).ok_or_else(gone)?;
        let phase = live.status.as_ref().and_then(|status| status.phase);
        if phase == Some(Phase::Cancelled) {
            return Ok(());
        }
        if super::is_terminal(&live) || (!live.spec.cancel && live.has_result()) {
            return Err(completed(&live));
        }
        if live.spec.cancel {
            return Ok(());
        }
        let params = PatchParams { field_manager: Some(names::GATEWAY.into()), ..PatchParams::default() };
        // Of the very object that was read, so that of this and a result one comes first.
        let read = json!({"uid": run.metadata.uid, "resourceVersion": live.metadata.resource_version});
        let patch = Patch::Merge(json!({"metadata": read, "spec": {"cancel": true}}));
        match tokio::time::timeout(super::ANSWER_TIME, api.patch(name, &params, &patch)).await.map_err(ApiError::api_server)? {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(gone()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(ApiError::api_server(error)),
        }
    }
    Err(ApiError::unavailable("contended", "the run's status is being written too often; try again"))
}

fn completed(run: &AgentRun) -> ApiError {
    let phase = run.status.as_ref().and_then(|status| status.phase).filter(|phase| phase.is_terminal());
    let how = phase.map_or("has its result, and ends".to_owned(), |phase| format!("is {}", phase.as_str()));
    ApiError::conflict("already_completed", format!("the run {how}; what is done cannot be cancelled"))
}
