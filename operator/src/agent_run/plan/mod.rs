//! What to do next for a run: `(run, what was observed, now) → writes and when to look again`. Pure. Each plan is decided
//! from the world as it stands, so a process that dies after any write, or a write that fails, changes nothing about how the
//! next plan comes out.

mod ended;
mod fence;
mod started;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use agentrun_crds::AgentTemplateSpec;
use agentrun_crds::agent_policy::AgentPolicySpec;
use agentrun_crds::agent_run_record::{AgentRunRecord, AgentRunRecordSpec};
use agentrun_crds::agent_run_status::AgentRunStatus;
use agentrun_crds::model_provider::ModelProviderSpec;
use agentrun_crds::{AgentPolicyStatus, AgentRun, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::objects::Owner;
use super::objects::network_policy::Gateway;
use super::objects::pod::RunnerImage;
use super::objects::probed::Probed;
use super::objects::ticket::Ticket;
use super::queue::Peer;
pub use fence::Fence;

/// The part of its life that a run is in; it decides what has to be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not started: to be accepted, queued and started.
    Waiting,
    /// Has an attempt and an open budget.
    Started,
    /// Terminal, or being deleted: children have to go.
    Ended,
}

/// The stage of a run.
pub fn stage(run: &AgentRun) -> Stage {
    let status = run.status.as_ref();
    let terminal = status.and_then(|status| status.phase).is_some_and(|phase| phase.is_terminal());
    let started = status.is_some_and(|status| status.started_at.is_some());
    match (run.metadata.deletion_timestamp.is_some(), terminal, started) {
        (true, _, _) | (_, true, _) => Stage::Ended,
        (_, _, true) => Stage::Started,
        _ => Stage::Waiting,
    }
}

/// The attempt that a run's children belong to.
pub fn attempt(run: &AgentRun) -> i64 {
    run.status.as_ref().and_then(|status| status.attempt).unwrap_or(1)
}

/// Whether the run's archive has still to be uploaded, or its commit to be fetched.
pub fn awaits_source(run: &AgentRun) -> bool {
    run.spec.source.comes_later() && run.status.as_ref().is_none_or(|status| status.source.is_none())
}

/// Whether our finalizer stands on the run.
pub fn held(run: &AgentRun) -> bool {
    run.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::FINALIZER)
}

/// A child by its name.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Seen<T> {
    #[default]
    Absent,
    /// Controlled by this run.
    Ours(T),
    /// Of the same name, but not controlled by this run: left alone.
    Foreign,
}

/// What was observed, for each stage.
#[derive(Clone, Debug)]
pub enum Facts {
    Waiting(Box<Waiting>),
    Started { pod: Seen<Box<Pod>>, fence: Fence, making: Option<Box<Making>> },
    Ended { pod: Seen<Box<Pod>> },
}

/// What a decision to accept and start rests on.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The namespace's AgentPolicy `default`.
    pub policy: Option<AgentPolicySpec>,
    /// What stands in its status.
    pub policy_status: AgentPolicyStatus,
    /// Those that exist of the providers that the policy names for the run's model, by name.
    pub providers: BTreeMap<String, ModelProviderSpec>,
    /// The template of the harness that the run names.
    pub template: Option<AgentTemplateSpec>,
    /// What is left of an earlier run of this name.
    pub record: Option<AgentRunRecordSpec>,
    /// Labels of the run's namespace.
    pub namespace: std::collections::BTreeMap<String, String>,
    /// Absent while the platform is being installed.
    pub platform: Option<Platform>,
    /// Every run of the namespace, read while nobody else could start one; absent where it was not needed.
    pub peers: Option<Vec<Peer>>,
    /// For this run, should it start.
    pub ticket: Ticket,
}

/// What a sandbox needs to know of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    pub gateway: Gateway,
    /// PEM certificates that the runner trusts.
    pub ca: String,
}

/// What the Pod is made of, and whether its account stands, as read back.
#[derive(Clone, Debug)]
pub struct Making {
    pub image: RunnerImage,
    pub probed: Probed,
    pub account: bool,
}

/// One write. `apply` does them in order and stops at the first that does not go through.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    AddFinalizer,
    RemoveFinalizer,
    Status(Box<AgentRunStatus>),
    CreateTicket {
        ticket: Ticket,
        ca: String,
    },
    CreateAccount,
    CreatePolicy(Box<NetworkPolicy>),
    /// Bring a policy back to what it should say.
    RestorePolicy {
        found: Box<NetworkPolicy>,
        wanted: Box<NetworkPolicy>,
    },
    CreatePod(Box<Pod>),
    /// With `force`, the object goes without the kubelet's word.
    DeletePod {
        name: String,
        uid: String,
        force: bool,
    },
    DeleteTicket,
    DeletePolicy,
    /// Create the record of a finished run, or replace that of an earlier one.
    KeepRecord(Box<AgentRunRecord>),
    DeleteRun,
}

/// When to look again if nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At a moment that matters.
    In(Duration),
    /// As a safety net.
    Slowly,
    /// Nothing is left to do.
    Never,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub writes: Vec<Write>,
    pub again: Again,
}

impl Plan {
    fn rest(again: Again) -> Self {
        Plan { writes: Vec::new(), again }
    }

    fn write(writes: Vec<Write>) -> Self {
        Plan { writes, again: Again::Slowly }
    }

    /// A status, written only if it differs.
    fn status(run: &AgentRun, next: AgentRunStatus, again: Again) -> Self {
        let mut writes = Vec::new();
        push_status(&mut writes, run, next);
        Plan { writes, again }
    }
}

fn push_status(writes: &mut Vec<Write>, run: &AgentRun, next: AgentRunStatus) {
    if run.status.as_ref() != Some(&next) {
        writes.push(Write::Status(Box::new(next)));
    }
}

/// Until then; at least a moment, so that a clock that stands still makes no loop.
fn until(now: Timestamp, then: Timestamp) -> Again {
    let rest = Duration::try_from(then.duration_since(now)).unwrap_or_default();
    Again::In(rest.max(Duration::from_millis(100)))
}

/// Decide. `refused` is what the API server said to a child's creation in this reconcile.
pub fn plan(run: &AgentRun, facts: &Facts, refused: Option<&str>, now: Timestamp) -> Plan {
    match facts {
        Facts::Waiting(facts) => waiting::plan(run, facts, refused, now),
        Facts::Started { pod, fence, making } => started::plan(run, pod, fence, making.as_deref(), refused, now),
        Facts::Ended { pod } => ended::plan(run, pod, now),
    }
}

/// A child by name: ours, somebody's, or none.
pub fn seen<T: kube::Resource>(owner: &Owner, found: Option<T>) -> Seen<Box<T>> {
    match found {
        None => Seen::Absent,
        Some(child) if owner.controls(child.meta()) => Seen::Ours(Box::new(child)),
        Some(_) => Seen::Foreign,
    }
}

#[cfg(test)]
mod tests;
