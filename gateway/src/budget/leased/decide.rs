//! What a write makes of the budget that it finds. Pure.

use agentrun_crds::budget::Budget;

use super::super::NotAdmitted;
use super::super::accounts::{Decided, Honours};
use super::super::slice::{Renewal, Renewed, Slice, View};
use super::entry::Op;

/// Apply a batch to one version of the budget: called again on the live object after a conflict.
pub(super) fn decide(
    view: &View,
    doubtful: &mut Vec<Slice>,
    ops: &[Op],
    budget: &mut Budget,
    honours: Honours<'_>,
    how: &Renewal<'_>,
) -> Decided<(Renewed, Budget)> {
    let mut asks = Vec::new();
    for op in ops {
        match op {
            Op::Reserve { claims, ask, .. } => asks.push((*ask, honours(claims.as_ref()))),
            Op::Charge { id } => drop(budget.settle(id, None, 1)),
            Op::Rest { .. } => {}
        }
    }
    let renewed = view.renew(doubtful, budget, &asks, how);
    let refused = renewed.answers.iter().any(|answer| matches!(answer, Err(NotAdmitted::Exhausted(_))));
    Decided { value: (renewed, budget.clone()), refused }
}
