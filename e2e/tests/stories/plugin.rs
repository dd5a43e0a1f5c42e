//! From a folder to an applied patch with `kubectl agentrun` and an administrator's kubeconfig (a client certificate).

use agentrun_e2e::node::{Offer, Story, Within, fixing_turns, original_tree, story, tests_pass, until};
use agentrun_e2e::plugin::Plugin;
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;

#[tokio::test]
async fn a_folder_becomes_an_applied_patch() {
    story("plugin", body).await;
}

async fn body(story: &Story) -> Result<()> {
    story.offer(Offer::new(fixing_turns()).and("idle", [Turn::say("It is fine as it is.")])).await?;
    let registrations: Api<APIService> = Api::all(story.node.client.clone());
    until(&registrations, "v1alpha1.run.agentrun.dev", Within::Medium, "the gateway is served", |registered| {
        let conditions = registered.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
    })
    .await?;
    let plugin = Plugin::new(&story.node.kubeconfig, &story.namespace)?;
    let tree = original_tree()?;
    let dir = tree.path().to_str().context("UTF-8")?;
    let submit = ["submit", "--dir", dir, "-i", "The discount tests fail. Fix the code.", "--check", "unit=python3 -m unittest discover"];

    let said =
        plugin.expect(&[&submit[..], &["--allowed-path", "shop/**", "--name", "fix", "--follow"]].concat(), 0, "fix: Succeeded").await?;
    ensure!(said.starts_with("fix\n") && said.contains("check    unit: passed"), "{said}");
    let patch = plugin.expect(&["patch", "@latest"], 0, "").await?;
    std::fs::write(tree.path().join("fix.patch"), patch)?;
    let applied = std::process::Command::new("git").args(["apply", "fix.patch"]).current_dir(tree.path()).output()?;
    ensure!(applied.status.success(), "git apply: {}", String::from_utf8_lossy(&applied.stderr));
    let (passed, output) = tests_pass(tree.path())?;
    ensure!(passed, "{output}");
    ensure!(plugin.expect(&["artifacts", "fix"], 0, "").await?.contains("changes.patch"));
    ensure!(plugin.expect(&["usage"], 0, "").await?.contains("2/"));

    // The other way a run ends: a status of its own, and the reason.
    let tree = original_tree()?;
    let dir = tree.path().to_str().context("UTF-8")?;
    let idle =
        ["submit", "--dir", dir, "-i", "Fix it.", "--check", "unit=python3 -m unittest discover", "--model", "idle", "--name", "idle"];
    plugin.expect(&[&idle[..], &["--wait"]].concat(), 4, "idle: Failed, NoChanges").await?;
    let why = plugin.expect(&["why", "idle"], 0, "").await?;
    ensure!(why.contains("Failed, NoChanges") && why.contains("Next"), "{why}");
    let doctor = plugin.expect(&["doctor"], 0, "").await?;
    ensure!(!doctor.contains("wrong"), "{doctor}");
    Ok(())
}
