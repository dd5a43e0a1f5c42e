//! What the gateway's log says of a run's status. Pure: the same status gives the same events, under the same keys, so that
//! deriving them again writes nothing.

use agentrun_crds::agent_run_status::RunResult;
use agentrun_crds::conditions::types::COMPLETE;
use agentrun_crds::{AgentRun, AgentRunStatus};
use agentrun_protocol::event::EventType;
use serde_json::{Value, json};

use super::approval_events::approval_events;
use crate::store::NewRecord;

/// Longest text taken from a condition.
const MAX_TEXT: usize = 1024;

/// Events of one run, in the order in which they must stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Derived {
    pub attempt: i64,
    pub records: Vec<NewRecord>,
    /// The last record ends the log.
    pub ends: bool,
}

pub(super) fn derive(run: &AgentRun) -> Derived {
    let Some(status) = &run.status else { return Derived::default() };
    let attempt = status.attempt.unwrap_or(0);
    let result = status.result.as_ref().map(|result| {
        let (key, data) = result_event(result);
        NewRecord::new(key, EventType::Result, &data)
    });
    let ended = status.phase.is_some_and(|phase| phase.is_terminal());
    let approvals: Vec<NewRecord> = status.approvals.iter().flat_map(|approval| approval_events(approval, ended)).collect();
    let Some(phase) = status.phase else {
        return Derived { attempt, records: approvals.into_iter().chain(result).collect(), ends: false };
    };
    let phase_event = NewRecord::new(
        format!("phase/{attempt}/{}", phase.as_str()),
        EventType::Phase,
        &phase_data(status, phase.as_str(), phase.is_terminal()),
    );
    if !ended {
        return Derived { attempt, records: approvals.into_iter().chain([phase_event]).chain(result).collect(), ends: false };
    }
    let reason = complete(status).map_or("", |(reason, _)| reason);
    let end = NewRecord::new("end", EventType::End, &json!({"phase": phase.as_str(), "reason": reason}));
    Derived { attempt, records: approvals.into_iter().chain(result).chain([phase_event, end]).collect(), ends: true }
}

/// Key and data of a validated result's event; the intake records it at once, the derivation again.
pub fn result_event(result: &RunResult) -> (String, Value) {
    let mut data = json!({"verdict": result.verdict, "message": result.message});
    if let Some(patch) = &result.patch {
        data["patch"] = json!(patch);
    }
    (format!("result/{}", result.attempt), data)
}

fn phase_data(status: &AgentRunStatus, phase: &str, terminal: bool) -> Value {
    let mut data = json!({ "phase": phase });
    if let Some((reason, message)) = complete(status).filter(|_| terminal) {
        data["reason"] = reason.into();
        data["message"] = message.chars().take(MAX_TEXT).collect::<String>().into();
    }
    data
}

fn complete(status: &AgentRunStatus) -> Option<(&str, &str)> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == COMPLETE && condition.status == "True")?;
    Some((&condition.reason, &condition.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(status: Value) -> AgentRun {
        let body = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "r", "namespace": "n", "uid": "u"},
            "spec": {"instruction": "x", "source": {}, "model": "m"}, "status": status,
        });
        serde_json::from_value(body).expect("a run")
    }

    #[test]
    fn the_log_follows_the_status() {
        let result = json!({"attempt": 1, "verdict": "Succeeded", "message": "done", "changedFiles": 1, "steps": 2, "patch": {"digest": "sha256:x", "bytes": 3}});
        let complete = json!([{"type": "Complete", "status": "True", "reason": "Succeeded", "message": "all well", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let rows = [
            (json!({}), vec![], false),
            (json!({"phase": "Queued"}), vec![("phase/0/Queued", json!({"phase": "Queued"}))], false),
            (
                json!({"phase": "Running", "attempt": 1, "result": result}),
                vec![
                    ("phase/1/Running", json!({"phase": "Running"})),
                    ("result/1", json!({"verdict": "Succeeded", "message": "done", "patch": {"digest": "sha256:x", "bytes": 3}})),
                ],
                false,
            ),
            (
                json!({"phase": "Succeeded", "attempt": 1, "result": result, "conditions": complete}),
                vec![
                    ("result/1", json!({"verdict": "Succeeded", "message": "done", "patch": {"digest": "sha256:x", "bytes": 3}})),
                    ("phase/1/Succeeded", json!({"phase": "Succeeded", "reason": "Succeeded", "message": "all well"})),
                    ("end", json!({"phase": "Succeeded", "reason": "Succeeded"})),
                ],
                true,
            ),
            (
                json!({"phase": "Failed"}),
                vec![("phase/0/Failed", json!({"phase": "Failed"})), ("end", json!({"phase": "Failed", "reason": ""}))],
                true,
            ),
        ];
        for (status, expected, ends) in rows {
            let derived = derive(&run(status.clone()));
            let actual: Vec<_> =
                derived.records.iter().map(|record| (record.key.as_str(), serde_json::from_str(&record.data).expect("JSON"))).collect();
            assert_eq!((actual, derived.ends), (expected, ends), "{status}");
        }
    }
}
