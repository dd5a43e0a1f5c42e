//! From the open budget to the end: make the sandbox, watch it, and say once how the run ended.

use agentrun_crds::agent_run_status::{AgentRunStatus, Resolved};
use agentrun_crds::budget::{Amount, Gate};
use agentrun_crds::conditions::{Reason, types};
use agentrun_crds::network_probe::NetworkEnforcement;
use agentrun_crds::{AgentRun, names};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::super::network;
use super::super::objects::{Owner, SANDBOX, labels, pod as builder};
use super::super::sandbox::{self, Sandbox};
use super::super::status::{Ending, Next, awaits_slices, condition};
use super::ended::{self, STOP_PATIENCE};
use super::{Again, Fence, Making, Plan, Seen, Write, attempt, held, push_status, until};

const SOON: std::time::Duration = std::time::Duration::from_secs(1);
const RETRY: std::time::Duration = std::time::Duration::from_secs(5);

pub fn plan(run: &AgentRun, pod: &Seen<Box<Pod>>, fence: &Fence, making: Option<&Making>, refused: Option<&str>, now: Timestamp) -> Plan {
    let Some(status) = &run.status else { return Plan::rest(Again::Slowly) };
    let Some(resolved) = &status.resolved else { return end(run, &broken("resolved"), now) };
    if !held(run) && run.metadata.deletion_timestamp.is_none() {
        // Somebody took our hold away; without it nothing would see to the NetworkPolicy in the end.
        return Plan::write(vec![Write::AddFinalizer]);
    }
    let times = Times::of(status, resolved, now);
    let cancelling = cancelling(run, status);
    if let Some(ending) = decided(status, cancelling, pod, &times, now) {
        return end(run, &ending, now);
    }
    if status.result.is_some() && !cancelling {
        return Plan::rest(Again::In(SOON)); // the Pod will say more about why its executor was lost
    }
    if run.spec.cancel {
        return cancel(run, status, pod, now);
    }
    match pod {
        Seen::Ours(pod) if status.pod_ref.is_none() => {
            let (name, uid) = identity(pod);
            Plan::status(run, Next::of(run, now).pod(name, uid).done(), Again::Slowly)
        }
        Seen::Ours(pod) if status.pod_ref.as_ref().is_some_and(|recorded| recorded.uid == identity(pod).1) => {
            if let Some(plan) = over(run, pod, &times, now) {
                return plan;
            }
            let opened_by = match fenced(run, resolved, pod, fence, refused, now) {
                Ok(opened_by) => opened_by,
                Err(plan) => return *plan,
            };
            watch(run, status, pod, &opened_by, &times, now)
        }
        _ if status.pod_ref.is_some() => {
            let message = "the sandbox's Pod is gone; what it did is not repeated: create a new AgentRun to run again";
            end(run, &Ending::new(Reason::SandboxLost, message), now)
        }
        Seen::Foreign => {
            let name = Owner::of(run).child_name(attempt(run));
            let message = format!("a Pod {name} that this run does not own stands in its place and is left alone; delete it and run again");
            end(run, &Ending::new(Reason::PodRejected, message), now)
        }
        _ => make(run, resolved, fence, making, refused, &times, now),
    }
}

fn broken(field: &str) -> Ending {
    Ending::new(Reason::PodRejected, format!("status.{field} is missing although the run was started; somebody else wrote its status"))
}

/// The moments that count.
struct Times {
    /// When the sandbox must have asked for its tokens.
    startup: Timestamp,
    /// When the wall time is over, pauses included; only once it runs.
    wall: Option<Timestamp>,
}

impl Times {
    fn of(status: &AgentRunStatus, resolved: &Resolved, now: Timestamp) -> Self {
        let after = |from: Timestamp, seconds: i64| from.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        let started = status.started_at.as_ref().map_or(Timestamp::MIN, |time| time.0);
        Times {
            startup: after(started, resolved.startup_deadline_seconds),
            wall: status
                .deadline(now.as_second())
                .filter(|_| status.exchange.as_ref().map(|exchange| exchange.attempt) == status.attempt)
                .map(|end| Timestamp::from_second(end).unwrap_or(Timestamp::MAX)),
        }
    }
}

/// A cancellation that has already closed the budget: what comes later does not count.
fn cancelling(run: &AgentRun, status: &AgentRunStatus) -> bool {
    run.spec.cancel && status.budget.as_ref().is_some_and(|budget| budget.gate == Gate::Closed)
}

