//! Events: NDJSON lines `{seq, time, type, data}` of a run, dense from 1.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest `data` of one event, in bytes of JSON. The runner cuts longer output and says so in the event.
pub const MAX_DATA_BYTES: usize = 64 * 1024;
/// Most events in one append.
pub const MAX_BATCH: usize = 256;
/// Largest body of one append, in bytes. The runner sends more appends rather than a larger one.
pub const MAX_APPEND_BYTES: usize = 1024 * 1024;
/// Longest key.
pub const MAX_KEY_BYTES: usize = 128;

/// The closed list of types.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    // --- the gateway's own; the sandbox may not append these ---
    /// `{phase, reason?, message?}`
    Phase,
    /// `{model, status, durationMs, inputTokens, outputTokens, costMicros, requestsSpent, requestsLimit}`
    ModelCall,
    /// `{gate, dimension?}`
    Budget,
    /// `{id, state, kind, summary, expiresAt?, decidedBy?, scope?, reason?, executionId?, outcome?}`
    Approval,
    /// `{from, to, reason}`
    Gap,
    /// `{type, dropped}`: the sandbox was over its quota.
    Truncated,
    /// `{verdict, message, patch?}`: the validated result.
    Result,
    /// `{phase, reason}`: the last event of a run.
    End,
    // --- appended by the runner ---
    /// `{step, maxSteps}`
    Step,
    /// `{text}`: what the model said.
    Message,
    /// `{step, tool, arguments}`
    ToolCall,
    /// `{step, tool, ok, output, truncated}`
    ToolResult,
    /// `{stream, text}`: live output of a command.
    Output,
    /// `{name, argv}`
    CheckStarted,
    /// `{name, exitCode?, durationMs, output, truncated}`
    CheckFinished,
    /// `{text}`: the runner's own remarks.
    Note,
}

impl EventType {
    /// Whether the sandbox may append this type.
    pub fn from_sandbox(self) -> bool {
        use EventType::*;
        matches!(self, Step | Message | ToolCall | ToolResult | Output | CheckStarted | CheckFinished | Note)
    }
}

/// One event to append. `key` is unique within the attempt: the same key and body again returns the old number,
/// the same key with another body is a 409.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewEvent {
    pub key: String,
    #[serde(rename = "type")]
    pub kind: EventType,
    pub data: Value,
}

/// Up to `MAX_BATCH` events, appended in order, all or none.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppendRequest {
    pub events: Vec<NewEvent>,
}

/// Sequence numbers, one per event; durable when this is sent. A number of 0 says that the event was dropped for quota
/// (a `truncated` event stands in the log instead).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct AppendResponse {
    pub seqs: Vec<i64>,
}

/// One event as it is read.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub seq: i64,
    /// RFC 3339 with milliseconds, the gateway's clock.
    pub time: String,
    #[serde(rename = "type")]
    pub kind: EventType,
    pub data: Value,
}
