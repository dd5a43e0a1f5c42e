//! What the world is told besides status: Kubernetes Events and metrics, only when the outcome changed, and best effort.

use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::{AgentRunStatus, Phase};
use agentrun_crds::conditions::{Reason, types};
use kube::Resource;
use kube::runtime::events::{Event, EventType};

use super::status::condition;
use crate::context::Context;

/// A slow event must not hold up a run.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a change of status is worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub warning: bool,
    pub reason: String,
    pub note: String,
}

/// Compare; pure.
pub fn notice(before: &AgentRunStatus, next: &AgentRunStatus) -> Option<Notice> {
    let phase = next.phase?;
    if before.phase == Some(phase) {
        return another_question(before, next);
    }
    let complete = condition(next, types::COMPLETE)?;
    let message = &complete.message;
    let (reason, note) = if phase.is_terminal() {
        (complete.reason.clone(), if message.is_empty() { format!("the run ended: {}", phase.as_str()) } else { message.clone() })
    } else {
        (phase.as_str().to_owned(), message.clone())
    };
    Some(Notice { warning: phase == Phase::Failed, reason, note: note.chars().take(900).collect() })
}

/// A run that waits for a person already is told of again when what it asks has changed.
fn another_question(before: &AgentRunStatus, next: &AgentRunStatus) -> Option<Notice> {
    let asks = condition(next, types::AWAITING_APPROVAL).filter(|asks| asks.status == "True")?;
    let asked = condition(before, types::AWAITING_APPROVAL).map(|asked| asked.message.as_str());
    let note = asks.message.chars().take(900).collect();
    (asked != Some(&asks.message)).then(|| Notice { warning: false, reason: Phase::AwaitingApproval.as_str().into(), note })
}

/// A run that goes on although its sandbox is, or may be, open. One that ends for it says so by its end.
fn open_network(before: &AgentRunStatus, next: &AgentRunStatus) -> Option<Notice> {
    let open = condition(next, types::NETWORK_ENFORCED).filter(|enforced| enforced.status == "False")?;
    let told = condition(before, types::NETWORK_ENFORCED).is_some_and(|told| told.message == open.message);
    let ended = next.phase.is_some_and(Phase::is_terminal);
    let note = open.message.chars().take(900).collect();
    (!told && !ended).then(|| Notice { warning: true, reason: Reason::NetworkNotEnforced.as_str().into(), note })
}

/// Tell of a status that was written.
pub async fn changed(ctx: &Context, run: &AgentRun, before: &AgentRunStatus, next: &AgentRunStatus) {
    if let Some(notice) = notice(before, next) {
        tracing::info!(
            run.namespace = run.metadata.namespace.as_deref(),
            run.name = run.metadata.name.as_deref(),
            run.phase = next.phase.map(Phase::as_str),
            reason = notice.reason,
            "the run changed its phase: {}",
            notice.note
        );
        if next.phase.is_some_and(Phase::is_terminal)
            && let Some(reason) = Reason::ALL.iter().find(|reason| reason.as_str() == notice.reason)
        {
            ctx.metrics.run_ended(*reason);
        }
        publish(ctx, run, notice).await;
    }
    if let Some(notice) = open_network(before, next) {
        publish(ctx, run, notice).await;
    }
}

async fn publish(ctx: &Context, run: &AgentRun, notice: Notice) {
    let event = Event {
        type_: if notice.warning { EventType::Warning } else { EventType::Normal },
        reason: notice.reason,
        note: Some(notice.note),
        action: "Reconcile".into(),
        secondary: None,
    };
    let reference = run.object_ref(&());
    match tokio::time::timeout(PATIENCE, ctx.recorder.publish(&event, &reference)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an event could not be published"),
        Err(_) => tracing::debug!("an event could not be published in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_run::status::{Ending, Next};
    use jiff::Timestamp;
    use serde_json::json;

    #[test]
    fn only_a_new_phase_is_told() {
        let run: AgentRun = serde_json::from_value(json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "r"},
            "spec": {"instruction": "x", "model": "small", "source": {}},
        }))
        .unwrap();
        let none = AgentRunStatus::default();
        let pending = Next::of(&run, Timestamp::UNIX_EPOCH).pending("WaitingForPolicy", "no policy yet").done();
        let failed = Next::of(&run, Timestamp::UNIX_EPOCH).ended(&Ending::new(Reason::PolicyMissing, "none came")).done();
        assert_eq!(notice(&none, &pending), Some(Notice { warning: false, reason: "Pending".into(), note: "no policy yet".into() }));
        assert_eq!(notice(&pending, &pending), None);
        assert_eq!(notice(&pending, &failed), Some(Notice { warning: true, reason: "PolicyMissing".into(), note: "none came".into() }));
        assert_eq!(notice(&failed, &failed), None);
    }

    #[test]
    fn each_question_is_told() {
        let mut run: AgentRun = serde_json::from_value(json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "r"},
            "spec": {"instruction": "x", "model": "small", "source": {}},
        }))
        .unwrap();
        let mut told = |states: &[&str]| {
            let mut status = run.status.clone().unwrap_or_default();
            let ask = |(at, state): (usize, &&str)| {
                json!({"id": at + 1, "digest": "00", "kind": "run_command", "summary": "make", "state": state,
                    "requestedAt": "2026-01-01T00:00:00Z", "expiresAt": "2026-01-01T00:30:00Z"})
            };
            let approvals: Vec<serde_json::Value> = states.iter().enumerate().map(ask).collect();
            status.approvals = serde_json::from_value(json!(approvals)).unwrap();
            run.status = Some(status.clone());
            let next = Next::of(&run, Timestamp::UNIX_EPOCH).running().done();
            run.status = Some(next.clone());
            notice(&status, &next).map(|notice| notice.reason)
        };
        let rows: [(&[&str], Option<&str>); 6] = [
            (&[], Some("Running")),
            (&["pending"], Some("AwaitingApproval")),
            (&["pending"], None),
            (&["pending", "pending"], Some("AwaitingApproval")),
            (&["allowed", "denied"], Some("Running")),
            (&["consumed", "denied"], None),
        ];
        for (states, expected) in rows {
            assert_eq!(told(states).as_deref(), expected, "{states:?}");
        }
    }

    #[test]
    fn an_open_network_is_told_once_for_each_who_opens_it() {
        let mut run: AgentRun = serde_json::from_value(json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "r"},
            "spec": {"instruction": "x", "model": "small", "source": {}},
        }))
        .unwrap();
        let rows: [(&[&str], Option<&str>); 5] =
            [(&[], None), (&["a"], Some("a")), (&["a"], None), (&["a", "b"], Some("a, b")), (&[], None)];
        for (opened_by, expected) in rows {
            let opened_by: Vec<String> = opened_by.iter().map(|name| (*name).to_owned()).collect();
            let next = Next::of(&run, Timestamp::UNIX_EPOCH).network(&opened_by).running().done();
            let told = open_network(&run.status.clone().unwrap_or_default(), &next);
            match expected {
                None => assert_eq!(told, None, "{opened_by:?}"),
                Some(names) => {
                    let told = told.unwrap();
                    assert!(told.warning && told.reason == "NetworkNotEnforced" && told.note.contains(names), "{told:?}");
                }
            }
            run.status = Some(next);
        }
    }
}
