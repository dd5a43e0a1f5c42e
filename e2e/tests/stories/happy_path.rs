//! A failing unit test becomes a patch that `git apply` takes and that makes the test pass.

use agentrun_crds::agent_run_status::{Phase, Trust};
use agentrun_crds::budget::Gate;
use agentrun_e2e::node::{Story, original_tree, story, tests_pass};
use agentrun_protocol::event::EventType;
use agentrun_scripted_model::Script;
use anyhow::{Context, Result, ensure};

#[tokio::test]
async fn a_run_becomes_a_checked_patch() {
    story("happy", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let script = Script::built_in().into_iter().find(|script| script.name == "fix-discount").context("a built-in script")?;
    let calls = script.turns.len() as i64;
    story.offer(agentrun_e2e::node::Offer::new(script.turns)).await?;
    story.create("fix", story.spec()).await?;
    let run = story.until_ended("fix", Phase::Succeeded, "Succeeded").await?;
    let status = run.status.clone().context("a finished run has a status")?;

    // The budget is what the model billed, to the token.
    let budget = status.budget.context("a budget")?;
    let bill = story.model.bill(&story.upstream("small")).await?;
    assert_eq!(budget.spent.requests, calls);
    assert_eq!(
        (bill.requests as i64, bill.prompt_tokens, bill.completion_tokens),
        (calls, budget.spent.input_tokens, budget.spent.output_tokens)
    );
    assert_eq!((budget.gate, budget.reservations.len(), budget.overrun), (Gate::Closed, 0, None));
    assert_eq!(status.requests_text.as_deref(), Some(format!("{calls}/14").as_str()));

    let result = status.result.context("a result")?;
    assert_eq!(result.changed_paths, ["shop/discount.py"]);
    let checks: Vec<_> = result.checks.iter().map(|check| (check.name.as_str(), check.exit_code, check.trust)).collect();
    assert_eq!(checks, [("unit", 0, Trust::Sandbox)]);

    // What the gateway sent on: the provider's key, the offered model's upstream name, and none of our tokens.
    for seen in story.model.seen(&story.upstream("small")).await? {
        let keys: Vec<_> = seen.headers.iter().filter(|(name, _)| name == "authorization").map(|(_, value)| value.clone()).collect();
        assert_eq!(keys, [format!("Bearer {}", story.key)]);
        ensure!(!seen.headers.iter().any(|(_, value)| value.contains("ar1.")), "a run token reached the provider");
    }

    let events = story.people.all_events(&story.namespace, "fix").await?;
    let count = |kind| events.iter().filter(|event| event.kind == kind).count() as i64;
    assert_eq!((count(EventType::ModelCall), count(EventType::ToolCall), count(EventType::Result)), (calls, calls - 1, 1));
    let phases: Vec<_> =
        events.iter().filter(|event| event.kind == EventType::Phase).filter_map(|event| event.data["phase"].as_str()).collect();
    ensure!(phases.ends_with(&["Succeeded"]) && phases.contains(&"Running"), "phases in the events: {phases:?}");
    assert_eq!(story.people.events(&story.namespace, "fix").await?, events, "reading again gives the same");

    patch_applies(story).await?;

    // The sandbox is gone, the run and its result stay.
    story.until_children_gone(&run).await?;
    assert_eq!(story.leftovers().await?, Vec::<String>::new());
    patch_applies(story).await
}

async fn patch_applies(story: &Story) -> Result<()> {
    let patch = story.people.get_ok(&format!("/v1/namespaces/{}/runs/fix/patch", story.namespace)).await?;
    let tree = original_tree()?;
    ensure!(!tests_pass(tree.path())?.0, "the tests pass before the fix");
    let file = tree.path().join("fix.patch");
    std::fs::write(&file, &patch.body)?;
    let applied = std::process::Command::new("git").args(["apply", "fix.patch"]).current_dir(tree.path()).output()?;
    ensure!(applied.status.success(), "git apply: {}\n{}", String::from_utf8_lossy(&applied.stderr), patch.text());
    let (passed, said) = tests_pass(tree.path())?;
    ensure!(passed, "the tests fail after the fix:\n{said}");
    Ok(())
}
