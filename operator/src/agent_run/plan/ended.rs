//! After the end, or on deletion: the Pod goes first, then its record is kept, the ticket goes, the NetworkPolicy last, and then
//! our hold on the run.

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::AgentRunStatus;
use agentrun_crds::conditions::{Reason, types};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::super::objects::pod::GRACE_SECONDS;
use super::super::record;
use super::super::status::{Ending, Next, condition};
use super::{Again, Plan, Seen, Write, held, push_status, started, until};

/// How long a kubelet may stay silent after the grace period of a deleted Pod.
pub const STOP_PATIENCE: SignedDuration = SignedDuration::from_secs(15);
/// How long removing children may fail (`CleanupFailed`) before we let the run go and leave them to the garbage collector.
const CLEANUP_PATIENCE: SignedDuration = SignedDuration::from_secs(300);
/// How long the API server may keep a Pod that was removed by force.
const FORCE_PATIENCE: SignedDuration = SignedDuration::from_secs(30);
const FORCE_RETRY: std::time::Duration = std::time::Duration::from_secs(5);
/// A sleep that is longer than this is taken in pieces.
const LONGEST_SLEEP: std::time::Duration = std::time::Duration::from_secs(3600);

pub fn plan(run: &AgentRun, pod: &Seen<Box<Pod>>, now: Timestamp) -> Plan {
    let status = run.status.clone().unwrap_or_default();
    let terminal = status.phase.is_some_and(|phase| phase.is_terminal());
    if !terminal && held(run) && status.started_at.is_some() {
        if let Some(wait) = started::slices_first(run, now) {
            return wait;
        }
        // Deleted while it worked: authority goes with this write, and whoever watches learns of the end.
        let ending = Ending::new(Reason::Cancelled, "the AgentRun was deleted");
        return Plan::status(run, Next::of(run, now).ended(&ending).done(), Again::Slowly);
    }
    if held(run) && stands_since(&status, types::CLEANUP_FAILED, "True", CLEANUP_PATIENCE, now) == Some(true) {
        return Plan::write(vec![Write::RemoveFinalizer]);
    }
    match pod {
        Seen::Ours(pod) => match stop(pod, now) {
            Stop::Delete(write) => Plan::write(vec![write]),
            Stop::Wait(again) => Plan::rest(again),
            Stop::Silent(force) => {
                let mut writes = Vec::new();
                push_status(&mut writes, run, Next::of(run, now).sandbox_gone(false).done());
                if pod.metadata.deletion_grace_period_seconds != Some(0) {
                    writes.push(force);
                }
                let forced = stands_since(&status, types::SANDBOX_GONE, "Unknown", FORCE_PATIENCE, now);
                match (writes.is_empty(), forced) {
                    (false, _) => Plan::write(writes),
                    // Somebody's finalizer holds the Pod; it must not hold the run.
                    (true, Some(true)) if held(run) => release(run, now),
                    (true, Some(true)) => retention(run, now),
                    (true, _) => Plan::rest(Again::In(FORCE_RETRY)),
                }
            }
        },
        Seen::Absent | Seen::Foreign if held(run) => release(run, now),
        Seen::Absent | Seen::Foreign => retention(run, now),
    }
}

/// The Pod is gone.
fn release(run: &AgentRun, now: Timestamp) -> Plan {
    let status = run.status.clone().unwrap_or_default();
    let unknown = condition(&status, types::SANDBOX_GONE).is_some_and(|gone| gone.status == "Unknown");
    if status.pod_ref.is_some() && !unknown {
        let mut writes = Vec::new();
        push_status(&mut writes, run, Next::of(run, now).sandbox_gone(true).done());
        if !writes.is_empty() {
            return Plan::write(writes);
        }
    }
    let mut writes = Vec::new();
    writes.extend(record::of(run).map(|record| Write::KeepRecord(Box::new(record))));
    if condition(&status, types::EXCHANGED).is_none_or(|exchanged| exchanged.status != "True") {
        writes.push(Write::DeleteTicket);
    }
    writes.push(Write::DeletePolicy);
    if condition(&status, types::CLEANUP_FAILED).is_some() {
        // What failed has worked now; the next round lets go.
        push_status(&mut writes, run, Next::of(run, now).cleanup_done().done());
    } else {
        writes.push(Write::RemoveFinalizer);
    }
    Plan::write(writes)
}

/// Delete the run itself, where it says when. One that had run before stays: whoever created it again would do so again.
fn retention(run: &AgentRun, now: Timestamp) -> Plan {
    let deleted = run.metadata.deletion_timestamp.is_some();
    let seen = run.status.as_ref().and_then(|status| status.observed_generation) == run.metadata.generation;
    if run.status.is_some() && !seen && !deleted {
        // Its time to live was changed; whoever waits for the change to be seen goes by this number.
        return Plan::status(run, Next::of(run, now).seen().done(), Again::Slowly);
    }
    let complete = run.status.as_ref().and_then(|status| condition(status, types::COMPLETE));
    if complete.is_some_and(|complete| complete.reason == Reason::AlreadyRan.as_str()) {
        return Plan::rest(Again::Never);
    }
    let finished = run.status.as_ref().and_then(|status| status.finished_at.as_ref());
    let (Some(ttl), Some(finished), None) = (run.spec.ttl_seconds_after_finished, finished, &run.metadata.deletion_timestamp) else {
        return Plan::rest(Again::Never);
    };
    let due = finished.0.saturating_add(SignedDuration::from_secs(ttl.max(0))).unwrap_or(Timestamp::MAX);
    if now >= due {
        return Plan::write(vec![Write::DeleteRun]);
    }
    match until(now, due) {
        Again::In(rest) => Plan::rest(Again::In(rest.min(LONGEST_SLEEP))),
        again => Plan::rest(again),
    }
}

/// Whether a condition has stood at this value for so long; `None` if it does not stand so.
fn stands_since(status: &AgentRunStatus, kind: &str, value: &str, patience: SignedDuration, now: Timestamp) -> Option<bool> {
    let found = condition(status, kind).filter(|condition| condition.status == value)?;
    Some(found.last_transition_time.0.checked_add(patience).is_ok_and(|limit| now >= limit))
}

/// What it takes to get rid of a Pod.
pub enum Stop {
    Delete(Write),
    Wait(Again),
    /// Its node does not answer; the object can be removed by force.
    Silent(Write),
}

/// Delete a Pod, wait for its kubelet, and know when to stop waiting. The deletion time includes the grace period.
pub fn stop(pod: &Pod, now: Timestamp) -> Stop {
    let delete = |force| Write::DeletePod {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        force,
    };
    let Some(deleted) = &pod.metadata.deletion_timestamp else { return Stop::Delete(delete(false)) };
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(GRACE_SECONDS));
    let limit = deleted.0.saturating_add(STOP_PATIENCE).unwrap_or(now);
    // Somebody may have asked for a longer grace than ours; ours counts.
    let ours =
        deleted.0.saturating_sub(grace).and_then(|asked| asked.saturating_add(SignedDuration::from_secs(GRACE_SECONDS) + STOP_PATIENCE));
    let limit = ours.map_or(limit, |ours| ours.min(limit));
    if now >= limit { Stop::Silent(delete(true)) } else { Stop::Wait(until(now, limit)) }
}
