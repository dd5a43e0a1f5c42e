//! An upgrade from the same version, with values that restart operator and gateway: runs go on, and everything that was
//! stored or made once is still there, byte for byte. `helm test` passes on what came out.

use std::path::{Path, PathBuf};

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::names;
use agentrun_e2e::node::{Offer, SYSTEM, Story, fixing_turns, story_alone};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use serde_json::json;

#[tokio::test]
async fn an_upgrade_keeps_runs_and_data() {
    story_alone("upgrade", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let slow = [vec![Turn::call("list", json!({"path": "."})).with(FaultKind::DelayHeader { ms: 5000 })], fixing_turns()].concat();
    story.offer(Offer::new(fixing_turns()).and("slow", slow)).await?;
    story.create("finished", story.spec()).await?;
    story.until_ended("finished", Phase::Succeeded, "Succeeded").await?;
    let mut spec = story.spec();
    spec.model = "slow".into();
    story.create("running", spec).await?;
    story.until_calling("running", "slow").await?;
    let before = kept(story).await?;
    let gateway = story.node.component("gateway").await?.uid().context("a UID")?;
    let operator = story.node.component("operator").await?.uid().context("a UID")?;

    // Another grace period changes the gateway's Pod, another log level both.
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/agentrun");
    let chart = chart.to_str().context("a path in UTF-8")?;
    let values = ["--reset-then-reuse-values", "--set", "gateway.drainSeconds=4,log.level=debug", "--wait", "--timeout", "2m"];
    helm(story, &[&["upgrade", "agentrun", chart], &values[..]].concat()).await?;
    let outcome = upgraded(story, &before, [("gateway", gateway), ("operator", operator)]).await;
    // As the next story expects it, whatever came out.
    helm(story, &["rollback", "agentrun", "--wait", "--timeout", "2m"]).await?;
    outcome
}

async fn upgraded(story: &Story, before: &Kept, processes: [(&str, String); 2]) -> Result<()> {
    for (component, uid) in processes {
        story.node.until_recovered(component, &uid).await?;
    }
    assert_eq!(&kept(story).await?, before, "what was there before the upgrade has changed");
    let run = story.until_ended("running", Phase::Succeeded, "Succeeded").await?;
    assert_eq!(run.status.and_then(|status| status.attempt), Some(1), "the run was started again");
    story.people.all_events(&story.namespace, "running").await?;
    let said = helm(story, &["test", "agentrun", "--timeout", "2m"]).await?;
    ensure!(said.contains("Succeeded"), "helm test did not run its Pod: {said}");
    Ok(())
}

/// What an upgrade must not touch.
#[derive(PartialEq, Debug)]
struct Kept {
    patch: String,
    events: Vec<agentrun_protocol::event::Event>,
    /// UID and resourceVersion of the operator's Secrets.
    secrets: Vec<(String, Option<String>, Option<String>)>,
    /// UIDs of the CustomResourceDefinitions: made anew, they would have taken every run with them.
    kinds: Vec<Option<String>>,
}

async fn kept(story: &Story) -> Result<Kept> {
    let secrets: Api<Secret> = Api::namespaced(story.node.client.clone(), SYSTEM);
    let mut found = Vec::new();
    for name in [names::CA_SECRET, names::SERVING_SECRET, names::TOKEN_KEYS_SECRET] {
        let secret = secrets.get_metadata(name).await.with_context(|| format!("the Secret {name}"))?;
        found.push((name.to_owned(), secret.uid(), secret.resource_version()));
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(story.node.client.clone());
    let mut kinds = Vec::new();
    for kind in ["agentruns", "agentpolicies", "modelproviders"] {
        kinds.push(definitions.get_metadata(&format!("{kind}.agentrun.dev")).await?.uid());
    }
    Ok(Kept {
        patch: story.people.get_ok(&format!("/v1/namespaces/{}/runs/finished/patch", story.namespace)).await?.text(),
        events: story.people.all_events(&story.namespace, "finished").await?,
        secrets: found,
        kinds,
    })
}

/// Helm on the release, as `e2e/install.sh` made it. The programs are those of the local cluster, else those on the path.
async fn helm(story: &Story, arguments: &[&str]) -> Result<String> {
    let program = story.node.kubectl().parent().map(|bin| bin.join("helm")).filter(|helm| helm.exists()).unwrap_or(PathBuf::from("helm"));
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).args(["--namespace", SYSTEM]).arg("--kubeconfig").arg(&story.node.kubeconfig).kill_on_drop(true);
    let output = command.output().await.context("running helm")?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "helm {}: {said}", arguments.join(" "));
    Ok(said)
}
