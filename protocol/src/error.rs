//! The body of every refusal: `{"error": {"code": "...", "message": "...", "field": "..."}}`.

use serde::{Deserialize, Serialize};

/// Header of every refusal: the code again, for whoever does not read the body, which on model routes is in the dialect's form.
pub const ERROR_HEADER: &str = "x-agentrun-error";

/// A refusal.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// What was wrong, where, and what is allowed.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ErrorDetail {
    /// A stable word for programs.
    pub code: String,
    /// A sentence for people; never a secret.
    pub message: String,
    /// The field at fault, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// OpenAI's name for a class of errors; on model routes only.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}
