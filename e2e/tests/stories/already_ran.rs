//! A run is removed by its time to live and created again, as tools that keep a cluster as a repository says do: it does not run
//! again, until its key changes.

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::conditions::types::COMPLETE;
use agentrun_crds::{AgentRunRecord, AgentRunSpec};
use agentrun_e2e::node::{Offer, Story, Within, condition, fixing_turns, story, until_gone};
use agentrun_protocol::event::EventType;
use anyhow::{Context, Result, ensure};
use kube::{Api, ResourceExt};

#[tokio::test]
async fn a_run_that_is_created_again_does_not_run_again() {
    story("again", body).await;
}

async fn body(story: &Story) -> Result<()> {
    story.offer(Offer::new(fixing_turns())).await?;
    let spec = AgentRunSpec { ttl_seconds_after_finished: Some(1), ..story.spec() };
    let first = story.create("fix", spec.clone()).await?;
    until_gone(&story.runs, "fix", Within::Long).await?;
    let records: Api<AgentRunRecord> = Api::namespaced(story.node.client.clone(), &story.namespace);
    let record = records.get("fix").await.context("the record of a run that is gone")?.spec;
    ensure!(record.run_uid == first.uid().unwrap_or_default() && record.phase == Phase::Succeeded, "{record:?}");
    ensure!(record.spent.is_some_and(|spent| spent.requests > 0) && record.patch.is_some(), "{record:?}");
    let asked = story.model.bill(&story.upstream("small")).await?.requests;

    story.create("fix", spec.clone()).await?;
    let again = story.until_ended("fix", Phase::Succeeded, "AlreadyRan").await?;
    let said = condition(&again, COMPLETE).context("just seen")?.message.clone();
    ensure!(said.contains(&record.run_uid), "the message does not name the first run: {said}");
    ensure!(again.status.is_some_and(|status| status.started_at.is_none()), "it was started");
    // What the first one made is what people get.
    let patch = story.people.get_ok(&format!("/v1/namespaces/{}/runs/fix/patch", story.namespace)).await?;
    ensure!(patch.text().contains("shop/discount.py"), "{}", patch.text());
    let events = story.people.all_events(&story.namespace, "fix").await?;
    ensure!(events.iter().any(|event| event.kind == EventType::ModelCall), "the first run's events: {events:?}");
    assert_eq!(story.model.bill(&story.upstream("small")).await?.requests, asked, "a model was asked again");

    story.runs.delete("fix", &kube::api::DeleteParams::default()).await?;
    until_gone(&story.runs, "fix", Within::Short).await?;
    story.create("fix", AgentRunSpec { rerun_key: Some("2".into()), ..story.spec() }).await?;
    story.until_ended("fix", Phase::Succeeded, "Succeeded").await.map(drop)
}
