//! What people and their programs exchange with the gateway, on the people listener and through the aggregated API alike.

use agentrun_crds::agent_run_status::{ApprovalScope, ApprovalState};
use serde::{Deserialize, Serialize};

use crate::approval::Action;

/// An approval with what the decider has to see. `GET …/approvals/{id}`.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalView {
    pub id: i64,
    pub state: ApprovalState,
    /// The tool asked for.
    pub kind: String,
    /// One line, made by the gateway.
    pub summary: String,
    /// SHA-256 (hex) of the action's document; a decision may name it.
    pub digest: String,
    /// RFC 3339.
    pub requested_at: String,
    /// RFC 3339.
    pub expires_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ApprovalScope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What will be performed; absent once its document is no longer stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The command or the texts, line by line, made by the gateway from the very bytes that will be performed, with control
    /// and invisible characters made visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// `shown` is only a part: the rest is among the run's artifacts under the digests of `action.texts`.
    #[serde(default)]
    pub shown_truncated: bool,
}

/// `GET …/approvals`.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ApprovalList {
    pub approvals: Vec<ApprovalView>,
}

/// `POST …/approvals/{id}`.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecisionRequest {
    pub decision: Decision,
    /// Decide only if this is what the approval is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// At most 256 characters; recorded, and told to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a person says.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    AllowOnce,
    AllowSession,
    /// The agent goes on, with the refusal as the tool's answer.
    Deny,
    /// Deny, and end the run.
    Cancel,
}

/// `PUT …/source`: what was stored.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: i64,
    pub files: i64,
}

/// `POST /v1/runs`.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitRequest {
    pub namespace: String,
    /// This or `generateName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the name begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate_name: Option<String>,
    /// As in an AgentRun; the API server judges it. `submittedBy` becomes whoever sends this.
    #[schemars(with = "agentrun_crds::AgentRunSpec")]
    pub spec: serde_json::Value,
}

/// One run. `GET /v1/runs/{id}`, and the answer to `POST /v1/runs`.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    /// The run's UID.
    pub id: String,
    pub namespace: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Why it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    pub links: RunLinks,
}

/// Paths on the same listener.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct RunLinks {
    pub run: String,
    pub events: String,
    pub approvals: String,
    pub artifacts: String,
    pub patch: String,
    pub source: String,
    pub cancel: String,
}

/// `GET /v1/runs`: the newest first.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct RunList {
    pub runs: Vec<RunView>,
    /// There are older ones that are not listed.
    pub more: bool,
}

/// `GET …/artifacts`, by name.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ArtifactList {
    pub artifacts: Vec<ArtifactView>,
}

/// A named blob of a run.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ArtifactView {
    pub name: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: i64,
}

/// Largest source archive, in bytes.
pub const MAX_SOURCE_BYTES: usize = 32 * 1024 * 1024;
/// Most files of a source archive.
pub const MAX_SOURCE_FILES: usize = 10_000;
