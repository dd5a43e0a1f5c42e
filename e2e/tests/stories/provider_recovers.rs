//! A provider that fails and comes back costs attempts, not the run; one that stays away, or refuses our key, ends it with
//! a reason of its own.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, fixing_turns, story};
use agentrun_scripted_model::{FaultKind, Script, Turn};
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test]
async fn a_provider_that_comes_back_costs_attempts_and_not_the_run() {
    story("provider", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let status = |code, retry_after: Option<&str>| FaultKind::Status { code, retry_after: retry_after.map(Into::into), echo_key: true };
    let look = || Turn::call("list", json!({"path": "."}));
    let turns = [
        look().with_first(2, status(500, None)),
        look().with_first(1, status(429, Some("1"))),
        look().with_first(1, FaultKind::Cut { after_chunks: 2 }),
    ];
    let offer = Offer::new(turns.into_iter().chain(fixing_turns())).and("down", [Turn::say("never").with(status(503, None))]);
    story.offer(offer).await?;
    story.create("fix", story.spec()).await?;
    let mut down = story.spec();
    down.model = "down".into();
    story.create("down", down).await?;

    let run = story.until_ended("fix", Phase::Succeeded, "Succeeded").await?;
    let budget = run.status.and_then(|status| status.budget).context("a budget")?;
    let bill = story.model.bill(&story.upstream("small")).await?;
    assert_eq!((bill.requests as i64, bill.failed), (budget.spent.upstream_attempts, 3), "every attempt is on the books: {budget:?}");
    // The cut answer's cost is unknown, so it stands at its worst case: never below what the provider counted.
    ensure!(budget.spent.input_tokens > bill.prompt_tokens && budget.spent.output_tokens > bill.completion_tokens, "{budget:?} {bill:?}");

    let run = story.until_ended("down", Phase::Failed, "ProviderUnavailable").await?;
    let budget = run.status.and_then(|status| status.budget).context("a budget")?;
    assert_eq!(story.model.bill(&story.upstream("down")).await?.requests as i64, budget.spent.upstream_attempts);

    // The provider takes another key from now on, as when ours was revoked there.
    story.model.register(&Script { key: Some("sk-another".into()), ..Script::new(story.upstream("small"), fixing_turns()) }).await?;
    story.create("refused", story.spec()).await?;
    story.until_ended("refused", Phase::Failed, "ProviderAuthFailed").await?;
    Ok(())
}
