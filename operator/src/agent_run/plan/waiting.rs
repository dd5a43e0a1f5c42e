//! Before the start: accept or refuse, wait for a turn, then open the budget.

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run::GitSource;
use agentrun_crds::agent_run_status::Resolved;
use agentrun_crds::conditions::{Reason, types};
use jiff::{SignedDuration, Timestamp};

use super::super::objects::Owner;
use super::super::queue::{self, Decision, Peer};
use super::super::record;
use super::super::resolve::{self, NotAccepted};
use super::super::spec::{self, Refusal};
use super::super::status::{Ending, Next, condition};
use super::{Again, Plan, Waiting, Write, awaits_source, held, until};

/// How long a policy or provider may be missing: one apply may bring it after the run.
const GRACE: SignedDuration = SignedDuration::from_secs(10);
const PLATFORM_RETRY: std::time::Duration = std::time::Duration::from_secs(5);

pub fn plan(run: &AgentRun, facts: &Waiting, refused: Option<&str>, now: Timestamp) -> Plan {
    if let Some(why) = refused {
        return end(run, Reason::PodRejected, format!("the API server refused the ticket Secret: {why}"), now);
    }
    if run.spec.cancel {
        return end(run, Reason::Cancelled, "cancelled before it started".into(), now);
    }
    let frozen = run.status.as_ref().and_then(|status| status.resolved.clone());
    let resolved = match frozen {
        Some(resolved) => resolved,
        None if let Some(ending) = facts.record.as_ref().and_then(|record| record::already_ran(run, record)) => {
            return Plan::status(run, Next::of(run, now).ended(&ending).done(), Again::Never);
        }
        None => match accept(run, facts) {
            Ok(resolved) => resolved,
            Err(NotAccepted::Refused(refusal)) => return refuse(run, refusal, now),
            Err(NotAccepted::Missing(refusal)) => return missing(run, refusal, now),
        },
    };
    if awaits_source(run) {
        return source(run, &resolved, now);
    }
    let Some(platform) = &facts.platform else {
        let message = "waits for the gateway's Service and certificate in the operator's namespace";
        let next = Next::of(run, now).accepted(&resolved).queued(message).done();
        return Plan::status(run, next, Again::In(PLATFORM_RETRY));
    };
    let Some(policy) = &facts.policy else {
        let message = "the namespace's AgentPolicy default is gone; nothing starts without it";
        return Plan::status(run, Next::of(run, now).accepted(&resolved).queued(message).done(), Again::Slowly);
    };
    let limits = &policy.limits;
    let concurrent = limits.concurrent_runs.unwrap_or(resolve::DEFAULT_CONCURRENT_RUNS);
    let most_queued = limits.queued.unwrap_or(resolve::DEFAULT_QUEUED);
    let peers = facts.peers.as_deref().unwrap_or_default();
    match queue::decide(&Peer::from(run), peers, concurrent, most_queued) {
        Decision::Start if let Some(spent) = facts.policy_status.spent_now(policy, now) => {
            let (period, until_then) = (spent.period, spent.ends_at.0);
            let message = format!("waits until {until_then}: the namespace's budget for this {period} is spent (AgentPolicy budgets)");
            Plan::status(run, Next::of(run, now).accepted(&resolved).queued(&message).done(), until(now, until_then))
        }
        Decision::Start => start(run, &resolved, facts, platform.ca.clone(), now),
        Decision::Wait => {
            let message = format!("waits for its turn: at most {concurrent} runs of the namespace are active at once");
            Plan::status(run, Next::of(run, now).accepted(&resolved).queued(&message).done(), Again::Slowly)
        }
        Decision::Full => {
            let message = format!("{most_queued} runs of the namespace wait already; allowed: {most_queued} (AgentPolicy limits.queued)");
            end(run, Reason::QuotaExceeded, message, now)
        }
    }
}

fn accept(run: &AgentRun, facts: &Waiting) -> Result<Resolved, NotAccepted> {
    spec::check(&run.spec)?;
    let policy = facts.policy.as_ref().ok_or_else(|| {
        let message = "the namespace has no AgentPolicy named default; the platform team must create one".to_owned();
        NotAccepted::Missing(Refusal { reason: Reason::PolicyMissing, message })
    })?;
    resolve::resolve(&run.spec, policy, &facts.providers, facts.template.as_ref(), &facts.namespace)
}

