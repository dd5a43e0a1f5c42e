//! The run's next status, computed from the last one. Pure: takes `now`, keeps what it does not own, and yields the same
//! status again for an unchanged world, so that no write follows.

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::{AgentRunStatus, ApprovalState, EarlierRun, Phase, PodRef, Resolved};
use agentrun_crds::budget::{Budget, Gate};
use agentrun_crds::conditions::{Reason, types};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::network;

/// Longest message of a condition, in characters.
const MAX_MESSAGE: usize = 1024;

/// Approvals that a message shows; a summary has up to 256 characters.
const MAX_SHOWN: usize = 3;

/// How a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub reason: Reason,
    pub message: String,
    phase: Phase,
    earlier: Option<EarlierRun>,
}

impl Ending {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let phase = match reason {
            Reason::Succeeded => Phase::Succeeded,
            Reason::Cancelled => Phase::Cancelled,
            _ => Phase::Failed,
        };
        Ending { reason, message: message.into(), phase, earlier: None }
    }

    /// As the earlier run of the same name and spec did.
    pub fn already_ran(phase: Phase, earlier: EarlierRun, message: impl Into<String>) -> Self {
        let phase = if phase.is_terminal() { phase } else { Phase::Failed };
        Ending { reason: Reason::AlreadyRan, message: message.into(), phase, earlier: Some(earlier) }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }
}

