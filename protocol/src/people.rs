//! What people and their programs exchange with the gateway, on the people listener and through the aggregated API alike.

use serde::{Deserialize, Serialize};

use crate::approval::{Action, State};

/// An approval with what the decider has to see. `GET …/approvals/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalView {
    pub id: i64,
    pub state: State,
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
    pub scope: Option<Scope>,
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
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ApprovalList {
    pub approvals: Vec<ApprovalView>,
}

/// How far an allowance goes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// This action, once.
    Once,
    /// The very same action, as often as this run asks for it.
    Session,
}

/// `POST …/approvals/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
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
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: i64,
    pub files: i64,
}

/// Largest source archive, in bytes.
pub const MAX_SOURCE_BYTES: usize = 32 * 1024 * 1024;
/// Most files of a source archive.
pub const MAX_SOURCE_FILES: usize = 10_000;
