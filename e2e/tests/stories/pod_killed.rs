//! A sandbox that dies takes its run with it: what the agent did is not known, so it is never done again.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, processes, story};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};

#[tokio::test]
async fn a_run_whose_pod_dies_is_lost_and_not_replayed() {
    story("lost", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let endless = || [Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 100 })];
    story.offer(Offer::new(endless()).and("other", endless())).await?;
    story.create("deleted", story.spec()).await?;
    let mut spec = story.spec();
    spec.model = "other".into();
    story.create("crashed", spec).await?;

    let before = story.until_calling("deleted", "small").await?;
    let pod = before.status.and_then(|status| status.pod_ref).context("a running run has a Pod")?;
    story.kill_pod(&pod.name).await?;

    let crashed = story.until_calling("crashed", "other").await?;
    let name = crashed.status.and_then(|status| status.pod_ref).context("a Pod")?.name;
    let runner = processes(&story.pods.get(&name).await?, "runner")?;
    ensure!(!runner.is_empty(), "no process of the runner was found on this machine");
    for process in runner {
        std::process::Command::new("kill").args(["-KILL", &process.pid.to_string()]).status()?;
    }

    for (run, model) in [("deleted", "small"), ("crashed", "other")] {
        let ended = story.until_ended(run, Phase::Failed, "SandboxLost").await?;
        story.until_children_gone(&ended).await?;
        let status = ended.status.context("a status")?;
        assert_eq!(status.attempt, Some(1), "{run} was started again");
        // One call, its outcome unknown, charged in full; and none after it.
        let budget = status.budget.context("a budget")?;
        assert_eq!((budget.spent.requests, budget.reservations.len()), (1, 0), "{run}");
        assert_eq!(story.model.bill(&story.upstream(model)).await?.requests, 1, "{run}");
    }
    assert_eq!(story.pods.list(&Default::default()).await?.items.len(), 0);
    Ok(())
}
