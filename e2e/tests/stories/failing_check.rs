//! A check that does not pass fails the run, and says in which of three ways.

use agentrun_crds::agent_run::Check;
use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, story};
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test]
async fn a_run_whose_check_fails_has_failed() {
    story("checks", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let wrong = json!({"path": "shop/discount.py", "old_text": "price - percent", "new_text": "price - 2 * percent"});
    let offer =
        Offer::new([Turn::call("edit_file", wrong.clone()), Turn::say("Done, I think.")]).and("idle", [Turn::say("Nothing to do.")]);
    story.offer(offer).await?;

    story.create("wrong", story.spec()).await?;
    let mut idle = story.spec();
    idle.model = "idle".into();
    story.create("idle", idle).await?;
    let mut absent = story.spec();
    absent.checks = vec![Check { name: "lint".into(), argv: vec!["no-such-linter".into()] }];
    story.create("absent", absent).await?;

    let run = story.until_ended("wrong", Phase::Failed, "ChecksFailed").await?;
    let result = run.status.and_then(|status| status.result).context("a failed check is a result too")?;
    assert_eq!(result.verdict, "ChecksFailed");
    ensure!(result.checks.len() == 1 && result.checks[0].exit_code == 1, "checks: {:?}", result.checks);
    ensure!(result.message.contains("unit"), "the message does not name the check: {}", result.message);
    let patch = story.people.get_ok(&format!("/v1/namespaces/{}/runs/wrong/patch", story.namespace)).await?.text();
    ensure!(patch.contains("+    return price - 2 * percent"), "the work is there to look at: {patch}");

    story.until_ended("idle", Phase::Failed, "NoChanges").await?;
    let run = story.until_ended("absent", Phase::Failed, "CheckUnavailable").await?;
    let message = run.status.and_then(|status| status.result).context("a result")?.message;
    ensure!(message.contains("lint"), "the message does not name the check: {message}");
    Ok(())
}
