//! Actions that wait for people: one is allowed and performed, one is denied and the agent goes on without it, one ends the
//! run. Who submitted does not decide, and the decider sees the exact command.

use agentrun_crds::agent_policy::ApprovalPolicy;
use agentrun_crds::agent_run_status::{ApprovalState, Phase};
use agentrun_crds::approval_rules::{ApprovalRule, RuleDecision};
use agentrun_crds::conditions::types::AWAITING_APPROVAL;
use agentrun_e2e::node::{Colleague, Offer, Story, Within, condition, fixing_turns, story, until};
use agentrun_protocol::event::EventType;
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use serde_json::{Value, json};

#[tokio::test]
async fn people_decide_on_what_waits() {
    story("approval", body).await;
}

fn ask_for_commands() -> ApprovalPolicy {
    let ask = ApprovalRule { tools: vec!["run_command".into()], argv: None, paths: Vec::new(), decision: RuleDecision::Ask };
    ApprovalPolicy { rules: vec![ask], submitter_may_approve: false, pauses_wall_time: true, ..ApprovalPolicy::default() }
}

async fn body(story: &Story) -> Result<()> {
    let touch = |file: &str| Turn::call("run_command", json!({"argv": ["touch", file]}));
    let turns = [vec![touch("shop/allowed.txt"), touch("shop/denied.txt")], fixing_turns()].concat();
    let mut offer = Offer::new(turns).and("ends", [touch("shop/never.txt"), Turn::say("Done.")]);
    offer.approvals = ask_for_commands();
    story.offer(offer).await?;
    let (developer, approver) = (Colleague::new(story, "dev", "edit").await?, Colleague::new(story, "lead", "agentrun-approver").await?);

    let manifest = tempfile::tempdir()?;
    let submit = async |name: &str, model: &str| -> Result<()> {
        let mut spec = serde_json::to_value(story.spec())?;
        spec["model"] = model.into();
        let run = json!({"apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name}, "spec": spec});
        let file = manifest.path().join(name);
        std::fs::write(&file, run.to_string())?;
        let file = file.to_str().context("a path")?;
        developer.ok(&["submit", "-f", file, "--submitted-for", "anna@example.com"]).await.map(drop)
    };
    submit("asks", "small").await?;

    // The first: seen with its exact command, not for the submitter to decide, allowed by another.
    let run = pending(story, "asks", 1).await?;
    ensure!(run.spec.submitted_by.as_deref() == Some(developer.username.as_str()), "submittedBy is {:?}", run.spec.submitted_by);
    let awaiting = until(&story.runs, "asks", Within::Medium, "it awaits approval", |run| {
        agentrun_e2e::node::phase(run) == Some(Phase::AwaitingApproval)
            && condition(run, AWAITING_APPROVAL).is_some_and(|awaiting| awaiting.status == "True")
    });
    awaiting.await?;
    let shown = approver.ok(&["approvals"]).await?;
    ensure!(shown.contains("asks") && shown.contains("touch shop/allowed.txt"), "{shown}");
    developer.plugin.expect(&["approve", "asks", "1"], 3, "forbidden").await?;
    // What the agent does is read in the Pod's own log, too.
    let pod = run.status.as_ref().and_then(|status| status.pod_ref.as_ref()).context("a Pod")?;
    let said = Api::<Pod>::namespaced(story.node.client.clone(), &story.namespace).logs(&pod.name, &LogParams::default()).await?;
    ensure!(said.lines().any(|line| line.contains("touch shop/allowed.txt")), "kubectl logs POD:\n{said}");
    approver.ok(&["approve", "asks", "1"]).await?;
    approver.plugin.expect(&["deny", "asks", "1"], 1, "allowed").await?;

    // The second: denied, and the agent is told why and goes on.
    pending(story, "asks", 2).await?;
    approver.ok(&["deny", "asks", "2", "--reason", "no such file"]).await?;
    let ended = story.until_ended("asks", Phase::Succeeded, "Succeeded").await?;
    let status = ended.status.context("a status")?;
    let states: Vec<_> = status.approvals.iter().map(|approval| (approval.id, approval.state)).collect();
    assert_eq!(states, [(1, ApprovalState::Consumed), (2, ApprovalState::Denied)]);
    ensure!(status.approvals.iter().all(|approval| approval.decided_by.as_deref() == Some(approver.username.as_str())), "{status:?}");
    let changed = status.result.context("a result")?.changed_paths;
    ensure!(changed.iter().any(|path| path == "shop/allowed.txt") && !changed.iter().any(|path| path == "shop/denied.txt"), "{changed:?}");
    let events = story.people.all_events(&story.namespace, "asks").await?;
    let approvals = events.iter().filter(|event| event.kind == EventType::Approval).count();
    ensure!(approvals >= 5, "asked, allowed, consumed, asked, denied: {approvals} events");
    let told = |event: &&agentrun_protocol::event::Event| event.kind == EventType::ToolResult && event.data["ok"] == Value::Bool(false);
    ensure!(
        events.iter().filter(told).any(|event| event.data["output"].to_string().contains("no such file")),
        "the agent was not told why"
    );

    // The third ends the run.
    submit("ends", "ends").await?;
    pending(story, "ends", 1).await?;
    approver.ok(&["deny", "ends", "1", "--cancel"]).await?;
    story.until_ended("ends", Phase::Cancelled, "Cancelled").await?;
    Ok(())
}

/// Wait until an approval is open.
async fn pending(story: &Story, name: &str, id: i64) -> Result<agentrun_crds::AgentRun> {
    until(&story.runs, name, Within::Medium, &format!("approval {id} is pending"), |run| {
        let approvals = run.status.iter().flat_map(|status| &status.approvals);
        approvals.clone().any(|approval| approval.id == id && approval.state == ApprovalState::Pending)
    })
    .await
}
