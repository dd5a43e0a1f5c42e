//! The operator dies without a warning, with runs in every phase. Each ends as if nothing had happened: once.

use agentrun_crds::agent_policy::PolicyLimits;
use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, Within, fixing_turns, phase, story_alone, until, until_gone};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn runs_in_every_phase_survive_the_operator() {
    story_alone("operator", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let slow = |ms| [vec![Turn::call("list", json!({"path": "."})).with(FaultKind::DelayHeader { ms })], fixing_turns()].concat();
    let mut offer =
        Offer::new(slow(0)).and("slow", slow(5000)).and("endless", [Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 100 })]);
    offer.limits = PolicyLimits { concurrent_runs: Some(2), ..PolicyLimits::default() };
    story.offer(offer).await?;

    // Running, starting and queued when it dies; pending when there is none.
    let mut spec = story.spec();
    spec.model = "slow".into();
    story.create("running", spec).await?;
    story.until_calling("running", "slow").await?;
    story.create("starting", story.spec()).await?;
    story.until_phase("starting", &[Phase::Starting], Within::Short).await?;
    story.create("queued", story.spec()).await?;
    story.until_phase("queued", &[Phase::Queued], Within::Short).await?;
    let before = story.node.component("operator").await?.uid().context("a UID")?;
    story.node.crash("operator").await?;
    story.create("pending", story.spec()).await?;

    // The gateway goes on by itself: the result of the run that was running is in before anybody has judged it, or the
    // successor was quicker. Either way it is judged once.
    until(&story.runs, "running", Within::Long, "its result is in", |run| {
        run.status.as_ref().is_some_and(|status| status.result.is_some())
    })
    .await?;
    story.node.until_recovered("operator", &before).await?;
    for name in ["running", "starting", "queued", "pending"] {
        let run = story.until_ended(name, Phase::Succeeded, "Succeeded").await?;
        assert_eq!(run.status.as_ref().and_then(|status| status.attempt), Some(1), "{name} was started again");
        story.until_children_gone(&run).await?;
        let events = story.people.all_events(&story.namespace, name).await?;
        let ends = events.iter().filter(|event| event.kind == agentrun_protocol::event::EventType::Result).count();
        assert_eq!(ends, 1, "{name} has {ends} results");
    }

    // Dying in the middle of a cancel, and of a deletion.
    let mut spec = story.spec();
    spec.model = "endless".into();
    story.create("cancelled", spec.clone()).await?;
    story.create("deleted", spec).await?;
    story.until_calling("cancelled", "endless").await?;
    story.until_calling("deleted", "endless").await?;
    let before = story.node.component("operator").await?.uid().context("a UID")?;
    story.cancel("cancelled").await?;
    story.runs.delete("deleted", &DeleteParams::default()).await?;
    story.node.crash("operator").await?;
    story.until_ended("cancelled", Phase::Cancelled, "Cancelled").await?;
    until_gone(&story.runs, "deleted", Within::Long).await?;
    ensure!(phase(&story.runs.get("cancelled").await?) == Some(Phase::Cancelled), "a terminal phase changed");
    story.node.until_recovered("operator", &before).await
}
