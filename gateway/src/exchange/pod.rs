//! The Pod behind a projected ServiceAccount token: TokenReview says who, a live GET says that it still is. TokenReview alone
//! accepts a deleted Pod's token for seconds.

use agentrun_crds::{AgentRun, names};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client, Resource};

use super::refused;
use crate::error::ApiError;

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// A live sandbox Pod and the run that controls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub run_name: String,
    pub run_uid: String,
}

/// What a token says of its Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    namespace: String,
    pod_name: String,
    pod_uid: String,
}

/// Find the Pod, or refuse.
pub async fn authenticate(kube: &Client, token: &str) -> Result<SandboxPod, ApiError> {
    let api: Api<TokenReview> = Api::all(kube.clone());
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![names::EXCHANGE_AUDIENCE.to_owned()]) };
    let review = api.create(&PostParams::default(), &TokenReview { spec, ..TokenReview::default() }).await.map_err(ApiError::api_server)?;
    let bound = bound(review.status.unwrap_or_default()).ok_or_else(|| refuse("the Pod token is not accepted"))?;
    let api: Api<Pod> = Api::namespaced(kube.clone(), &bound.namespace);
    let pod = api.get_opt(&bound.pod_name).await.map_err(ApiError::api_server)?;
    pod.and_then(|pod| sandbox_pod(&pod, bound)).ok_or_else(|| refuse("the Pod is not a live sandbox"))
}

fn refuse(why: &'static str) -> ApiError {
    tracing::warn!(why, "an exchange was refused");
    refused()
}

fn bound(status: TokenReviewStatus) -> Option<Bound> {
    let audience_holds = status.audiences.unwrap_or_default().iter().any(|audience| audience == names::EXCHANGE_AUDIENCE);
    if status.authenticated != Some(true) || !audience_holds {
        return None;
    }
    let user = status.user?;
    let (namespace, account) = user.username.as_deref()?.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    if account != names::SANDBOX_SERVICE_ACCOUNT {
        return None;
    }
    let extra = user.extra.unwrap_or_default();
    let one = |key: &str| match extra.get(key).map(Vec::as_slice) {
        Some([value]) => Some(value.clone()),
        _ => None,
    };
    Some(Bound { namespace: namespace.to_owned(), pod_name: one(POD_NAME)?, pod_uid: one(POD_UID)? })
}

fn sandbox_pod(pod: &Pod, bound: Bound) -> Option<SandboxPod> {
    let metadata = &pod.metadata;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let live = metadata.uid.as_deref() == Some(&bound.pod_uid)
        && metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some("Succeeded" | "Failed"))
        && pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()) == Some(names::SANDBOX_SERVICE_ACCOUNT)
        && owner.api_version == AgentRun::api_version(&())
        && owner.kind == AgentRun::kind(&())
        && label(names::LABEL_RUN_UID) == Some(&owner.uid);
    live.then(|| SandboxPod {
        namespace: bound.namespace,
        name: bound.pod_name,
        uid: bound.pod_uid,
        run_name: owner.name.clone(),
        run_uid: owner.uid.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(mut value: Value, pointer: &str, new: Value) -> Value {
        *value.pointer_mut(pointer).unwrap() = new;
        value
    }

    #[test]
    fn only_our_audience_account_and_a_bound_pod_count() {
        let good = json!({
            "authenticated": true,
            "audiences": [names::EXCHANGE_AUDIENCE],
            "user": { "username": "system:serviceaccount:team:agentrun-sandbox", "extra": { POD_NAME: ["p"], POD_UID: ["u"] } },
        });
        let expected = Bound { namespace: "team".into(), pod_name: "p".into(), pod_uid: "u".into() };
        assert_eq!(bound(serde_json::from_value(good.clone()).unwrap()), Some(expected));
        for (pointer, new) in [
            ("/authenticated", json!(false)),
            ("/authenticated", json!(null)),
            ("/audiences", json!(["other"])),
            ("/audiences", json!(null)),
            ("/user", json!(null)),
            ("/user/username", json!("system:serviceaccount:team:default")),
            ("/user/username", json!("system:serviceaccount:agentrun-sandbox")),
            ("/user/username", json!("alice")),
            ("/user/extra", json!(null)),
            ("/user/extra", json!({ POD_NAME: ["p"] })),
            ("/user/extra", json!({ POD_NAME: ["p", "q"], POD_UID: ["u"] })),
        ] {
            assert_eq!(bound(serde_json::from_value(with(good.clone(), pointer, new.clone())).unwrap()), None, "{pointer} {new}");
        }
    }

    #[test]
    fn a_pod_must_be_live_ours_and_the_same() {
        let good = json!({
            "metadata": {
                "uid": "u", "deletionTimestamp": null, "labels": { names::LABEL_RUN_UID: "run" },
                "ownerReferences": [{ "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "name": "fix-it", "uid": "run", "controller": true }],
            },
            "spec": { "serviceAccountName": "agentrun-sandbox", "containers": [] },
            "status": { "phase": "Running" },
        });
        let check = |value: Value| {
            sandbox_pod(&serde_json::from_value(value).unwrap(), Bound { namespace: "n".into(), pod_name: "p".into(), pod_uid: "u".into() })
        };
        assert_eq!(check(good.clone()).map(|pod| (pod.run_name, pod.run_uid)), Some(("fix-it".into(), "run".into())));
        assert!(check(with(good.clone(), "/status/phase", json!("Pending"))).is_some());
        for (pointer, new) in [
            ("/metadata/uid", json!("other")),
            ("/metadata/deletionTimestamp", json!("2026-11-30T00:00:00Z")),
            ("/metadata/labels", json!({})),
            ("/metadata/labels", json!({ names::LABEL_RUN_UID: "other" })),
            ("/metadata/ownerReferences", json!([])),
            ("/metadata/ownerReferences/0/controller", json!(false)),
            ("/metadata/ownerReferences/0/kind", json!("Job")),
            ("/metadata/ownerReferences/0/apiVersion", json!("batch/v1")),
            ("/spec/serviceAccountName", json!("default")),
            ("/status/phase", json!("Succeeded")),
            ("/status/phase", json!("Failed")),
        ] {
            assert_eq!(check(with(good.clone(), pointer, new.clone())), None, "{pointer} {new}");
        }
    }
}
