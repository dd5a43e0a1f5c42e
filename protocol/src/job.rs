//! The job: what the runner is told to do, built by the gateway from the run's spec and `status.resolved`.

use agentrun_crds::agent_run_status::ResolvedHarness;
use serde::{Deserialize, Serialize};

/// Everything the runner needs besides its tokens.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub run_uid: String,
    pub namespace: String,
    pub name: String,
    pub attempt: i64,
    pub instruction: String,
    pub files: Vec<JobFile>,
    /// The source is an archive to be fetched from `routes::SOURCE` instead; `sha256:` and 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// The archive was made from a commit: the name of the tree that its files make, 40 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// What needs approval. Absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<JobApprovals>,
    pub allowed_paths: Vec<String>,
    pub checks: Vec<JobCheck>,
    /// The model name to put in requests.
    pub model: String,
    pub max_steps: i64,
    /// The command-line agent that works. Absent: the built-in one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<ResolvedHarness>,
    /// Unix seconds; the runner ends itself a little before, the operator enforces it.
    pub deadline: i64,
}

/// The rules, to be judged by `agentrun_crds::approval_rules::judge`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JobApprovals {
    pub policy_rules: Vec<agentrun_crds::approval_rules::ApprovalRule>,
    pub run_rules: Vec<agentrun_crds::approval_rules::ApprovalRule>,
}

/// One file of the source.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct JobFile {
    pub path: String,
    pub content: String,
    pub executable: bool,
}

/// One check.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct JobCheck {
    pub name: String,
    pub argv: Vec<String>,
}
