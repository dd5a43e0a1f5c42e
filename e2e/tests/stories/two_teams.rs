//! Two runs of two teams at once: neither sees anything of the other.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, fixing_turns, two_stories};
use agentrun_scripted_model::Turn;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

#[tokio::test]
async fn two_teams_see_nothing_of_each_other() {
    two_stories("teams", body).await;
}

async fn body(one: &Story, two: &Story) -> Result<()> {
    let marker = |story: &Story| format!("only-{}", story.namespace);
    for story in [one, two] {
        let secret = json!({"path": "shop/note.txt", "content": marker(story)});
        story.offer(Offer::new([vec![Turn::call("write_file", secret)], fixing_turns()].concat())).await?;
        story.create("same-name", story.spec()).await?;
    }
    for story in [one, two] {
        story.until_ended("same-name", Phase::Succeeded, "Succeeded").await?;
    }
    for (mine, theirs) in [(one, two), (two, one)] {
        let base = format!("/v1/namespaces/{}/runs/same-name", mine.namespace);
        let artifacts: Value = serde_json::from_slice(&mine.people.get_ok(&format!("{base}/artifacts")).await?.body)?;
        let digests: Vec<&str> = artifacts["artifacts"].as_array().into_iter().flatten().filter_map(|a| a["digest"].as_str()).collect();
        let patch = mine.people.get_ok(&format!("{base}/patch")).await?.text();
        ensure!(patch.contains(&marker(mine)) && !patch.contains(&marker(theirs)), "{patch}");
        let events = mine.people.all_events(&mine.namespace, "same-name").await?;
        let events = serde_json::to_string(&events)?;
        ensure!(events.contains(&marker(mine)) && !events.contains(&marker(theirs)), "events are mixed");

        // The other team's viewer is refused everywhere, and a digest of this run is none of the other's.
        for path in ["events", "events?stream=1", "artifacts", "patch"] {
            let reply = theirs.people.get(&format!("{base}/{path}")).await?;
            ensure!(reply.status == 403 && !reply.text().contains(&marker(mine)), "{path}: {} {}", reply.status, reply.text());
        }
        for digest in &digests {
            ensure!(theirs.people.get(&format!("{base}/artifacts/{digest}")).await?.status == 403, "{digest} crossed namespaces");
        }
        let own = mine.runs.get("same-name").await?;
        let own = own.status.and_then(|status| status.result).and_then(|result| result.patch).map(|patch| patch.digest).unwrap_or_default();
        let crossed = format!("/v1/namespaces/{}/runs/same-name/artifacts/{own}", theirs.namespace);
        ensure!(theirs.people.get(&crossed).await?.status == 404, "a digest of another run was served");

        let seen = mine.model.seen(&mine.upstream("small")).await?;
        ensure!(!seen.is_empty(), "the model saw no request");
        for request in seen {
            let text = serde_json::to_string(&request)?;
            ensure!(text.contains(&mine.key) && !text.contains(&theirs.key) && !text.contains(&marker(theirs)), "{text}");
        }
    }
    Ok(())
}
