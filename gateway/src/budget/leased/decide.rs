//! What a write makes of the budget that it finds. Pure.

use agentrun_crds::budget::{Budget, Gate};
use agentrun_crds::{AgentRun, AgentRunStatus};

use super::super::slice::{Renewal, Renewed, Slice, View};
use super::entry::Op;
use crate::auth::check_active;
use crate::runs;

/// Apply a batch to one version of the run's status. Pure: called again on the live object after a conflict.
pub(super) fn decide(
    view: &View,
    doubtful: &mut Vec<Slice>,
    ops: &[Op],
    run: &AgentRun,
    status: &mut AgentRunStatus,
    how: &Renewal<'_>,
) -> (Renewed, Budget) {
    let mut budget = status.budget.clone().unwrap_or_else(|| Budget { gate: Gate::Closed, ..Budget::default() });
    let mut asks = Vec::new();
    for op in ops {
        match op {
            Op::Reserve { claims, ask, .. } => asks.push((*ask, check_active(run, claims).is_ok())),
            Op::Charge { id } => drop(budget.settle(id, None, 1)),
            Op::Rest { .. } => {}
        }
    }
    let renewed = view.renew(doubtful, &mut budget, &asks, how);
    if status.budget.as_ref().is_some_and(|before| *before != budget) {
        status.requests_text = Some(budget.requests_text());
        status.cost_text = Some(budget.cost_text());
        status.budget = Some(budget.clone());
    }
    (renewed, budget)
}

/// Whether the run takes no more calls, or not for long.
pub(super) fn is_ending(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    run.spec.cancel
        || run.metadata.deletion_timestamp.is_some()
        || runs::is_terminal(run)
        || status.is_none_or(|status| status.result.is_some() || status.budget.as_ref().is_none_or(|budget| budget.gate != Gate::Open))
}

/// Whether another process waits for what is held in advance.
pub(super) fn is_wanted(run: &AgentRun, holder: &str) -> bool {
    let budget = run.status.as_ref().and_then(|status| status.budget.as_ref());
    budget.is_some_and(|budget| budget.reservations.iter().any(|r| r.is_request() && r.holder != holder))
}
