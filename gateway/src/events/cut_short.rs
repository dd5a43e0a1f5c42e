//! Consumed approvals of a run that has ended and whose log holds no outcome: the action was cut short, by a crash or the
//! deadline. Whether it had any effect is unknown, and it is not tried again.

use std::collections::BTreeSet;

use agentrun_protocol::event::EventType;
use serde_json::Value;

use crate::store::{EventStore, PageLimit, StoreError};

/// Those of the ids for which no `tool_result` names the approval. Reads the log only if there are any.
pub(super) async fn without_outcome(events: &dyn EventStore, run_uid: &str, mut ids: BTreeSet<i64>) -> Result<BTreeSet<i64>, StoreError> {
    let mut after = 0;
    while !ids.is_empty() {
        let page = events.read(run_uid, after, PageLimit::STREAM).await?;
        for record in page.records.iter().filter(|record| record.kind == EventType::ToolResult) {
            let data: Value = serde_json::from_str(&record.data).unwrap_or_default();
            if let Some(id) = data["approvalId"].as_i64() {
                ids.remove(&id);
            }
        }
        match page.records.last() {
            Some(last) if last.seq < page.last => after = last.seq,
            _ => break,
        }
    }
    Ok(ids)
}
