//! The gateway dies in the middle of a stream. No acknowledged event is lost, the cut call is charged in full, and the run
//! goes on to its end.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, Within, fixing_turns, story_alone};
use agentrun_protocol::event::EventType;
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use serde_json::json;

#[tokio::test]
async fn a_run_survives_the_gateway() {
    story_alone("gateway", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let first = Turn::call("list", json!({"path": "."}));
    let long = Turn { text: Some("word ".repeat(2000)), ..Turn::call("list", json!({"path": "."})) };
    let long = long.with_first(1, FaultKind::Slow { ms_per_chunk: 100 });
    story.offer(Offer::new([vec![first, long], fixing_turns()].concat())).await?;
    story.create("run", story.spec()).await?;

    // The first call is settled, the second is on its way when the gateway dies.
    story.people.follow(&story.namespace, "run", Within::Medium, |event| event.kind == EventType::ToolResult).await?;
    story.model.until_requests(&story.upstream("small"), 2).await?;
    let acknowledged = story.people.events(&story.namespace, "run").await?;
    let before = story.node.component("gateway").await?.uid().context("a UID")?;
    story.node.crash("gateway").await?;
    story.node.until_recovered("gateway", &before).await?;

    let run = story.until_ended("run", Phase::Succeeded, "Succeeded").await?;
    let events = story.people.all_events(&story.namespace, "run").await?;
    ensure!(events.starts_with(&acknowledged), "events that were read before the crash changed or are lost");
    ensure!(acknowledged.iter().any(|event| event.kind == EventType::ModelCall), "nothing was acknowledged before the crash");
    let budget = run.status.and_then(|status| status.budget).context("a budget")?;
    let bill = story.model.bill(&story.upstream("small")).await?;
    assert_eq!(budget.reservations.len(), 0);
    // The call that was cut had reached the provider, and nothing else was on its way.
    assert_eq!(budget.spent.upstream_attempts, bill.requests as i64, "{budget:?} {bill:?}");
    ensure!(
        budget.spent.input_tokens > bill.prompt_tokens && budget.spent.output_tokens > bill.completion_tokens,
        "the cut call was not charged in full: {budget:?} {bill:?}"
    );
    Ok(())
}