/// A run without its source takes no place in the queue. Its upload may take as long as a sandbox may take to come up, counted
/// from the acceptance.
fn source(run: &AgentRun, resolved: &Resolved, now: Timestamp) -> Plan {
    let Owner { namespace, name, .. } = Owner::of(run);
    let next = Next::of(run, now).accepted(resolved);
    let since = condition(next.so_far(), types::ACCEPTED).map_or(now, |accepted| accepted.last_transition_time.0);
    let deadline = since.saturating_add(SignedDuration::from_secs(resolved.startup_deadline_seconds)).unwrap_or(now);
    if let Some(git) = &run.spec.source.git {
        return fetched(run, resolved, git, next, deadline, now);
    }
    let digest = run.spec.source.archive.as_ref().map_or("", |archive| archive.digest.as_str());
    let how = format!(
        "PUT the tar archive {digest} to /apis/run.agentrun.dev/v1alpha1/namespaces/{namespace}/agentruns/{name}/source, as \
         kubectl agentrun submit --dir does"
    );
    if now >= deadline {
        let message = format!("the source was not uploaded within {} s; {how}", resolved.startup_deadline_seconds);
        return end(run, Reason::SourceUnavailable, message, now);
    }
    let next = next.awaiting_source(&format!("waits {} s for its source: {how}", resolved.startup_deadline_seconds)).done();
    Plan::status(run, next, until(now, deadline))
}

/// The gateway fetches the commit, or says why it cannot.
fn fetched(run: &AgentRun, resolved: &Resolved, git: &GitSource, next: Next, deadline: Timestamp, now: Timestamp) -> Plan {
    if let Some(failure) = run.status.as_ref().and_then(|status| status.source_failure.as_ref()) {
        return end(run, Reason::SourceUnavailable, failure.message.clone(), now);
    }
    let what = format!("{} at {}", git.url, git.reference);
    if now >= deadline {
        let seconds = resolved.startup_deadline_seconds;
        let message = format!("the gateway did not fetch {what} within {seconds} s; look at its Pod and its log, then run again");
        return end(run, Reason::SourceUnavailable, message, now);
    }
    let next = next.awaiting_source(&format!("the gateway fetches {what}")).done();
    Plan::status(run, next, until(now, deadline))
}

/// From here on something has to be cleaned up, so our hold comes first. Then the ticket: a crash before the status leaves a
/// Secret that nobody's status knows, and the next start replaces it.
fn start(run: &AgentRun, resolved: &Resolved, facts: &Waiting, ca: String, now: Timestamp) -> Plan {
    let next = Next::of(run, now).accepted(resolved).activated(facts.ticket.sha256()).done();
    let mut writes = Vec::new();
    if !held(run) {
        writes.push(Write::AddFinalizer);
    }
    writes.extend([Write::CreateTicket { ticket: facts.ticket.clone(), ca }, Write::Status(Box::new(next))]);
    Plan::write(writes)
}

/// Wait a bounded time, counted from when we first said so, then refuse.
fn missing(run: &AgentRun, refusal: Refusal, now: Timestamp) -> Plan {
    let since = run
        .status
        .as_ref()
        .and_then(|status| condition(status, types::ACCEPTED))
        .filter(|accepted| accepted.status == "Unknown")
        .map_or(now, |accepted| accepted.last_transition_time.0);
    let deadline = since.saturating_add(GRACE).unwrap_or(now);
    if now >= deadline {
        return refuse(run, refusal, now);
    }
    let reason = if refusal.reason == Reason::PolicyMissing { "WaitingForPolicy" } else { "WaitingForProvider" };
    Plan::status(run, Next::of(run, now).pending(reason, &refusal.message).done(), until(now, deadline))
}

fn refuse(run: &AgentRun, refusal: Refusal, now: Timestamp) -> Plan {
    end(run, refusal.reason, refusal.message, now)
}

fn end(run: &AgentRun, reason: Reason, message: String, now: Timestamp) -> Plan {
    Plan::status(run, Next::of(run, now).ended(&Ending::new(reason, message)).done(), Again::Slowly)
}
