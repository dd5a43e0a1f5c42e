//! `usage`: what runs have spent, beside what they may.

use agentrun_crds::AgentRun;
use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::quantity::micros_text;
use kube::ResourceExt;

use super::usage_of_namespace;
use crate::arguments::Usage;
use crate::cluster::Cluster;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Table};
use crate::{run_name, runs};

pub async fn run(cluster: &Cluster, arguments: &Usage, output: &Output) -> Result<Exit, Failure> {
    let runs = match &arguments.run {
        Some(run) => vec![runs::get(cluster, &run_name::resolve(cluster, run).await?).await?],
        None => runs::list(cluster, (!arguments.all_namespaces).then_some(cluster.namespace.as_str()), None).await?,
    };
    for line in table(&runs, arguments.all_namespaces) {
        output.line(&line)?;
    }
    if arguments.run.is_none() && !arguments.all_namespaces {
        for line in usage_of_namespace::lines(cluster).await? {
            output.line(&line)?;
        }
    }
    Ok(Exit::Succeeded)
}

fn table(runs: &[AgentRun], namespaces: bool) -> Vec<String> {
    let skip = usize::from(!namespaces);
    let mut table = Table::new(&["NAMESPACE", "NAME", "PHASE", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", "COST"][skip..]);
    let mut total = Spent::default();
    for run in runs {
        let status = run.status.as_ref();
        let budget = status.and_then(|status| status.budget.as_ref());
        let spent = budget.map(|budget| budget.spent).unwrap_or_default();
        total.requests = total.requests.saturating_add(spent.requests);
        total.input_tokens = total.input_tokens.saturating_add(spent.input_tokens);
        total.output_tokens = total.output_tokens.saturating_add(spent.output_tokens);
        total.cost_micros = total.cost_micros.saturating_add(spent.cost_micros);
        let phase = status.and_then(|status| status.phase).map_or("Pending", |phase| phase.as_str());
        let mut cells = vec![run.namespace().unwrap_or_default(), run.name_any(), phase.to_owned()];
        cells.extend(amounts(&spent, budget.map(|budget| &budget.limit)));
        table.row(cells.split_off(skip));
    }
    if runs.len() > 1 {
        let mut cells = vec![String::new(), "total".into(), String::new()];
        cells.extend(amounts(&total, None));
        table.row(cells.split_off(skip));
    }
    table.lines()
}

/// `4/14`, or `4` where there is no limit.
fn amounts(spent: &Spent, limit: Option<&Limit>) -> Vec<String> {
    let of = |spent: String, limit: Option<String>| limit.map_or(spent.clone(), |limit| format!("{spent}/{limit}"));
    let count = |value: i64| value.to_string();
    vec![
        of(count(spent.requests), limit.map(|limit| count(limit.requests))),
        of(count(spent.input_tokens), limit.and_then(|limit| limit.input_tokens).map(count)),
        of(count(spent.output_tokens), limit.and_then(|limit| limit.output_tokens).map(count)),
        of(micros_text(spent.cost_micros), limit.and_then(|limit| limit.cost_micros).map(micros_text)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_stand_beside_their_limits_and_are_summed() {
        let run = |name: &str, status: serde_json::Value| -> AgentRun {
            serde_json::from_value(json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": { "name": name, "namespace": "n" },
                "spec": { "instruction": "x", "source": {}, "model": "m" }, "status": status,
            }))
            .expect("a run")
        };
        let budget = json!({ "limit": { "requests": 14, "costMicros": 500_000 }, "spent": { "requests": 4, "inputTokens": 9, "costMicros": 1 }, "gate": "Open" });
        let runs = [run("a", json!({ "phase": "Running", "budget": budget })), run("b", json!({}))];
        assert_eq!(
            table(&runs, false),
            [
                "NAME    PHASE     REQUESTS   INPUT TOKENS   OUTPUT TOKENS   COST",
                "a       Running   4/14       9              0               0.000001/0.50",
                "b       Pending   0          0              0               0.00",
                "total             4          9              0               0.000001",
            ]
        );
        assert!(table(&runs[..1], true)[1].starts_with("n "));
    }
}
