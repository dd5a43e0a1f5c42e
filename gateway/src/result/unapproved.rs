//! Denials and expired approvals as the reason why a run failed. Pure.

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::{Approval, ApprovalState};
use agentrun_crds::conditions::Reason;

/// What people did not allow, which tells more of a failure than what it led to.
pub(super) fn unapproved(run: &AgentRun) -> Option<(Reason, String)> {
    let status = run.status.as_ref()?;
    let totals = status.approval_totals?;
    let last = |state: ApprovalState| status.approvals.iter().filter(|approval| approval.state == state).max_by_key(|approval| approval.id);
    let named = |approval: Option<&Approval>| approval.map_or("An action".to_owned(), |a| format!("Action {} ({})", a.id, a.summary));
    if totals.denied > 0 {
        let denied = last(ApprovalState::Denied);
        let by = denied.and_then(|denied| denied.decided_by.as_deref()).map(|by| format!(" by {by}")).unwrap_or_default();
        let why = denied.and_then(|denied| denied.reason.as_deref()).map(|reason| format!(": {reason}")).unwrap_or_default();
        let count = if totals.denied > 1 { format!(" ({} were denied in all)", totals.denied) } else { String::new() };
        let advice = "Ask for another way in spec.instruction, or run it again and allow it.";
        return Some((Reason::Denied, format!("{} was denied{by}{why}{count}. {advice}", named(denied))));
    }
    if totals.expired > 0 {
        let count = if totals.expired > 1 { format!(" ({} expired in all)", totals.expired) } else { String::new() };
        let expired = named(last(ApprovalState::Expired));
        let advice = "Run it again while somebody who may approve is there, or have the policy wait longer.";
        return Some((Reason::ApprovalExpired, format!("{expired} was not decided in time{count}. {advice}")));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    fn approval(id: i64, state: &str, by: Option<&str>) -> Value {
        json!({
            "id": id, "digest": "", "kind": "run_command", "summary": format!("command {id}"), "state": state,
            "requestedAt": "2027-01-15T08:00:00Z", "expiresAt": "2027-01-15T09:00:00Z", "decidedBy": by, "reason": by.map(|_| "too risky"),
        })
    }

    #[test]
    fn a_denial_comes_before_an_expiry() {
        let (denied, expired) = (approval(3, "denied", Some("alice")), approval(4, "expired", None));
        let rows = [
            (Value::Null, json!([]), None),
            (json!([2, 2, 0, 0]), json!([approval(1, "consumed", Some("alice"))]), None),
            (
                json!([2, 0, 1, 1]),
                json!([denied, expired]),
                Some((Reason::Denied, "Action 3 (command 3) was denied by alice: too risky. ")),
            ),
            (json!([2, 0, 2, 0]), json!([denied]), Some((Reason::Denied, "too risky (2 were denied in all)"))),
            (json!([1, 0, 1, 0]), json!([]), Some((Reason::Denied, "An action was denied. "))),
            (json!([2, 1, 0, 1]), json!([expired]), Some((Reason::ApprovalExpired, "Action 4 (command 4) was not decided in time. "))),
            // Allowed, and not used in time.
            (json!([1, 1, 0, 0]), json!([expired]), None),
        ];
        for (totals, approvals, expected) in rows {
            let mut run = fixtures::run_json();
            let names = ["asked", "allowed", "denied", "expired"];
            let totals: Option<serde_json::Map<String, Value>> =
                totals.as_array().map(|counts| names.iter().map(|name| (*name).to_owned()).zip(counts.clone()).collect());
            (run["status"]["approvalTotals"], run["status"]["approvals"]) = (json!(totals), approvals);
            let found = unapproved(&serde_json::from_value(run).expect("a run"));
            match (&found, expected) {
                (None, None) => {}
                (Some((reason, text)), Some((wanted, part))) => assert!(*reason == wanted && text.contains(part), "{reason:?} {text}"),
                _ => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }
}
