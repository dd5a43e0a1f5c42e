//! A sandbox that cannot come up fails its run in time, and the reason says what to look at.

use agentrun_crds::agent_policy::{PolicyLimits, SandboxPolicy};
use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, condition, fixing_turns, story};
use anyhow::{Context, Result, ensure};

const ABSENT: &str = "absent.test/tools:1";

#[tokio::test]
async fn an_image_that_cannot_be_pulled_fails_the_run() {
    story("pull", async |story: &Story| {
        let mut offer = Offer::new(fixing_turns());
        offer.images = vec!["absent.test/*".into()];
        offer.limits = PolicyLimits { startup_deadline: Some("30s".into()), ..PolicyLimits::default() };
        story.offer(offer).await?;
        let mut spec = story.spec();
        spec.agent.image = Some(ABSENT.into());
        story.create("pull", spec).await?;
        fails(story, "pull", "ImagePullFailed", ABSENT).await
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_fits_no_node_fails_the_run() {
    story("nofit", async |story: &Story| {
        let mut offer = Offer::new(fixing_turns());
        offer.sandbox = SandboxPolicy { runtime_class_name: Some(story.nowhere().await?), ..SandboxPolicy::default() };
        offer.limits = PolicyLimits { startup_deadline: Some("10s".into()), ..PolicyLimits::default() };
        story.offer(offer).await?;
        story.create("nofit", story.spec()).await?;
        fails(story, "nofit", "Unschedulable", "node").await
    })
    .await;
}

async fn fails(story: &Story, name: &str, reason: &str, words: &str) -> Result<()> {
    let run = story.until_ended(name, Phase::Failed, reason).await?;
    let message = &condition(&run, "Complete").context("just seen")?.message;
    ensure!(message.contains(words), "the message does not name {words}: {message}");
    ensure!(run.status.as_ref().is_some_and(|status| status.exchange.is_none()), "nothing was exchanged");
    story.until_children_gone(&run).await
}
