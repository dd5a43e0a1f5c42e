//! The run's next status, computed from the last one. Pure: takes `now`, keeps what it does not own, and yields the same
//! status again for an unchanged world, so that no write follows.

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::{AgentRunStatus, Phase, PodRef, Resolved};
use agentrun_crds::budget::{Budget, Gate};
use agentrun_crds::conditions::{Reason, types};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest message of a condition, in characters.
const MAX_MESSAGE: usize = 1024;

/// How a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub reason: Reason,
    pub message: String,
}

impl Ending {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Ending { reason, message: message.into() }
    }

    pub fn phase(&self) -> Phase {
        match self.reason {
            Reason::Succeeded => Phase::Succeeded,
            Reason::Cancelled => Phase::Cancelled,
            _ => Phase::Failed,
        }
    }
}

/// A status under construction.
pub struct Next {
    status: AgentRunStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Next {
    /// Begin from what stands.
    pub fn of(run: &AgentRun, now: Timestamp) -> Self {
        let mut status = run.status.clone().unwrap_or_default();
        status.observed_generation = run.metadata.generation;
        Next { status, generation: run.metadata.generation, now }
    }

    pub fn done(self) -> AgentRunStatus {
        self.status
    }

    /// Set a condition; its time moves only if its status does.
    fn set(&mut self, kind: &str, value: &str, reason: &str, message: &str) {
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        let before = self.status.conditions.iter().position(|condition| condition.type_ == kind);
        let time = match before.map(|at| &self.status.conditions[at]) {
            Some(old) if old.status == value => old.last_transition_time.clone(),
            _ => Time(self.now),
        };
        let condition = Condition {
            type_: kind.into(),
            status: value.into(),
            reason: reason.into(),
            message,
            observed_generation: self.generation,
            last_transition_time: time,
        };
        match before {
            Some(at) => self.status.conditions[at] = condition,
            None => self.status.conditions.push(condition),
        }
    }

    fn remove(&mut self, kind: &str) {
        self.status.conditions.retain(|condition| condition.type_ != kind);
    }

    /// A phase that something follows.
    fn going_on(&mut self, phase: Phase, message: &str) {
        self.status.phase = Some(phase);
        let word = phase.as_str();
        self.set(types::COMPLETE, "False", word, message);
        self.set(types::RECONCILING, "True", word, message);
        self.set(types::STALLED, "False", word, "");
        self.set(types::READY, "False", word, message);
    }

    /// Seen, but something that another manifest may bring is missing.
    pub fn pending(mut self, reason: &str, message: &str) -> Self {
        self.set(types::ACCEPTED, "Unknown", reason, message);
        self.going_on(Phase::Pending, message);
        self
    }

    /// Accepted and frozen.
    pub fn accepted(mut self, resolved: &Resolved) -> Self {
        if self.status.resolved.is_none() {
            self.status.resolved = Some(resolved.clone());
        }
        self.set(types::ACCEPTED, "True", "Accepted", "the policy allows the run");
        self
    }

    /// Waiting for its turn.
    pub fn queued(mut self, message: &str) -> Self {
        self.going_on(Phase::Queued, message);
        self
    }

    /// Left the queue: budget open, first attempt, ticket known by its hash.
    pub fn activated(mut self, ticket_sha256: String) -> Self {
        let limit = self.status.resolved.as_ref().map(|resolved| resolved.budget).unwrap_or_default();
        self.status.budget = Some(Budget::new(limit));
        self.status.attempt = Some(1);
        self.status.started_at = Some(Time(self.now));
        self.status.ticket_sha256 = Some(ticket_sha256);
        self.budget_texts();
        self.set(types::BUDGET_AVAILABLE, "True", "Open", "");
        self.starting("the sandbox is being made")
    }

    /// The sandbox comes up.
    pub fn starting(mut self, message: &str) -> Self {
        self.set(types::SANDBOX_READY, "False", "Starting", message);
        self.set(types::EXCHANGED, "False", "Starting", "the runner has not asked for its tokens yet");
        self.going_on(Phase::Starting, message);
        self
    }

    /// The Pod exists.
    pub fn pod(mut self, name: &str, uid: &str) -> Self {
        self.status.pod_ref = Some(PodRef { name: name.into(), uid: uid.into() });
        self
    }

    /// The runner has its tokens.
    pub fn running(mut self) -> Self {
        self.set(types::SANDBOX_READY, "True", "Running", "");
        self.set(types::EXCHANGED, "True", "Exchanged", "the runner holds this attempt's tokens");
        self.going_on(Phase::Running, "the agent works");
        self
    }

    /// Asked to end: authority is gone with this write, the Pod follows.
    pub fn cancelling(mut self) -> Self {
        self.close_budget();
        self.set(types::BUDGET_AVAILABLE, "False", "Closed", "the run is being cancelled");
        self.going_on(Phase::Cancelling, "the sandbox is being stopped");
        self
    }

    /// The end, in one write: budget closed, phase, conditions, time.
    pub fn ended(mut self, ending: &Ending) -> Self {
        let phase = ending.phase();
        let word = ending.reason.as_str();
        let message = ending.message.as_str();
        let truth = |yes: bool| if yes { "True" } else { "False" };
        self.close_budget();
        self.status.phase = Some(phase);
        self.status.finished_at = Some(Time(self.now));
        if self.status.resolved.is_none() {
            self.set(types::ACCEPTED, "False", word, message);
        }
        if self.status.started_at.is_some() {
            self.set(types::BUDGET_AVAILABLE, "False", "Closed", "the run has ended");
            self.set(types::SANDBOX_READY, "False", word, "");
        }
        if self.status.pod_ref.is_some() {
            self.set(types::SANDBOX_GONE, "False", "Stopping", "the Pod is being removed");
        }
        self.set(types::COMPLETE, "True", word, message);
        self.set(types::SUCCEEDED, truth(phase == Phase::Succeeded), word, message);
        self.set(types::RECONCILING, "False", word, "");
        self.set(types::STALLED, truth(phase == Phase::Failed), word, message);
        self.set(types::READY, truth(phase != Phase::Failed), word, message);
        self
    }

    /// The Pod is gone (`Some(true)`), or no kubelet says so (`None`).
    pub fn sandbox_gone(mut self, known: bool) -> Self {
        if known {
            self.set(types::SANDBOX_GONE, "True", "Removed", "");
        } else {
            let message = "the node does not say that the Pod ended; its object was removed by force";
            self.set(types::SANDBOX_GONE, "Unknown", "NodeSilent", message);
        }
        self
    }

    /// Children cannot be removed; tried again for a while.
    pub fn cleanup_failed(mut self, message: &str) -> Self {
        self.set(types::CLEANUP_FAILED, "True", "Retrying", message);
        self
    }

    /// Drop a condition that no longer speaks of anything.
    pub fn cleanup_done(mut self) -> Self {
        self.remove(types::CLEANUP_FAILED);
        self
    }

    fn close_budget(&mut self) {
        if let Some(budget) = self.status.budget.as_mut().filter(|budget| budget.gate == Gate::Open) {
            budget.close();
        }
        self.budget_texts();
    }

    fn budget_texts(&mut self) {
        if let Some(budget) = &self.status.budget {
            self.status.requests_text = Some(budget.requests_text());
            self.status.cost_text = Some(budget.cost_text());
        }
    }
}

/// A condition of a run.
pub fn condition<'a>(status: &'a AgentRunStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentrun_crds::budget::{Amount, Reservation};
    use serde_json::json;

