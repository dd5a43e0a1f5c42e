//! What the sandbox claims at the end. The gateway believes none of it before it has validated it.

use serde::{Deserialize, Serialize};

/// Most changed files of a result.
pub const MAX_CHANGES: usize = 1024;
/// Largest blob, in bytes.
pub const MAX_BLOB_BYTES: usize = 8 * 1024 * 1024;

/// The result of one attempt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxResult {
    pub run_uid: String,
    pub attempt: i64,
    /// How the agent loop ended.
    pub outcome: Outcome,
    /// For people; at most 1,024 characters are kept.
    pub message: String,
    pub steps: i64,
    /// In the job's order, one for each check that ran (all of them when `outcome` is `Done`).
    pub checks: Vec<ClaimedCheck>,
    /// Sorted by path, no duplicates. True if the manifest was complete; a truncated one fails the run.
    pub changes: Vec<Change>,
    pub manifest_complete: bool,
}

/// How the agent loop ended.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The agent said that it is done.
    Done,
    StepLimit,
    BudgetExhausted,
    Deadline,
    ProviderAuthFailed,
    ProviderUnavailable,
    ProviderMisconfigured,
    GatewayUnavailable,
    SourceUnavailable,
    WorkspaceFull,
    ExecutorLost,
    AgentError,
}

/// One check as the sandbox saw it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimedCheck {
    pub name: String,
    pub argv: Vec<String>,
    /// 0 to 255; a signal gives 128 + its number. Absent: the program could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// `sha256:…` of the uploaded log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// One changed file. The new content must have been uploaded as a blob.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    pub path: String,
    /// Absent: the file is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<FileState>,
    /// Absent: the file was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileState>,
}

/// Content and mode of a regular file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileState {
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// 644 or 755, as decimal digits of the octal form.
    pub mode: u32,
}

/// Names an uploaded blob as an artifact.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactRequest {
    /// 1 to 128 characters of `[A-Za-z0-9._-]`, not starting with a dot. Unique in the run.
    pub name: String,
    pub digest: String,
}

/// The gateway's verdict.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ResultResponse {
    /// `Succeeded` or the reason why not.
    pub verdict: String,
    pub message: String,
}
