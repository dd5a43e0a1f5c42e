//! Deleting a run in the middle of its work leaves nothing behind, and its NetworkPolicy goes last: while a container could
//! still run, it stands behind the wall.

use agentrun_crds::names;
use agentrun_e2e::node::{Offer, Story, Within, story, until_gone};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

#[tokio::test]
async fn deleting_a_running_run_leaves_nothing_and_the_wall_goes_last() {
    story("delete", body).await;
}

async fn body(story: &Story) -> Result<()> {
    story.offer(Offer::new([Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 100 })])).await?;
    story.create("run", story.spec()).await?;
    let run = story.until_calling("run", "small").await?;
    let child = names::child_name(run.metadata.uid.as_deref().context("a UID")?, 1);
    let client = || story.node.client.clone();
    let policies: Api<NetworkPolicy> = Api::namespaced(client(), &story.namespace);
    ensure!(policies.get_opt(&child).await?.is_some(), "a running sandbox has no NetworkPolicy");

    let pods: Api<Pod> = story.pods.clone();
    let (pods_from, policies_from) = (version(&pods).await?, version(&policies).await?);
    story.runs.delete("run", &DeleteParams::default()).await?;
    until_gone(&story.runs, "run", Within::Medium).await?;

    // Versions at which the API server recorded the deletions; they grow with time across kinds.
    let pod = deletion(&pods, &pods_from, &child).await?;
    let policy = deletion(&policies, &policies_from, &child).await?;
    ensure!(pod < policy, "the NetworkPolicy went at {policy}, before the Pod at {pod}");
    ensure!(Api::<Secret>::namespaced(client(), &story.namespace).get_opt(&child).await?.is_none(), "the ticket's Secret is left");
    assert_eq!(story.leftovers().await?, Vec::<String>::new());
    Ok(())
}

async fn version<K>(api: &Api<K>) -> Result<String>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    api.list(&ListParams::default()).await?.metadata.resource_version.context("a list has a version")
}

/// The resourceVersion of the object's deletion, found by watching from an earlier version.
async fn deletion<K>(api: &Api<K>, from: &str, name: &str) -> Result<u64>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut events = api.watch(&WatchParams::default(), from).await?.boxed();
    let found = tokio::time::timeout(Within::Short.duration(), async {
        while let Some(event) = events.try_next().await? {
            if let WatchEvent::Deleted(object) = event
                && object.meta().name.as_deref() == Some(name)
            {
                return Ok(object.meta().resource_version.clone().context("a version")?.parse()?);
            }
        }
        anyhow::bail!("the watch ended")
    });
    found.await.with_context(|| format!("{} {name} is not gone", K::kind(&())))?
}
