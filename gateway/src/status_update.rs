//! The one way the gateway writes an object's status: a merge patch of the difference under the resourceVersion it was decided
//! on. A conflict means: read live, decide again.

use std::fmt::Debug;
use std::time::Duration;

use agentrun_crds::names;
use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::error::ApiError;

/// Longest time for one update, conflicts included.
const DEADLINE: Duration = Duration::from_secs(10);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);

/// An object as it stands after an update.
pub struct Standing<K> {
    pub object: K,
    /// The moment before it was written; `None`: there was nothing to write, and it was read.
    pub written_since: Option<Instant>,
}

/// Resource versions of custom resources are comparable integers; a wrong guess costs one conflict.
pub fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Let `decide` change a copy of the status; write what changed under the object's resourceVersion; on conflict read the
/// live object and decide again. `guess` is only a first guess: a refusal or "nothing to write" counts only on an object
/// that was read live. `decide` gets the whole object (old status included) and must be free of side effects.
/// An object that is gone: 401.
pub async fn update<K, T>(
    api: &Api<K>,
    guess: &K,
    mut decide: impl FnMut(&K, &mut K::Status) -> Result<T, ApiError>,
) -> Result<(T, Standing<K>), ApiError>
where
    K: Resource + HasStatus + DeserializeOwned + Clone + Debug,
    K::Status: Serialize + Default + Clone,
{
    let name = guess.meta().name.as_deref().unwrap_or_default();
    let deadline = Instant::now() + DEADLINE;
    let mut live = None;
    for attempt in 0u32.. {
        if attempt > 0 {
            if Instant::now() >= deadline {
                return Err(ApiError::unavailable("conflict", "the status is being written by many at once; try again"));
            }
            live = Some(read(api, guess, name).await?);
        }
        let current = live.as_ref().unwrap_or(guess);
        let before = current.status().cloned().unwrap_or_default();
        let mut after = before.clone();
        let value = match decide(current, &mut after) {
            Ok(value) => value,
            Err(error) if live.is_some() => return Err(error),
            Err(_) => continue,
        };
        let difference = merge_difference(&to_value(&before)?, &to_value(&after)?);
        if difference.is_empty() {
            match live {
                Some(object) => return Ok((value, Standing { object, written_since: None })),
                None => continue,
            }
        }
        let patch = json!({
            "metadata": { "uid": current.meta().uid, "resourceVersion": current.meta().resource_version },
            "status": difference,
        });
        let since = Instant::now();
        let params = PatchParams { field_manager: Some(names::GATEWAY.into()), ..PatchParams::default() };
        let written = tokio::time::timeout(ATTEMPT_TIMEOUT, api.patch_status(name, &params, &Patch::Merge(&patch))).await;
        match written {
            Ok(Ok(object)) => return Ok((value, Standing { object, written_since: Some(since) })),
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

async fn read<K: Resource + DeserializeOwned + Clone + Debug>(api: &Api<K>, guess: &K, name: &str) -> Result<K, ApiError> {
    match tokio::time::timeout(ATTEMPT_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(Some(live))) if live.meta().uid == guess.meta().uid => Ok(live),
        Ok(Ok(_)) => Err(ApiError::inactive_run_token()),
        Ok(Err(error)) => Err(ApiError::api_server(error)),
        Err(_) => Err(ApiError::api_server("reading an object took too long")),
    }
}

fn to_value(status: &impl Serialize) -> Result<Value, ApiError> {
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
