//! A bad spec is refused when it is applied, with the field and what is allowed; what only the policy can judge fails at
//! once with a reason. In neither case is there a Pod.

use agentrun_crds::agent_run::{AgentRun, BudgetSpec};
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::{AgentPolicy, names};
use agentrun_e2e::node::{Offer, Story, Within, fixing_turns, story};
use anyhow::{Context, Result, bail, ensure};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

#[tokio::test]
async fn a_bad_spec_is_refused_with_field_and_reason() {
    story("badspec", body).await;
}

async fn body(story: &Story) -> Result<()> {
    story.offer(Offer::new(fixing_turns())).await?;
    refused_at_apply(story).await?;
    refused_by_policy(story).await?;
    assert_eq!(story.leftovers().await?, Vec::<String>::new());
    Ok(())
}

async fn refused_at_apply(story: &Story) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(story.node.client.clone(), &story.namespace, &ApiResource::erase::<AgentRun>(&()));
    let file = |path: &str| json!({"inline": {"files": [{"path": path, "content": "x"}]}});
    let many: Vec<Value> = (0..33).map(|n| json!({"path": format!("f{n}"), "content": ""})).collect();
    for (field, value, words) in [
        ("instruction", json!(""), "spec.instruction"),
        ("instruction", json!("NUL \u{0}"), "control character"),
        ("instruction", json!("x".repeat(32_001)), "32000"),
        ("source", file("../up"), "relative to the workspace"),
        ("source", file("/etc/passwd"), "relative to the workspace"),
        ("source", file(".git/config"), ".git"),
        ("source", json!({"inline": {"files": many}}), "32"),
        ("source", json!({}), "exactly one of"),
        ("allowedPaths", json!(["a*b"]), "'*'"),
        ("checks", json!([{"name": "Unit", "argv": ["true"]}]), "DNS label"),
        ("checks", json!([{"name": "unit", "argv": []}]), "argv"),
        ("limits", json!({"wallTime": "soon"}), "180s"),
        ("limits", json!({"budget": {"cost": "-1"}}), "0.50"),
        ("model", json!(7), "spec.model"),
    ] {
        let mut spec = serde_json::to_value(story.spec())?;
        spec[field] = value;
        let object: DynamicObject = serde_json::from_value(
            json!({"apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "bad"}, "spec": spec}),
        )?;
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) => {
                ensure!(status.code == 422, "{field}: {} {}", status.code, status.message);
                ensure!(status.message.contains(&format!("spec.{field}")), "{field} is not named: {}", status.message);
                ensure!(status.message.contains(words), "{words:?} is not said: {}", status.message);
            }
            Err(error) => bail!("{field}: {error}"),
            Ok(_) => bail!("a bad {field} was accepted; it should be refused with {words:?}"),
        }
    }
    Ok(())
}

async fn refused_by_policy(story: &Story) -> Result<()> {
    let spec = story.spec();
    let mut model = spec.clone();
    model.model = "large".into();
    let mut image = spec.clone();
    image.agent.image = Some("elsewhere.test/tools:1".into());
    let mut steps = spec.clone();
    steps.limits.max_steps = Some(2000);
    let mut requests = spec.clone();
    requests.limits.budget = Some(BudgetSpec { requests: Some(1_000_000), ..BudgetSpec::default() });
    for (name, spec, words) in [("model", model, "large"), ("image", image, "elsewhere.test/tools:1"), ("steps", steps, "2000")] {
        story.create(name, spec).await?;
        let run = story.until_complete(name, Within::Short).await?;
        check_refused(&run, "PolicyDenied", words)?;
    }
    let policies: Api<AgentPolicy> = Api::namespaced(story.node.client.clone(), &story.namespace);
    policies.delete(names::POLICY, &DeleteParams::default()).await?;
    story.create("nopolicy", story.spec()).await?;
    check_refused(&story.until_complete("nopolicy", Within::Short).await?, "PolicyMissing", names::POLICY)
}

fn check_refused(run: &AgentRun, reason: &str, words: &str) -> Result<()> {
    let complete = agentrun_e2e::node::condition(run, "Complete").context("a Complete condition")?;
    ensure!(complete.reason == reason && complete.message.contains(words), "{reason} with {words:?} was expected: {complete:?}");
    let status = run.status.as_ref().context("a status")?;
    ensure!(status.phase == Some(Phase::Failed) && status.pod_ref.is_none(), "a refused run has no Pod: {status:?}");
    Ok(())
}
