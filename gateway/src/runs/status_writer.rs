//! The one way the gateway writes `AgentRun.status`: a merge patch of the difference under the resourceVersion it was decided
//! on. A conflict means: read live, decide again.

use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::{AgentRun, AgentRunStatus, names};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::RunDirectory;
use crate::error::ApiError;

/// Longest time for one update, conflicts included.
const DEADLINE: Duration = Duration::from_secs(10);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);

/// Cheap to clone.
#[derive(Clone)]
pub struct StatusWriter {
    client: Client,
    directory: RunDirectory,
}

impl StatusWriter {
    pub fn new(client: Client, directory: RunDirectory) -> Self {
        StatusWriter { client, directory }
    }

    /// Let `decide` change a copy of the status; write what changed under the run's resourceVersion; on conflict read the
    /// live object and decide again. `run` is only a first guess: a refusal or "nothing to write" counts only on an object
    /// that was read live. `decide` gets the whole run (old status included) and must be free of side effects.
    /// The run in the answer is the one that was written or read.
    pub async fn update<T>(
        &self,
        run: &AgentRun,
        mut decide: impl FnMut(&AgentRun, &mut AgentRunStatus) -> Result<T, ApiError>,
    ) -> Result<(T, Arc<AgentRun>), ApiError> {
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), super::namespace(run));
        let deadline = Instant::now() + DEADLINE;
        let mut live = None;
        for attempt in 0u32.. {
            if attempt > 0 {
                if Instant::now() >= deadline {
                    return Err(ApiError::unavailable("conflict", "the run's status is being written by many at once; try again"));
                }
                live = Some(self.read(&api, run).await?);
            }
            let current = live.as_ref().unwrap_or(run);
            let before = current.status.clone().unwrap_or_default();
            let mut after = before.clone();
            let value = match decide(current, &mut after) {
                Ok(value) => value,
                Err(error) if live.is_some() => return Err(error),
                Err(_) => continue,
            };
            let difference = merge_difference(&to_value(&before)?, &to_value(&after)?);
            if difference.is_empty() {
                match live {
                    Some(run) => return Ok((value, Arc::new(run))),
                    None => continue,
                }
            }
            let patch = json!({
                "metadata": { "uid": current.metadata.uid, "resourceVersion": current.metadata.resource_version },
                "status": difference,
            });
            let since = Instant::now();
            let params = PatchParams { field_manager: Some(names::GATEWAY.into()), ..PatchParams::default() };
            let written = tokio::time::timeout(ATTEMPT_TIMEOUT, api.patch_status(super::name(run), &params, &Patch::Merge(&patch))).await;
            match written {
                Ok(Ok(written)) => return Ok((value, self.directory.confirmed(since, written))),
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Err(ApiError::inactive_run_token()),
                // Refused for good, such as by a rule of the CRD: a bug of ours, and nothing was written.
                Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
                    return Err(ApiError::internal(format!("a status write was refused: {}", status.message)));
                }
                // The write may or may not have happened: deciding again on the live object tells.
                Ok(Err(error)) if Instant::now() < deadline => {
                    tracing::warn!(%error, "a status write failed; the live object decides");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Ok(Err(error)) => return Err(ApiError::api_server(error)),
                Err(_) if Instant::now() < deadline => {}
                Err(_) => return Err(ApiError::api_server("a status write took too long")),
            }
        }
        Err(ApiError::internal("more attempts than there are numbers"))
    }

    async fn read(&self, api: &Api<AgentRun>, run: &AgentRun) -> Result<AgentRun, ApiError> {
        match tokio::time::timeout(ATTEMPT_TIMEOUT, api.get_opt(super::name(run))).await {
            Ok(Ok(Some(live))) if live.metadata.uid == run.metadata.uid => Ok(live),
            Ok(Ok(_)) => Err(ApiError::inactive_run_token()),
            Ok(Err(error)) => Err(ApiError::api_server(error)),
            Err(_) => Err(ApiError::api_server("reading an AgentRun took too long")),
        }
    }
}

fn to_value(status: &AgentRunStatus) -> Result<Value, ApiError> {
    serde_json::to_value(status).map_err(ApiError::internal)
}

/// What a JSON merge patch must say to turn `before` into `after`: changed members, and null for those gone.
fn merge_difference(before: &Value, after: &Value) -> Map<String, Value> {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else { return Map::new() };
    let mut patch = Map::new();
    for (key, new) in after {
        match before.get(key) {
            Some(old) if old == new => {}
            Some(old) if old.is_object() && new.is_object() => {
                patch.insert(key.clone(), Value::Object(merge_difference(old, new)));
            }
            _ => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_a_minimal_merge_patch() {
        for (before, after, expected) in [
            (json!({}), json!({}), json!({})),
            (json!({"a": 1}), json!({"a": 1}), json!({})),
            (json!({"a": 1}), json!({"a": 2, "b": 3}), json!({"a": 2, "b": 3})),
            (json!({"a": 1, "b": 2}), json!({"b": 2}), json!({"a": null})),
            (json!({"a": {"x": 1, "y": 2}}), json!({"a": {"x": 1, "y": 3}}), json!({"a": {"y": 3}})),
            (json!({"a": [1, 2]}), json!({"a": [2]}), json!({"a": [2]})),
        ] {
            assert_eq!(Value::Object(merge_difference(&before, &after)), expected, "{before} {after}");
        }
    }
}
