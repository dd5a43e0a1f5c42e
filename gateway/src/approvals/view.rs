//! An approval as people see it: the record, and what is stored of the action behind it.

use agentrun_crds::agent_run_status::Approval;
use agentrun_protocol::approval::{Action, ActionDocument};
use agentrun_protocol::people::ApprovalView;
use futures::StreamExt;

use super::shown::{Loaded, shown};
use crate::store::{Digest, StoreError, Stores};

/// The record; with `most`, also the action and that many bytes of what is shown of it, as far as it is still stored.
pub(super) async fn view(stores: &Stores, run_uid: &str, approval: &Approval, most: usize) -> Result<ApprovalView, StoreError> {
    let action = action(stores, run_uid, approval).await?;
    let (text, shown_truncated) = match &action {
        Some(action) => {
            let (text, missing) = shown(action, &texts(stores, run_uid, action, most).await?, most);
            (Some(text), missing)
        }
        None => (None, false),
    };
    Ok(ApprovalView { action, shown: text, shown_truncated, ..record(approval) })
}

/// The record alone.
pub(super) fn record(approval: &Approval) -> ApprovalView {
    ApprovalView {
        id: approval.id,
        state: approval.state,
        kind: approval.kind.clone(),
        summary: approval.summary.clone(),
        digest: approval.digest.clone(),
        requested_at: approval.requested_at.0.to_string(),
        expires_at: approval.expires_at.0.to_string(),
        scope: approval.scope,
        decided_by: approval.decided_by.clone(),
        decided_at: approval.decided_at.as_ref().map(|at| at.0.to_string()),
        reason: approval.reason.clone(),
        action: None,
        shown: None,
        shown_truncated: false,
    }
}

/// The action of the document that the approval is bound to.
async fn action(stores: &Stores, run_uid: &str, approval: &Approval) -> Result<Option<Action>, StoreError> {
    let Ok(digest) = Digest::parse(&format!("sha256:{}", approval.digest)) else { return Ok(None) };
    let Some(blob) = stores.artifacts.open(run_uid, digest).await? else { return Ok(None) };
    // Read whole, its digest is that of the approval: these are the very bytes.
    let document: Result<ActionDocument, _> = serde_json::from_slice(&blob.read(digest).await?);
    document.map(|document| Some(document.action)).map_err(|error| StoreError::Failed(format!("an action's document {digest}: {error}")))
}

/// The action's texts, together at most a little over `most` bytes of them.
async fn texts(stores: &Stores, run_uid: &str, action: &Action, most: usize) -> Result<Vec<Loaded>, StoreError> {
    let (mut loaded, mut left) = (Vec::new(), most);
    for text in &action.texts {
        let Ok(digest) = Digest::parse(&text.digest) else { break };
        let Some(mut blob) = stores.artifacts.open(run_uid, digest).await? else { break };
        let mut content = Vec::new();
        while content.len() <= left
            && let Some(piece) = blob.content.next().await
        {
            content.extend_from_slice(&piece?);
        }
        let whole = i64::try_from(content.len()) == Ok(blob.bytes) && Digest::of(&content) == digest;
        left = left.saturating_sub(content.len());
        loaded.push(Loaded { name: text.name.clone(), content, whole });
    }
    Ok(loaded)
}
