//! When a run's wall time passes, waiting for people left out as far as its policy says so. Pure; operator, gateway and, by
//! the gateway's answers, the runner go by it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::AgentRunStatus;
use crate::agent_run_status::{ApprovalState, Resolved};

impl Resolved {
    /// The longest that waiting for people may move the run's deadline, in seconds.
    pub fn max_pause_seconds(&self) -> i64 {
        self.approvals.as_ref().map_or(0, |approvals| approvals.max_pause_seconds.max(0))
    }
}

impl AgentRunStatus {
    /// Unix seconds; `None` before the exchange. The wall time counts from the exchange and stands still while an approval is
    /// pending, for at most `resolved.approvals.maxPauseSeconds` in all.
    pub fn deadline(&self, now: i64) -> Option<i64> {
        let (exchange, resolved) = (self.exchange.as_ref()?, self.resolved.as_ref()?);
        let pause = self.waited(now).clamp(0, resolved.max_pause_seconds());
        Some(exchange.at.saturating_add(resolved.wall_time_seconds).saturating_add(pause))
    }

    /// How long the run has waited for people, in seconds, the current wait included. A wait ends by itself when the last
    /// pending approval expires, whoever writes that down later.
    pub fn waited(&self, now: i64) -> i64 {
        let before = self.waited_seconds.unwrap_or(0);
        let Some(since) = &self.awaiting_since else { return before };
        let pending = self.approvals.iter().filter(|approval| approval.state == ApprovalState::Pending);
        let until = pending.map(|approval| seconds(&approval.expires_at)).max().map_or(now, |last| last.min(now));
        before.saturating_add(until.saturating_sub(seconds(since)).max(0))
    }
}

fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: i64 = 1_800_000_000;

    fn at(offset: i64) -> serde_json::Value {
        json!(Time(k8s_openapi::jiff::Timestamp::from_second(AT + offset).expect("a time")))
    }

    fn status(max_pause: Option<i64>, waited: Option<i64>, since: Option<i64>, expires: &[i64]) -> AgentRunStatus {
        let limit = crate::budget::Limit::default();
        let approvals = max_pause.map(|most| json!({"timeoutSeconds": 60, "maxPauseSeconds": most, "submitterMayApprove": true}));
        let list: Vec<_> = (1..)
            .zip(expires)
            .map(|(id, offset)| {
                json!({"id": id, "digest": "", "kind": "t", "summary": "", "requestedAt": at(0), "expiresAt": at(*offset), "state": "pending"})
            })
            .collect();
        serde_json::from_value(json!({
            "exchange": {"attempt": 1, "publicKey": "", "nonce": "", "at": AT},
            "resolved": {
                "policySha256": "", "image": "", "maxSteps": 1, "wallTimeSeconds": 100, "startupDeadlineSeconds": 1, "allowedPaths": [],
                "hostUsers": "Isolated", "cpu": "", "memory": "", "workspace": "", "budget": limit, "checks": [], "approvals": approvals,
                "model": {"name": "", "provider": "", "model": "", "maxOutputTokens": 1},
            },
            "waitedSeconds": waited, "awaitingSince": since.map(at), "approvals": list,
        }))
        .expect("a status")
    }

    #[test]
    fn waiting_moves_the_deadline_as_far_as_the_policy_lets_it() {
        for (name, status, now, waited, deadline) in [
            ("no approvals", status(None, None, None, &[]), 50, 0, 100),
            ("waiting does not count", status(None, Some(20), None, &[]), 50, 20, 100),
            ("no pause", status(Some(0), Some(20), Some(30), &[60]), 50, 40, 100),
            ("waited before", status(Some(500), Some(20), None, &[]), 50, 20, 120),
            ("waits now", status(Some(500), Some(20), Some(30), &[60]), 50, 40, 140),
            ("the wait has ended by itself", status(Some(500), Some(20), Some(30), &[40, 60]), 90, 50, 150),
            ("as long as it may", status(Some(25), Some(20), Some(30), &[60]), 50, 40, 125),
            ("a clock that is behind", status(Some(500), None, Some(30), &[60]), 10, 0, 100),
            ("a wait without a pending approval", status(Some(500), None, Some(30), &[]), 50, 20, 120),
        ] {
            assert_eq!((status.waited(AT + now), status.deadline(AT + now)), (waited, Some(AT + deadline)), "{name}");
        }
        assert_eq!(AgentRunStatus::default().deadline(AT), None);
    }
}