    fn run() -> AgentRun {
        serde_json::from_value(json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "r", "generation": 1},
            "spec": {"instruction": "x", "model": "small", "source": {"inline": {"files": [{"path": "a", "content": ""}]}}},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn times_move_only_with_the_condition() {
        let mut run = run();
        run.status = Some(Next::of(&run, at(1)).pending("WaitingForPolicy", "no policy yet").done());
        let again = Next::of(&run, at(2)).pending("WaitingForPolicy", "no policy yet").done();
        assert_eq!(run.status.as_ref(), Some(&again), "an unchanged world gives the same status");
        let other = Next::of(&run, at(3)).pending("WaitingForProvider", "no provider yet").done();
        let accepted = condition(&other, types::ACCEPTED).unwrap();
        assert_eq!((accepted.last_transition_time.0, accepted.reason.as_str()), (at(1), "WaitingForProvider"));
        run.metadata.generation = Some(2);
        let newer = Next::of(&run, at(4)).pending("WaitingForPolicy", "no policy yet").done();
        assert_eq!(condition(&newer, types::ACCEPTED).unwrap().observed_generation, Some(2));
        assert_eq!(newer.observed_generation, Some(2));
    }

    #[test]
    fn each_end_says_complete_and_how() {
        // reason -> phase, Succeeded, Ready, Stalled
        for (reason, phase, succeeded, ready, stalled) in [
            (Reason::Succeeded, Phase::Succeeded, "True", "True", "False"),
            (Reason::Cancelled, Phase::Cancelled, "False", "True", "False"),
            (Reason::ChecksFailed, Phase::Failed, "False", "False", "True"),
            (Reason::SandboxLost, Phase::Failed, "False", "False", "True"),
        ] {
            let status = Next::of(&run(), at(1)).ended(&Ending::new(reason, "why")).done();
            let found = |kind: &str| condition(&status, kind).map(|c| c.status.as_str()).unwrap_or("-");
            assert_eq!(status.phase, Some(phase));
            assert_eq!(found(types::COMPLETE), "True");
            assert_eq!((found(types::SUCCEEDED), found(types::READY), found(types::STALLED)), (succeeded, ready, stalled), "{reason:?}");
            assert_eq!(found(types::RECONCILING), "False");
            assert_eq!(condition(&status, types::COMPLETE).unwrap().reason, reason.as_str());
            assert_eq!(status.finished_at, Some(Time(at(1))));
        }
    }

    #[test]
    fn the_end_charges_what_is_open() {
        let mut run = run();
        let mut status = Next::of(&run, at(1)).activated("00".into()).done();
        let budget = status.budget.as_mut().unwrap();
        budget.limit.requests = 10;
        let amount = Amount { requests: 1, input_tokens: 50, output_tokens: 20, cost_micros: 7_000 };
        budget.reserve(Reservation { id: "a".into(), holder: "g".into(), amount, since: 1 }).unwrap();
        run.status = Some(status);
        let ended = Next::of(&run, at(2)).ended(&Ending::new(Reason::DeadlineExceeded, "late")).done();
        let budget = ended.budget.unwrap();
        assert_eq!((budget.gate, budget.reservations.len(), budget.spent.input_tokens), (Gate::Closed, 0, 50));
        assert_eq!((ended.requests_text.as_deref(), ended.cost_text.as_deref()), (Some("1/10"), Some("0.007")));
    }
}
