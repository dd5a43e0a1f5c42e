//! What the cluster's API server asks of every aggregated API: which groups, which resources, and an OpenAPI document. Only
//! subresources are listed, so that `kubectl get agentruns` means those of `agentrun.dev` and no other.

use agentrun_crds::names::{AGGREGATED_GROUP, AGGREGATED_VERSION};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::app::AppState;
use crate::people::OPERATIONS;

/// What makes an answer.
pub type Answer = fn() -> Value;

/// Each path, and its answer.
pub const DISCOVERY: [(&str, Answer); 6] = [
    ("/apis", || json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})),
    ("/apis/run.agentrun.dev", group),
    ("/apis/run.agentrun.dev/v1alpha1", resources),
    ("/openapi/v2", || openapi("swagger", "2.0")),
    ("/openapi/v3", openapi_groups),
    ("/openapi/v3/apis/run.agentrun.dev/v1alpha1", || openapi("openapi", "3.0.0")),
];

pub(super) fn routes() -> Router<AppState> {
    DISCOVERY.iter().fold(Router::new(), |router, (path, answer)| router.route(path, get(async || Json(answer()))))
}

fn group_version() -> String {
    format!("{AGGREGATED_GROUP}/{AGGREGATED_VERSION}")
}

fn group() -> Value {
    let version = json!({"groupVersion": group_version(), "version": AGGREGATED_VERSION});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": AGGREGATED_GROUP, "versions": [version], "preferredVersion": version})
}

fn resources() -> Value {
    let mut resources: Vec<Value> = Vec::new();
    for operation in OPERATIONS {
        let name = format!("agentruns/{}", operation.subresource());
        let verb = operation.kubernetes_verb();
        match resources.iter_mut().find(|resource| resource["name"] == name) {
            Some(resource) => {
                if let Some(verbs) = resource["verbs"].as_array_mut()
                    && !verbs.contains(&verb.into())
                {
                    verbs.push(verb.into());
                }
            }
            None => resources.push(json!({"name": name, "singularName": "", "namespaced": true, "kind": "AgentRun", "verbs": [verb]})),
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(), "resources": resources})
}

/// Enough for kubectl not to warn; the document for people is served to people.
fn openapi(key: &str, version: &str) -> Value {
    json!({key: version, "info": {"title": "AgentRun", "version": AGGREGATED_VERSION}, "paths": {}})
}

fn openapi_groups() -> Value {
    let url = format!("/openapi/v3/apis/{}", group_version());
    json!({"paths": {format!("apis/{}", group_version()): {"serverRelativeURL": url}}})
}
