//! Asks a run to end, as `spec.cancel: true` does by any other way.

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::{AgentRun, names};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::error::ApiError;

/// Harmless if it was asked before. 409 `already_completed` if the run has ended otherwise.
pub async fn cancel(kube: &Client, run: &AgentRun) -> Result<(), ApiError> {
    let api: Api<AgentRun> = Api::namespaced(kube.clone(), super::namespace(run));
    let name = super::name(run);
    let reading = tokio::time::timeout(super::ANSWER_TIME, api.get_opt(name)).await.map_err(ApiError::api_server)?;
    let gone = || ApiError::not_found("the AgentRun has just been deleted");
    let live = reading.map_err(ApiError::api_server)?.filter(|live| live.metadata.uid == run.metadata.uid).ok_or_else(gone)?;
    let phase = live.status.as_ref().and_then(|status| status.phase);
    if phase == Some(Phase::Cancelled) || (live.spec.cancel && !super::is_terminal(&live)) {
        return Ok(());
    }
    if super::is_terminal(&live) {
        return Err(completed(&live));
    }
    let params = PatchParams { field_manager: Some(names::GATEWAY.into()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"metadata": {"uid": run.metadata.uid}, "spec": {"cancel": true}}));
    match tokio::time::timeout(super::ANSWER_TIME, api.patch(name, &params, &patch)).await.map_err(ApiError::api_server)? {
        // It ended between the two; one of them wins, and the other is told.
        Ok(written)
            if super::is_terminal(&written) && written.status.as_ref().and_then(|status| status.phase) != Some(Phase::Cancelled) =>
        {
            Err(completed(&written))
        }
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(gone()),
        Err(error) => Err(ApiError::api_server(error)),
    }
}

fn completed(run: &AgentRun) -> ApiError {
    let phase = run.status.as_ref().and_then(|status| status.phase).map_or("ended", Phase::as_str);
    ApiError::conflict("already_completed", format!("the run is {phase}; what has ended cannot be cancelled"))
}