/// An end that status alone decides.
fn decided(status: &AgentRunStatus, cancelling: bool, pod: &Seen<Box<Pod>>, times: &Times, now: Timestamp) -> Option<Ending> {
    if status.exchange.as_ref().is_some_and(|exchange| exchange.compromised) {
        let message = "a second holder presented this run's ticket and Pod token; treat what the sandbox could see as known to others";
        return Some(Ending::new(Reason::Compromised, message));
    }
    let overrun = status.budget.as_ref().and_then(|budget| budget.overrun).filter(|overrun| *overrun != Amount::default());
    if let Some(over) = overrun {
        let message = format!(
            "the provider reported more than was reserved: {} requests, {} input tokens, {} output tokens, {} millionths of cost beyond; \
             the budget is closed",
            over.requests, over.input_tokens, over.output_tokens, over.cost_micros
        );
        return Some(Ending::new(Reason::BudgetExhausted, message));
    }
    if cancelling {
        return None;
    }
    let result = status.result.as_ref().filter(|result| Some(result.attempt) == status.attempt)?;
    let reason = Reason::ALL.iter().find(|reason| reason.as_str() == result.verdict).copied();
    match reason {
        // The kubelet may know better why the executor went; it says so within moments, and the wall time bounds the wait.
        Some(Reason::SandboxLost) => match pod {
            Seen::Ours(pod) if times.wall.is_some_and(|wall| now < wall) => match sandbox::read(pod) {
                Sandbox::Ended(why @ (Reason::OutOfMemory | Reason::Evicted | Reason::WorkspaceFull), message) => {
                    Some(Ending::new(why, message))
                }
                Sandbox::Ended(..) => Some(Ending::new(Reason::SandboxLost, result.message.clone())),
                _ => None,
            },
            _ => Some(Ending::new(Reason::SandboxLost, result.message.clone())),
        },
        Some(reason) => Some(Ending::new(reason, result.message.clone())),
        None => Some(Ending::new(Reason::ResultInvalid, format!("the gateway's verdict {:?} is not known here", result.verdict))),
    }
}

fn end(run: &AgentRun, ending: &Ending, now: Timestamp) -> Plan {
    if let Some(wait) = slices_first(run, now) {
        return wait;
    }
    Plan::status(run, Next::of(run, now).ended(ending).done(), Again::Slowly)
}

/// Before a budget is closed, gateways give back what they hold in advance, so that what is spent is exact at the end.
pub fn slices_first(run: &AgentRun, now: Timestamp) -> Option<Plan> {
    let until_then = awaits_slices(run.status.as_ref()?, now)?;
    Some(Plan::status(run, Next::of(run, now).closing().done(), until(now, until_then)))
}

fn identity(pod: &Pod) -> (&str, &str) {
    (pod.metadata.name.as_deref().unwrap_or_default(), pod.metadata.uid.as_deref().unwrap_or_default())
}

/// Authority first, then the Pod; the run ends when the Pod has, or when its node no longer answers.
fn cancel(run: &AgentRun, status: &AgentRunStatus, pod: &Seen<Box<Pod>>, now: Timestamp) -> Plan {
    if !cancelling(run, status) {
        return slices_first(run, now).unwrap_or_else(|| Plan::status(run, Next::of(run, now).cancelling().done(), Again::Slowly));
    }
    let cancelled = Ending::new(Reason::Cancelled, "cancelled on request");
    match pod {
        Seen::Ours(pod) => match ended::stop(pod, now) {
            ended::Stop::Delete(write) => Plan::write(vec![write]),
            ended::Stop::Wait(again) => Plan::rest(again),
            ended::Stop::Silent(_) => Plan::status(run, Next::of(run, now).ended(&cancelled).sandbox_gone(false).done(), Again::Slowly),
        },
        Seen::Absent | Seen::Foreign => end(run, &cancelled, now),
    }
}

/// The NetworkPolicies around a sandbox that is there: who opens it, where the policy accepts that, else what is to be done.
fn fenced(
    run: &AgentRun,
    resolved: &Resolved,
    pod: &Pod,
    fence: &Fence,
    refused: Option<&str>,
    now: Timestamp,
) -> Result<Vec<String>, Box<Plan>> {
    let (owner, attempt) = (Owner::of(run), attempt(run));
    if let Some(why) = refused {
        let message = format!("the sandbox's NetworkPolicies cannot be put back: {why}");
        return Err(Box::new(end(run, &Ending::new(Reason::NetworkNotEnforced, message), now)));
    }
    let repairs = fence.repairs(&owner, attempt);
    if !repairs.is_empty() {
        return Err(Box::new(Plan::write(repairs)));
    }
    let opened_by = fence.opened_by(&owner, attempt, pod.metadata.labels.as_ref().unwrap_or(&labels(&owner.uid)));
    match tolerated(resolved, &opened_by) {
        Ok(()) => Ok(opened_by),
        Err(ending) => Err(Box::new(end(run, &ending, now))),
    }
}

/// Whether the policy lets a run go on whose sandbox somebody's NetworkPolicies open.
fn tolerated(resolved: &Resolved, opened_by: &[String]) -> Result<(), Ending> {
    if opened_by.is_empty() || resolved.network_enforcement == NetworkEnforcement::NotRequired {
        return Ok(());
    }
    let message = format!(
        "{}; delete it or have it leave out Pods with the label {}={SANDBOX}, or accept this by sandbox.networkEnforcement in the \
         AgentPolicy",
        network::opened(opened_by),
        names::LABEL_COMPONENT,
    );
    Err(Ending::new(Reason::NetworkNotEnforced, message))
}

