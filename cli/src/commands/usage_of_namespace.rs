//! The second half of `usage`: what the runs of a namespace have spent together, in each period for which its policy has a budget.

use agentrun_crds::agent_policy_status::{PeriodLimit, PeriodStatus};
use agentrun_crds::period::Period;
use agentrun_crds::quantity::micros_text;
use agentrun_crds::{AgentPolicy, GROUP, VERSION};

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::output::Table;

/// Empty where there is no such budget, or where the policy may not be read.
pub async fn lines(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{}/agentpolicies/default", cluster.namespace);
    match cluster.get::<AgentPolicy>(&path).await {
        Ok(policy) => Ok(table(&policy)),
        Err(fault) if matches!(fault.status(), Some(403 | 404)) => Ok(Vec::new()),
        Err(fault) => Err(fault.failure("reading the AgentPolicy for the namespace's budgets")),
    }
}

fn table(policy: &AgentPolicy) -> Vec<String> {
    if policy.spec.budgets.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&["ALL RUNS IN THIS", "UNTIL", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", "COST"]);
    let limits = Period::ALL.into_iter().filter_map(|period| Some((period, policy.spec.limit_of(period)?)));
    for (period, limit) in limits {
        let standing = policy.status.as_ref().and_then(|status| status.of(period));
        let mut cells = vec![period.to_string()];
        match standing {
            Some(standing) => cells.extend(amounts(standing, limit)),
            None => cells.push("nothing spent yet".into()),
        }
        table.row(cells);
    }
    table.lines()
}

/// The limit is the spec's: status shows one that was changed only a moment later.
fn amounts(standing: &PeriodStatus, limit: PeriodLimit) -> Vec<String> {
    let PeriodStatus { spent, ends_at, .. } = standing;
    let of = |spent: String, limit: Option<String>| limit.map_or(spent.clone(), |limit| format!("{spent}/{limit}"));
    let count = |spent: i64, limit: Option<i64>| of(spent.to_string(), limit.map(|limit| limit.to_string()));
    vec![
        ends_at.0.to_string(),
        count(spent.requests, limit.requests),
        count(spent.input_tokens, limit.input_tokens),
        count(spent.output_tokens, limit.output_tokens),
        of(micros_text(spent.cost_micros), limit.cost_micros.map(micros_text)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_budget_of_the_policy_has_a_line() {
        let policy = |budgets: serde_json::Value, status: serde_json::Value| -> AgentPolicy {
            serde_json::from_value(json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "default", "namespace": "n"},
                "spec": {"models": [], "images": [], "budgets": budgets}, "status": status,
            }))
            .expect("a policy")
        };
        assert_eq!(table(&policy(json!([]), json!({}))), Vec::<String>::new());
        let budgets = json!([{"period": "Month", "limit": {"cost": "9"}}, {"period": "Hour", "limit": {"requests": 5}}]);
        let month = json!({"period": "Month", "startsAt": "2026-11-01T00:00:00Z", "endsAt": "2026-12-01T00:00:00Z",
            "limit": {"costMicros": 5_000_000}, "spent": {"requests": 7, "inputTokens": 8, "outputTokens": 9, "costMicros": 1_500_000}});
        assert_eq!(
            table(&policy(budgets, json!({"budgets": [month]}))),
            [
                "ALL RUNS IN THIS   UNTIL                  REQUESTS   INPUT TOKENS   OUTPUT TOKENS   COST",
                "hour               nothing spent yet",
                "month              2026-12-01T00:00:00Z   7          8              9               1.50/9.00",
            ]
        );
    }
}
