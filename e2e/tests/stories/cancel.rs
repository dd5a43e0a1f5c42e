//! `cancel: true` ends a run at once, wherever it is: in the queue, or in the middle of a model call that would never end.

use agentrun_crds::agent_policy::PolicyLimits;
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::budget::Gate;
use agentrun_e2e::node::{Offer, Story, Within, story};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;

#[tokio::test]
async fn a_cancelled_run_ends_wherever_it_is() {
    story("cancel", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let mut offer = Offer::new([Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 50 })]);
    offer.limits = PolicyLimits { concurrent_runs: Some(1), ..PolicyLimits::default() };
    story.offer(offer).await?;
    story.create("running", story.spec()).await?;
    story.until_calling("running", "small").await?;
    story.create("queued", story.spec()).await?;
    story.until_phase("queued", &[Phase::Queued], Within::Short).await?;

    story.cancel("queued").await?;
    let queued = story.until_ended("queued", Phase::Cancelled, "Cancelled").await?;
    ensure!(queued.status.is_some_and(|status| status.pod_ref.is_none()), "a run that never left the queue has no Pod");

    story.cancel("running").await?;
    let running = story.until_ended("running", Phase::Cancelled, "Cancelled").await?;
    story.until_children_gone(&running).await?;
    let budget = running.status.and_then(|status| status.budget).context("a budget")?;
    assert_eq!((budget.gate, budget.spent.requests), (Gate::Closed, 1));
    assert_eq!(story.model.bill(&story.upstream("small")).await?.requests, 1);

    let back = story.runs.patch("running", &PatchParams::default(), &Patch::Merge(json!({"spec": {"cancel": false}}))).await;
    ensure!(matches!(&back, Err(kube::Error::Api(status)) if status.code == 422), "a cancel was taken back: {back:?}");
    Ok(())
}