/// What is to be done where the recorded Pod works no more, or must not.
fn over(run: &AgentRun, pod: &Pod, times: &Times, now: Timestamp) -> Option<Plan> {
    if let Some(wall) = times.wall.filter(|wall| now >= *wall) {
        let message = format!("the wall time passed at {wall}; raise spec.limits.wallTime or give the agent less to do");
        return Some(end(run, &Ending::new(Reason::DeadlineExceeded, message), now));
    }
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        // Somebody else deleted it. It may still hand in its result while it stops.
        let patience = deleted.0.saturating_add(STOP_PATIENCE).unwrap_or(now);
        let ended = matches!(sandbox::read(pod), Sandbox::Ended(..));
        if ended || now >= patience {
            let message = "somebody deleted the sandbox's Pod; what it did is not repeated: create a new AgentRun to run again";
            return Some(end(run, &Ending::new(Reason::SandboxLost, message), now));
        }
        return Some(Plan::rest(until(now, patience)));
    }
    match sandbox::read(pod) {
        Sandbox::Ended(reason, message) => Some(end(run, &Ending::new(reason, message), now)),
        _ => None,
    }
}

/// The Pod exists and is recorded, and has not ended.
fn watch(run: &AgentRun, status: &AgentRunStatus, pod: &Pod, opened_by: &[String], times: &Times, now: Timestamp) -> Plan {
    if let Some(wall) = times.wall {
        let mut writes = Vec::new();
        if condition(status, types::EXCHANGED).is_none_or(|exchanged| exchanged.status != "True") {
            writes.push(Write::DeleteTicket);
        }
        push_status(&mut writes, run, Next::of(run, now).network(opened_by).running().done());
        return Plan { writes, again: until(now, wall) };
    }
    let (reason, message, fails_at) = match sandbox::read(pod) {
        Sandbox::Coming { reason, message, fails_at } => (reason, message, fails_at),
        _ => (Reason::StartupDeadlineExceeded, "the runner has started and asks the gateway for its tokens".to_owned(), None),
    };
    let deadline = fails_at.map_or(times.startup, |at| at.min(times.startup));
    if now >= deadline {
        let message = format!("the sandbox did not come up in time: {message}");
        return end(run, &Ending::new(reason, message), now);
    }
    Plan::status(run, Next::of(run, now).starting(&message).done(), until(now, deadline))
}

/// What a refusal waits for. A quota of the namespace may free itself, and an API server that was started a moment ago, or to which
/// the AgentPolicy is new, learns of it; any other refusal will not change.
fn passing(why: &str) -> Option<&'static str> {
    let policy = "the API server to know the namespace's AgentPolicy";
    let known = [("exceeded quota", "the namespace's quota"), ("no params found", policy), ("not yet synced", policy)];
    known.into_iter().find(|(part, _)| why.contains(part)).map(|(_, awaited)| awaited)
}

/// Account and policies first, read back; then the Pod.
fn make(
    run: &AgentRun,
    resolved: &Resolved,
    fence: &Fence,
    making: Option<&Making>,
    refused: Option<&str>,
    times: &Times,
    now: Timestamp,
) -> Plan {
    if let Some(why) = refused {
        let Some(awaited) = passing(why).filter(|_| now < times.startup) else {
            return end(run, &Ending::new(Reason::PodRejected, format!("the API server refused the sandbox: {why}")), now);
        };
        let message = format!("waits for {awaited}: {why}");
        return Plan::status(run, Next::of(run, now).starting(&message).done(), Again::In(RETRY));
    }
    if now >= times.startup {
        let said = run.status.as_ref().and_then(|status| condition(status, types::SANDBOX_READY)).map_or("", |ready| &ready.message);
        let message =
            format!("the sandbox's Pod could not be created in time: {}", if said.is_empty() { "no attempt was answered" } else { said });
        return end(run, &Ending::new(Reason::StartupDeadlineExceeded, message), now);
    }
    // Without facts (from the cache) there is nothing to decide but that one must look.
    let Some(making) = making else { return Plan::write(vec![Write::CreateAccount]) };
    let Some(gateway) = &fence.gateway else { return Plan::rest(Again::In(RETRY)) };
    let owner = Owner::of(run);
    let attempt = attempt(run);
    if fence.taken(&owner, attempt) {
        let message = format!(
            "a NetworkPolicy {} that this run does not own stands in its place and is left alone; delete it and run again",
            owner.child_name(attempt)
        );
        return end(run, &Ending::new(Reason::PodRejected, message), now);
    }
    if let Err(ending) = tolerated(resolved, &fence.opened_by(&owner, attempt, &labels(&owner.uid))) {
        return end(run, &ending, now);
    }
    let mut writes = if making.account { Vec::new() } else { vec![Write::CreateAccount] };
    writes.extend(fence.repairs(&owner, attempt));
    if writes.is_empty() {
        let pod = builder::pod(&owner, attempt, resolved, gateway, &making.image, &making.probed);
        writes.push(Write::CreatePod(Box::new(pod)));
    }
    Plan::write(writes)
}
