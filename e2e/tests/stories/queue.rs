//! A namespace runs as many at once as its policy says; the rest waits, the more urgent first.

use agentrun_crds::agent_policy::PolicyLimits;
use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, Within, fixing_turns, story};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test]
async fn runs_beyond_the_cap_wait_for_their_turn() {
    story("queue", body).await;
}

async fn body(story: &Story) -> Result<()> {
    // The first run holds the place until the others are seen waiting.
    let slow = Turn::call("list", json!({"path": "."})).with(FaultKind::DelayHeader { ms: 8000 });
    let mut offer = Offer::new(fixing_turns()).and("slow", [vec![slow], fixing_turns()].concat());
    offer.limits = PolicyLimits { concurrent_runs: Some(1), queued: Some(2), ..PolicyLimits::default() };
    story.offer(offer).await?;

    let mut first = story.spec();
    first.model = "slow".into();
    story.create("first", first).await?;
    story.until_phase("first", &[Phase::Starting, Phase::Running], Within::Medium).await?;
    story.create("patient", story.spec()).await?;
    story.until_phase("patient", &[Phase::Queued], Within::Short).await?;
    let mut urgent = story.spec();
    urgent.priority = 5;
    story.create("urgent", urgent).await?;
    story.until_phase("urgent", &[Phase::Queued], Within::Short).await?;
    story.create("toomany", story.spec()).await?;
    story.until_ended("toomany", Phase::Failed, "QuotaExceeded").await?;

    let mut before = 0;
    for name in ["first", "urgent", "patient"] {
        let status = story.until_ended(name, Phase::Succeeded, "Succeeded").await?.status.context("a status")?;
        let (started, finished) =
            (status.started_at.context("a start")?.0.as_second(), status.finished_at.context("an end")?.0.as_second());
        ensure!(started >= before, "{name} started at {started}, before the one ahead of it had finished at {before}");
        before = finished;
    }
    Ok(())
}
