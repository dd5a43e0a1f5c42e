//! `AgentRunRecord`: what is left of a finished run when its AgentRun is gone, under the same name. It keeps a re-created
//! AgentRun of the same spec from running again (reason AlreadyRan). Written by the operator only.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::agent_run::AgentRunSpec;
use crate::agent_run_status::{ArtifactRef, Phase};
use crate::budget::Spent;

/// The last finished run of this name.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns share their types")]
#[kube(
    group = "agentrun.dev",
    version = "v1alpha1",
    kind = "AgentRunRecord",
    namespaced,
    shortname = "arr",
    derive = "PartialEq",
    doc = "What is left of a finished run when its AgentRun is gone.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".spec.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason"),
    printcolumn(name = "Finished", type_ = "date", json_path = ".spec.finishedAt"),
    printcolumn(name = "By", type_ = "string", json_path = ".spec.submittedBy", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunRecordSpec {
    /// UID of the AgentRun; its events and artifacts are kept under it as long as retention says.
    pub run_uid: String,
    /// `spec_sha256` of the run's spec.
    pub spec_sha256: String,
    /// The terminal phase.
    pub phase: Phase,
    /// How it ended; one of `conditions::Reason`.
    pub reason: String,
    pub finished_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<String>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
    /// The patch in the gateway's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<ArtifactRef>,
}

/// SHA-256 (hex) of a spec without what may change after creation (`cancel`, `ttlSecondsAfterFinished`) and without
/// `submittedBy`, so that whoever applies the same manifest means the same run.
pub fn spec_sha256(spec: &AgentRunSpec) -> String {
    let same = AgentRunSpec { cancel: false, ttl_seconds_after_finished: None, submitted_by: None, ..spec.clone() };
    let bytes = serde_json::to_vec(&same).expect("a spec is plain data");
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
