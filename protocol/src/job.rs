//! The job: what the runner is told to do, built by the gateway from the run's spec and `status.resolved`.

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
    pub allowed_paths: Vec<String>,
    pub checks: Vec<JobCheck>,
    /// The model name to put in requests.
    pub model: String,
    pub max_steps: i64,
    /// Unix seconds; the runner ends itself a little before, the operator enforces it.
    pub deadline: i64,
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