/// A status under construction.
pub struct Next {
    name: String,
    status: AgentRunStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Next {
    /// Begin from what stands.
    pub fn of(run: &AgentRun, now: Timestamp) -> Self {
        let mut status = run.status.clone().unwrap_or_default();
        status.observed_generation = run.metadata.generation;
        Next { name: run.metadata.name.clone().unwrap_or_default(), status, generation: run.metadata.generation, now }
    }

    pub fn done(self) -> AgentRunStatus {
        self.status
    }

    pub fn so_far(&self) -> &AgentRunStatus {
        &self.status
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

    /// Accepted, and waiting for its archive.
    pub fn awaiting_source(mut self, message: &str) -> Self {
        self.going_on(Phase::Pending, message);
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

    /// The runner has its tokens: the agent works, or waits for a person.
    pub fn running(mut self) -> Self {
        self.set(types::SANDBOX_READY, "True", "Running", "");
        self.set(types::EXCHANGED, "True", "Exchanged", "the runner holds this attempt's tokens");
        match self.awaited() {
            Some(message) => {
                self.set(types::AWAITING_APPROVAL, "True", "Pending", &message);
                self.going_on(Phase::AwaitingApproval, &message);
            }
            None => {
                self.nobody_awaited("Decided");
                self.going_on(Phase::Running, "the agent works");
            }
        }
        self
    }

    /// Whether the sandbox is closed, as its runner and the NetworkPolicies of others have it.
    pub fn network(mut self, opened_by: &[String]) -> Self {
        let enforcement = self.status.resolved.as_ref().map(|resolved| resolved.network_enforcement).unwrap_or_default();
        let probes = self.status.exchange.as_ref().map_or(&[][..], |exchange| &exchange.network);
        let (value, reason, message) = network::enforced(enforcement, probes, opened_by);
        self.set(types::NETWORK_ENFORCED, value, reason, &message);
        self
    }

    /// What people are asked, the oldest first; `None` if nothing.
    fn awaited(&self) -> Option<String> {
        let pending = || self.status.approvals.iter().filter(|approval| approval.state == ApprovalState::Pending);
        let first = pending().map(|approval| approval.id).min()?;
        let shown = pending().take(MAX_SHOWN).map(|approval| format!("{} ({}): {}", approval.id, approval.kind, approval.summary));
        let more = pending().count().saturating_sub(MAX_SHOWN);
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        let shown: Vec<String> = shown.collect();
        Some(format!(
            "a person has to decide on approval {}{more}; decide with: kubectl agentrun approve {} {first}",
            shown.join("; "),
            self.name
        ))
    }

    /// The condition stays False once it was True; a run that never asked has none.
    fn nobody_awaited(&mut self, reason: &str) {
        if self.status.conditions.iter().any(|condition| condition.type_ == types::AWAITING_APPROVAL) {
            self.set(types::AWAITING_APPROVAL, "False", reason, "");
        }
    }

    /// The run ends as soon as the gateways have given back what they hold in advance; nothing is admitted from here on.
    pub fn closing(mut self) -> Self {
        if let Some(budget) = self.status.budget.as_mut().filter(|budget| budget.gate == Gate::Open) {
            budget.gate = Gate::Closing;
        }
        self.set(types::BUDGET_AVAILABLE, "False", "Closing", "the run ends");
        self
    }

    /// Asked to end: authority is gone with this write, the Pod follows.
    pub fn cancelling(mut self) -> Self {
        self.close_budget();
        self.set(types::BUDGET_AVAILABLE, "False", "Closed", "the run is being cancelled");
        self.nobody_awaited("Cancelling");
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
        self.status.earlier.clone_from(&ending.earlier);
        if self.status.resolved.is_none() {
            self.set(types::ACCEPTED, "False", word, message);
        }
        if self.status.started_at.is_some() {
            self.set(types::BUDGET_AVAILABLE, "False", "Closed", "the run has ended");
            self.set(types::SANDBOX_READY, "False", word, "");
        }
        if ending.reason == Reason::NetworkNotEnforced {
            self.set(types::NETWORK_ENFORCED, "False", word, message);
        }
        self.nobody_awaited(word);
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

    /// Nothing follows from the last change of the spec.
    pub fn seen(mut self) -> Self {
        for condition in &mut self.status.conditions {
            condition.observed_generation = self.generation;
        }
        self
    }

    /// Drop a condition that no longer speaks of anything.
    pub fn cleanup_done(mut self) -> Self {
        self.remove(types::CLEANUP_FAILED);
        self
    }

    fn close_budget(&mut self) {
        if let Some(budget) = self.status.budget.as_mut().filter(|budget| budget.gate != Gate::Closed) {
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

/// Longest wait for gateways that hold slices of a budget that is to be closed; they may be dead.
const RETURN_PATIENCE: SignedDuration = SignedDuration::from_secs(2);

/// Until when the end of a run waits for slices that gateways hold in advance; `None`: it need not wait (any more). What has not
/// come back then is charged in full.
pub fn awaits_slices(status: &AgentRunStatus, now: Timestamp) -> Option<Timestamp> {
    let budget = status.budget.as_ref().filter(|budget| budget.gate != Gate::Closed && budget.has_slices())?;
    let since = match condition(status, types::BUDGET_AVAILABLE) {
        Some(closing) if budget.gate == Gate::Closing && closing.status == "False" => closing.last_transition_time.0,
        _ => now,
    };
    since.checked_add(RETURN_PATIENCE).ok().filter(|until| now < *until)
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
    fn people_are_awaited_and_then_no_more() {
        let ask = |id: i64, state: &str| {
            json!({"id": id, "digest": "00", "kind": "run_command", "summary": format!("cargo test {id}"), "state": state,
                "requestedAt": "2026-01-01T00:00:00Z", "expiresAt": "2026-01-01T00:30:00Z"})
        };
        let mut run = run();
        let mut awaiting = |approvals: serde_json::Value, second: i64| {
            let mut status = run.status.clone().unwrap_or_default();
            status.approvals = serde_json::from_value(approvals).unwrap();
            run.status = Some(status);
            let next = Next::of(&run, at(second)).running().done();
            run.status = Some(next.clone());
            let said = condition(&next, types::AWAITING_APPROVAL).cloned();
            (
                next.phase.unwrap(),
                said.map(|said| {
                    format!("{} {} at {}: {}", said.status, said.reason, said.last_transition_time.0.as_second(), said.message)
                }),
            )
        };
        assert_eq!(awaiting(json!([]), 1), (Phase::Running, None));
        let two = "a person has to decide on approval 1 (run_command): cargo test 1; 2 (run_command): cargo test 2; decide with: kubectl agentrun approve r 1";
        let both = json!([ask(1, "pending"), ask(2, "pending")]);
        assert_eq!(awaiting(both.clone(), 2), (Phase::AwaitingApproval, Some(format!("True Pending at 2: {two}"))));
        assert_eq!(awaiting(both, 3), (Phase::AwaitingApproval, Some(format!("True Pending at 2: {two}"))));
        let one = "a person has to decide on approval 2 (run_command): cargo test 2; decide with: kubectl agentrun approve r 2";
        let second = json!([ask(1, "denied"), ask(2, "pending")]);
        assert_eq!(awaiting(second, 4), (Phase::AwaitingApproval, Some(format!("True Pending at 2: {one}"))));
        assert_eq!(awaiting(json!([ask(1, "denied"), ask(2, "allowed")]), 5), (Phase::Running, Some("False Decided at 5: ".into())));
        let many: Vec<serde_json::Value> = (3..9).map(|id| ask(id, "pending")).collect();
        let (phase, said) = awaiting(json!(many), 6);
        assert_eq!(phase, Phase::AwaitingApproval);
        assert!(said.unwrap().ends_with("5 (run_command): cargo test 5; and 3 more; decide with: kubectl agentrun approve r 3"));
        for next in [Next::of(&run, at(7)).cancelling().done(), Next::of(&run, at(7)).ended(&Ending::new(Reason::Denied, "no")).done()] {
            assert_eq!(condition(&next, types::AWAITING_APPROVAL).unwrap().status, "False");
        }
    }

    #[test]
    fn the_end_waits_for_slices_but_not_for_ever() {
        let mut run = run();
        let mut status = Next::of(&run, at(1)).activated("00".into()).done();
        let budget = status.budget.as_mut().unwrap();
        budget.limit.requests = 100;
        let amount = Amount { requests: 9, ..Amount::default() };
        budget.reserve(Reservation { id: "a".into(), holder: "g".into(), amount, since: 1, slice: true }).unwrap();
        assert_eq!(awaits_slices(&status, at(5)), Some(at(7)));
        run.status = Some(status);
        let mut closing = Next::of(&run, at(5)).closing().done();
        assert_eq!((closing.budget.as_ref().unwrap().gate, closing.budget.as_ref().unwrap().spent.requests), (Gate::Closing, 0));
        assert_eq!(awaits_slices(&closing, at(6)), Some(at(7)), "from the moment when closing began");
        assert_eq!(awaits_slices(&closing, at(7)), None, "the holder may be dead");
        run.status = Some(closing.clone());
        let ended = Next::of(&run, at(7)).ended(&Ending::new(Reason::Succeeded, "done")).done();
        assert_eq!(ended.budget.unwrap().spent.requests, 9, "what has not come back counts as spent");
        closing.budget.as_mut().unwrap().reservations.clear();
        assert_eq!(awaits_slices(&closing, at(6)), None, "all is back");
    }

    #[test]
    fn the_end_charges_what_is_open() {
        let mut run = run();
        let mut status = Next::of(&run, at(1)).activated("00".into()).done();
        let budget = status.budget.as_mut().unwrap();
        budget.limit.requests = 10;
        let amount = Amount { requests: 1, input_tokens: 50, output_tokens: 20, cost_micros: 7_000 };
        budget.reserve(Reservation { id: "a".into(), holder: "g".into(), amount, since: 1, slice: false }).unwrap();
        run.status = Some(status);
        let ended = Next::of(&run, at(2)).ended(&Ending::new(Reason::DeadlineExceeded, "late")).done();
        let budget = ended.budget.unwrap();
        assert_eq!((budget.gate, budget.reservations.len(), budget.spent.input_tokens), (Gate::Closed, 0, 50));
        assert_eq!((ended.requests_text.as_deref(), ended.cost_text.as_deref()), (Some("1/10"), Some("0.007")));
    }
}
