//! The budget ends in the middle of the work: no call goes out beyond it, the run fails and says which dimension was spent.

use agentrun_crds::agent_run::BudgetSpec;
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::budget::Gate;
use agentrun_e2e::node::{Offer, Story, story};
use agentrun_scripted_model::{Turn, Usage};
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test]
async fn no_call_goes_out_beyond_the_budget() {
    story("budget", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let looking: Vec<Turn> = (0..9).map(|_| Turn::call("list", json!({"path": "."}))).collect();
    let usage = Usage::Raw(json!({"prompt_tokens": 50, "completion_tokens": 1_000_000, "total_tokens": 1_000_050}));
    let greedy = [Turn::call("list", json!({"path": "."})).with_usage(usage)].into_iter().chain(looking.clone());
    story.offer(Offer::new(looking.clone()).and("greedy", greedy).and("dear", looking)).await?;

    let run = async |name: &str, model: &str, budget: BudgetSpec| {
        let mut spec = story.spec();
        spec.model = model.into();
        spec.limits.budget = Some(budget);
        story.create(name, spec).await
    };
    run("requests", "small", BudgetSpec { requests: Some(3), ..BudgetSpec::default() }).await?;
    run("overrun", "greedy", BudgetSpec { output_tokens: Some(100_000), ..BudgetSpec::default() }).await?;
    // Less than the worst case of the first call, so not even that goes out.
    run("cost", "dear", BudgetSpec { cost: Some("0.000001".into()), ..BudgetSpec::default() }).await?;

    let ended = story.until_ended("requests", Phase::Failed, "BudgetExhausted").await?;
    let budget = ended.status.and_then(|status| status.budget).context("a budget")?;
    assert_eq!((budget.spent.requests, budget.gate, budget.reservations.len()), (3, Gate::Closed, 0));
    assert_eq!(story.model.bill(&story.upstream("small")).await?.requests, 3);
    let complete = story.runs.get("requests").await?;
    let message = &agentrun_e2e::node::condition(&complete, "Complete").context("complete")?.message;
    ensure!(message.contains("requests"), "the message does not name the dimension: {message}");

    // A provider that reports more than was reserved: shown, closed, failed, and nothing goes out after it.
    let ended = story.until_ended("overrun", Phase::Failed, "BudgetExhausted").await?;
    let budget = ended.status.and_then(|status| status.budget).context("a budget")?;
    ensure!(budget.overrun.is_some_and(|overrun| overrun.output_tokens > 0), "no overrun: {budget:?}");
    assert_eq!((budget.spent.output_tokens, budget.gate), (1_000_000, Gate::Closed));
    assert_eq!(story.model.bill(&story.upstream("greedy")).await?.requests, 1);

    story.until_ended("cost", Phase::Failed, "BudgetExhausted").await?;
    assert_eq!(story.model.bill(&story.upstream("dear")).await?.requests, 0);
    Ok(())
}
