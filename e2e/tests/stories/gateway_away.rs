//! The gateway is away for good. What it serves through the API server is withdrawn, so that namespaces can still be deleted,
//! and comes back with it.

use agentrun_e2e::node::{SYSTEM, Story, Within, story_alone, until, until_gone};
use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

const REGISTERED: &str = "v1alpha1.run.agentrun.dev";

#[tokio::test]
async fn a_namespace_is_deleted_while_the_gateway_is_away() {
    story_alone("away", body).await;
}

async fn body(story: &Story) -> Result<()> {
    until_served(story).await?;
    let before = story.node.component("gateway").await?.uid().context("a UID")?;
    scale(story, 0).await?;
    let outcome = away(story).await;
    // As the next story expects it, whatever came out.
    scale(story, 1).await?;
    story.node.until_recovered("gateway", &before).await?;
    until_served(story).await?;
    outcome
}

async fn away(story: &Story) -> Result<()> {
    let client = || story.node.client.clone();
    until_gone(&Api::<Pod>::namespaced(client(), SYSTEM), "agentrun-gateway-0", Within::Medium).await?;
    let namespaces: Api<Namespace> = Api::all(client());
    let name = format!("{}-away", story.namespace);
    let namespace = Namespace { metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() }, ..Namespace::default() };
    namespaces.create(&PostParams::default(), &namespace).await?;
    namespaces.delete(&name, &DeleteParams::default()).await?;
    until_gone(&namespaces, &name, Within::Long).await?;
    until_gone(&Api::<APIService>::all(client()), REGISTERED, Within::Short).await
}

async fn until_served(story: &Story) -> Result<()> {
    let registrations: Api<APIService> = Api::all(story.node.client.clone());
    let available = |registered: &APIService| {
        let conditions = registered.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
    };
    until(&registrations, REGISTERED, Within::Medium, "the API server reaches the gateway", available).await.map(drop)
}

async fn scale(story: &Story, replicas: i32) -> Result<()> {
    let sets: Api<StatefulSet> = Api::namespaced(story.node.client.clone(), SYSTEM);
    sets.patch("agentrun-gateway", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": replicas}}))).await?;
    Ok(())
}
