//! What the log says of an approval. Pure: each state that it has passed gives one event, always the same under the same key.

use agentrun_crds::agent_run_status::{Approval, ApprovalState};
use agentrun_protocol::event::EventType;
use serde_json::{Value, json};

use crate::store::NewRecord;

/// The events up to the record's state. `ended`: the run has, and what is open will be written down as expired.
pub fn approval_events(approval: &Approval, ended: bool) -> Vec<NewRecord> {
    let mut events = vec![event(approval, "pending", &[("expiresAt", json!(approval.expires_at))])];
    if let Some(by) = &approval.decided_by {
        let word = if approval.state == ApprovalState::Denied { "denied" } else { "allowed" };
        let (scope, reason) = (approval.scope.map(|scope| json!(scope)), approval.reason.as_ref().map(|reason| json!(reason)));
        events.push(event(
            approval,
            word,
            &[("decidedBy", json!(by)), ("scope", scope.unwrap_or_default()), ("reason", reason.unwrap_or_default())],
        ));
    }
    match approval.state {
        ApprovalState::Consumed => events.push(event(approval, "consumed", &[("executionId", json!(approval.execution_id))])),
        ApprovalState::Expired => events.push(event(approval, "expired", &[])),
        ApprovalState::Pending | ApprovalState::Allowed if ended => events.push(event(approval, "expired", &[])),
        _ => {}
    }
    events
}

/// An allowance was used, and nothing says what came of it: it was cut short, and is not tried again.
pub(super) fn unknown_outcome(approval: &Approval) -> NewRecord {
    let mut record = event(approval, "consumed", &[("outcome", json!("unknown"))]);
    record.key = format!("approval/{}/outcome", approval.id);
    record
}

fn event(approval: &Approval, state: &str, more: &[(&str, Value)]) -> NewRecord {
    let mut data = json!({"id": approval.id, "state": state, "kind": approval.kind, "summary": approval.summary});
    for (name, value) in more.iter().filter(|(_, value)| !value.is_null()) {
        data[*name] = value.clone();
    }
    NewRecord::new(format!("approval/{}/{state}", approval.id), EventType::Approval, &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_passed_is_one_event() {
        let decided = json!({"decidedBy": "alice", "decidedAt": "2027-01-15T08:00:00Z", "scope": "once", "reason": "fine"});
        let denied = json!({"decidedBy": "alice", "decidedAt": "2027-01-15T08:00:00Z"});
        for (state, more, ended, keys) in [
            ("pending", json!({}), false, vec!["pending"]),
            ("pending", json!({}), true, vec!["pending", "expired"]),
            ("allowed", decided.clone(), false, vec!["pending", "allowed"]),
            ("allowed", decided.clone(), true, vec!["pending", "allowed", "expired"]),
            ("expired", json!({}), false, vec!["pending", "expired"]),
            ("expired", decided.clone(), true, vec!["pending", "allowed", "expired"]),
            ("denied", denied, true, vec!["pending", "denied"]),
            ("consumed", decided, true, vec!["pending", "allowed", "consumed"]),
        ] {
            let mut body = json!({
                "id": 3, "digest": "d", "kind": "run_command", "summary": "ls", "state": state,
                "requestedAt": "2027-01-15T08:00:00Z", "expiresAt": "2027-01-15T09:00:00Z",
            });
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            if state == "consumed" {
                body["executionId"] = json!("x");
            }
            let approval: Approval = serde_json::from_value(body).expect("an approval");
            let events = approval_events(&approval, ended);
            let expected: Vec<String> = keys.iter().map(|key| format!("approval/3/{key}")).collect();
            assert_eq!(events.iter().map(|event| event.key.clone()).collect::<Vec<_>>(), expected, "{state}");
            let data: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).expect("JSON")).collect();
            assert_eq!(
                data[0],
                json!({"id": 3, "state": "pending", "kind": "run_command", "summary": "ls", "expiresAt": "2027-01-15T09:00:00Z"})
            );
            if keys.contains(&"allowed") {
                let expected = json!({"id": 3, "state": "allowed", "kind": "run_command", "summary": "ls", "decidedBy": "alice", "scope": "once", "reason": "fine"});
                assert_eq!(data[1], expected);
            }
        }
    }
}
