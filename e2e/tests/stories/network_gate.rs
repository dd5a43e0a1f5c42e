//! No model call before the sandbox is seen to be closed, and none after it opens. A cluster that does not enforce NetworkPolicy,
//! or somebody's policy that opens the sandbox, ends a run with the reason, unless the AgentPolicy accepts it.

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::conditions::types::NETWORK_ENFORCED;
use agentrun_crds::network_probe::{NetworkEnforcement, NetworkTarget, ProbeOutcome};
use agentrun_crds::{AgentPolicy, AgentRun, names};
use agentrun_e2e::node::{Offer, Story, Within, condition, fixing_turns, story, story_alone, until};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

/// A model whose first answer takes longer than any of these stories.
fn stuck() -> Vec<Turn> {
    vec![Turn::call("list", json!({"path": "."})).with(FaultKind::DelayHeader { ms: 150_000 })]
}

#[tokio::test]
async fn a_policy_that_opens_the_sandbox_ends_the_run() {
    story("gate", opened).await;
}

async fn opened(story: &Story) -> Result<()> {
    story.offer(Offer::new(fixing_turns()).and("stuck", stuck()).and("never", fixing_turns())).await?;
    // As it should be: status says what was tried.
    story.create("closed", story.spec()).await?;
    let run = story.until_ended("closed", Phase::Succeeded, "Succeeded").await?;
    let network = &run.status.as_ref().and_then(|status| status.exchange.as_ref()).context("an exchange")?.network;
    let held: Vec<NetworkTarget> = network.iter().filter(|probe| probe.outcome == ProbeOutcome::Held).map(|probe| probe.target).collect();
    ensure!(held == NetworkTarget::ALL, "held: {network:?}");
    ensure!(said(&run)? == "True Held", "{:?}", condition(&run, NETWORK_ENFORCED));

    // In the middle of a run.
    let mut spec = story.spec();
    spec.model = "stuck".into();
    story.create("midway", spec).await?;
    story.until_calling("midway", "stuck").await?;
    let policies: Api<NetworkPolicy> = Api::namespaced(story.node.client.clone(), &story.namespace);
    // Its own policy is not a person's to delete; deleted by a controller of the cluster, it is put back and the run goes on.
    let own = names::child_name(story.runs.get("midway").await?.metadata.uid.as_deref().context("a UID")?, 1);
    let uid = policies.get(&own).await?.metadata.uid;
    let refused = policies.delete(&own, &DeleteParams::default()).await.err().context("an administrator deleted the wall")?;
    ensure!(refused.to_string().contains("agentrun-sandbox-network"), "{refused}");
    let collector = story.node.client_as("system:serviceaccount:kube-system:generic-garbage-collector").await?;
    Api::<NetworkPolicy>::namespaced(collector, &story.namespace).delete(&own, &DeleteParams::default()).await?;
    until(&policies, &own, Within::Short, "it is back", |policy| policy.metadata.uid != uid).await?;
    ensure!(said(&story.runs.get("midway").await?)? == "True Held", "the run did not go on");
    let open = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "allow-all"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}});
    policies.create(&PostParams::default(), &serde_json::from_value(open)?).await?;
    let run = story.until_ended("midway", Phase::Failed, "NetworkNotEnforced").await?;
    names_it(&run)?;

    // From the start: no Pod, no call.
    let mut spec = story.spec();
    spec.model = "never".into();
    story.create("never", spec).await?;
    let run = story.until_ended("never", Phase::Failed, "NetworkNotEnforced").await?;
    names_it(&run)?;
    ensure!(run.status.and_then(|status| status.pod_ref).is_none(), "a Pod was made");
    ensure!(story.model.bill(&story.upstream("never")).await?.requests == 0, "the model was called");

    accept(story).await?;
    story.create("accepted", story.spec()).await?;
    let run = story.until_ended("accepted", Phase::Succeeded, "Succeeded").await?;
    ensure!(said(&run)? == "False Opened", "{:?}", condition(&run, NETWORK_ENFORCED));
    names_it(&run)
}

#[tokio::test]
async fn a_cluster_that_does_not_enforce_network_policy_is_refused() {
    story_alone("unfenced", unfenced).await;
}

async fn unfenced(story: &Story) -> Result<()> {
    story.offer(Offer::new(fixing_turns()).and("stuck", stuck()).and("never", fixing_turns())).await?;
    story.node.open_fence().await?;
    let outcome = Box::pin(without_fence(story)).await;
    // A second rule is there only where the body failed between the two.
    while story.node.close_fence().await.is_ok() {}
    outcome
}

async fn without_fence(story: &Story) -> Result<()> {
    // A fence that is late is waited for.
    let mut spec = story.spec();
    spec.model = "stuck".into();
    story.create("late", spec).await?;
    let child = names::child_name(story.runs.get("late").await?.metadata.uid.as_deref().context("a UID")?, 1);
    until(&story.pods, &child, Within::Medium, "its runner runs", |pod| {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        statuses.filter(|status| status.name == "runner").any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
    })
    .await?;
    let exchange = story.runs.get("late").await?.status.and_then(|status| status.exchange);
    ensure!(exchange.is_none(), "tokens were handed out in an open network: {exchange:?}");
    story.node.close_fence().await?;
    let run = story.until_calling("late", "stuck").await?;
    ensure!(said(&run).is_ok_and(|said| said == "True Held") || condition(&run, NETWORK_ENFORCED).is_none(), "late and not held");

    // It opens again: whoever works is ended, whoever comes is refused, and who accepts it goes on.
    story.node.open_fence().await?;
    let mut spec = story.spec();
    spec.model = "never".into();
    story.create("never", spec).await?;
    until(&story.runs, "never", Within::Medium, "it was accepted", |run| {
        run.status.as_ref().is_some_and(|status| status.started_at.is_some())
    })
    .await?;
    accept(story).await?;
    story.create("accepted", story.spec()).await?;
    let run = story.until_ended("accepted", Phase::Succeeded, "Succeeded").await?;
    ensure!(said(&run)? == "False Reached", "{:?}", condition(&run, NETWORK_ENFORCED));
    let run = story.until_ended("never", Phase::Failed, "NetworkNotEnforced").await?;
    reached_it(&run)?;
    ensure!(story.model.bill(&story.upstream("never")).await?.requests == 0, "the model was called");
    let run = story.until_ended("late", Phase::Failed, "NetworkNotEnforced").await?;
    reached_it(&run)
}

async fn accept(story: &Story) -> Result<()> {
    let policies: Api<AgentPolicy> = Api::namespaced(story.node.client.clone(), &story.namespace);
    let patch = json!({"spec": {"sandbox": {"networkEnforcement": NetworkEnforcement::NotRequired}}});
    policies.patch(names::POLICY, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

fn said(run: &AgentRun) -> Result<String> {
    let enforced = condition(run, NETWORK_ENFORCED).context("no condition NetworkEnforced")?;
    Ok(format!("{} {}", enforced.status, enforced.reason))
}

fn names_it(run: &AgentRun) -> Result<()> {
    let message = &condition(run, NETWORK_ENFORCED).context("no condition NetworkEnforced")?.message;
    ensure!(message.contains("NetworkPolicy allow-all opens"), "{message}");
    Ok(())
}

fn reached_it(run: &AgentRun) -> Result<()> {
    let message = &condition(run, NETWORK_ENFORCED).context("no condition NetworkEnforced")?.message;
    ensure!(message.contains("reached the API server"), "{message}");
    Ok(())
}
