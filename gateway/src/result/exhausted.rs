//! What a run is told that ended since a budget is spent: its own, or its namespace's. Pure.

use agentrun_crds::agent_policy_status::PeriodStatus;
use agentrun_crds::{AgentPolicy, AgentRun};
use jiff::Timestamp;

use crate::policies;

/// The budgets of the run's namespace, all its periods together.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NamespaceBudget {
    Unlimited,
    /// Something is left, though maybe too little for a call.
    Open,
    Spent(Box<PeriodStatus>),
}

impl NamespaceBudget {
    pub(super) fn of(policy: Option<&AgentPolicy>, now: Timestamp) -> Self {
        let Some(policy) = policy.filter(|policy| !policy.spec.budgets.is_empty()) else { return NamespaceBudget::Unlimited };
        let spent = policy.status.as_ref().and_then(|status| status.spent_now(&policy.spec, now));
        spent.map_or(NamespaceBudget::Open, |spent| NamespaceBudget::Spent(Box::new(spent)))
    }
}

/// The sandbox's word about the budget counts for the outcome; what is really spent is ours to say.
pub(super) fn of_run(run: &AgentRun, of_namespace: &NamespaceBudget) -> String {
    let Some(budget) = run.status.as_ref().and_then(|status| status.budget.as_ref()) else {
        return "The sandbox says that the budget is spent.".into();
    };
    let what_next = match of_namespace {
        NamespaceBudget::Unlimited => "Raise spec.limits.budget, or give a smaller task.",
        _ => {
            "Raise spec.limits.budget, or give a smaller task; if it was the namespace's budget that had too little left, run it again in its next period (kubectl agentrun usage shows both)."
        }
    };
    format!(
        "The sandbox ended because the model budget left no room for its next call ({} of {} requests, {} input and {} output tokens spent). {what_next}",
        budget.spent.requests, budget.limit.requests, budget.spent.input_tokens, budget.spent.output_tokens
    )
}

pub(super) fn of_namespace(spent: &PeriodStatus) -> String {
    format!(
        "All runs of the namespace together have spent its budget for this {} ({}). Run it again from {} on, or have the platform team raise spec.budgets of the AgentPolicy.",
        spent.period,
        policies::shares(spent),
        spent.ends_at.0
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_limit_below_what_is_spent_counts_at_once() {
        let policy = |requests: i64| -> AgentPolicy {
            serde_json::from_value(json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "default", "namespace": "team"},
                "spec": {"models": [], "images": [], "budgets": [{"period": "Day", "limit": {"requests": requests}}]},
                "status": {"budgets": [{"period": "Day", "startsAt": "2026-11-30T00:00:00Z", "endsAt": "2026-12-01T00:00:00Z",
                    "limit": {"requests": 100}, "spent": {"requests": 7}}]},
            }))
            .expect("a policy")
        };
        let now = "2026-11-30T12:00:00Z".parse().expect("a time");
        assert_eq!(NamespaceBudget::of(Some(&policy(100)), now), NamespaceBudget::Open);
        assert_eq!(NamespaceBudget::of(None, now), NamespaceBudget::Unlimited);
        let NamespaceBudget::Spent(spent) = NamespaceBudget::of(Some(&policy(5)), now) else { panic!("7 of 5 are spent") };
        let message = of_namespace(&spent);
        assert!(message.contains("for this day (7 of 5 requests). Run it again from 2026-12-01T00:00:00Z on"), "{message}");
    }
}
