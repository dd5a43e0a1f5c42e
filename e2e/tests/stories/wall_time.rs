//! A run that takes longer than its wall time ends, with whatever was on its way charged in full.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, story};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test]
async fn a_run_ends_when_its_wall_time_has_passed() {
    story("walltime", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let endless = Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 100 });
    let busy = Turn::call("run_command", json!({"argv": ["python3", "-c", "while True: pass"]}));
    story.offer(Offer::new([endless]).and("busy", [busy])).await?;
    let mut spec = story.spec();
    spec.limits.wall_time = Some("10s".into());
    story.create("model", spec.clone()).await?;
    spec.model = "busy".into();
    story.create("command", spec).await?;
    for name in ["model", "command"] {
        let run = story.until_ended(name, Phase::Failed, "DeadlineExceeded").await?;
        let status = run.status.clone().context("a status")?;
        let exchanged = status.exchange.context("the clock starts with the exchange")?.at;
        let finished = status.finished_at.context("an end")?.0.as_second();
        // The runner keeps three of the ten seconds for its report; both times are whole seconds.
        ensure!((10 - 3 - 1..=10 + 20).contains(&(finished - exchanged)), "{name} ended {} s after the exchange", finished - exchanged);
        let budget = status.budget.context("a budget")?;
        ensure!(budget.spent.requests == 1 && budget.spent.output_tokens > 0 && budget.reservations.is_empty(), "{name}: {budget:?}");
        story.until_children_gone(&run).await?;
    }
    Ok(())
}
