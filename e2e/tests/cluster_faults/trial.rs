//! One run from its creation to its end and beyond, and what must hold of it whatever happened meanwhile.

use std::time::{Duration, Instant};

use agentrun_crds::agent_run::{AgentRunSpec, InlineFile, Source};
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::{AgentRun, names};
use agentrun_e2e::gateways::{MODEL, upstream};
use agentrun_e2e::node::{Within, until, until_gone};
use agentrun_protocol::event::{Event, EventType};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::sandbox::{self, FILE, SAID};
use super::witness::Witness;
use super::world::{PATIENCE, World};

const NAME: &str = "fix";

impl World {
    /// Tell one run's life in a namespace of its own. `under` says under what.
    pub async fn trial(&self, under: &str) -> Result<()> {
        let begun = Instant::now();
        Box::pin(self.life()).await.with_context(|| under.to_owned())?;
        println!("{:.1} s {under}", begun.elapsed().as_secs_f32());
        Ok(())
    }

    async fn life(&self) -> Result<()> {
        let (client, team) = (&self.bed.client, &self.bed.team);
        let witness = Witness::of(client, team);
        let before = self.billed();
        let (path, content, _) = FILE;
        let files = vec![InlineFile { path: path.into(), content: content.into(), executable: false }];
        let runs: Api<AgentRun> = Api::namespaced(client.clone(), team);
        let spec = AgentRunSpec::new("Fix it.", Source::inline(files), MODEL);
        let run = runs.create(&PostParams::default(), &AgentRun::new(NAME, spec)).await?;
        tokio::time::timeout(2 * PATIENCE, sandbox::work(self, &run)).await.context("the sandbox does not get its work done")??;
        let over = |run: &AgentRun| run.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_terminal);
        let run = until(&runs, NAME, Within::Medium, "it is over", over).await?;
        self.gone(&run).await?;

        let status = run.status.context("a status")?;
        ensure!(status.phase == Some(Phase::Succeeded), "{:?}: {:?}", status.phase, status.conditions);
        let budget = status.budget.context("a budget")?;
        let billed = self.billed() - before;
        let spent = budget.spent.upstream_attempts;
        ensure!(budget.reservations.is_empty(), "{budget:?}");
        ensure!(billed >= 1 && billed <= spent && budget.spent.requests <= budget.limit.requests, "{billed} were billed: {budget:?}");
        ensure!(status.result.is_some_and(|result| result.changed_paths == [path]), "the change is lost");
        self.told().await?;
        witness.judge()
    }

    fn billed(&self) -> i64 {
        self.bed.model.model.bill().get(&upstream()).map_or(0, |bill| bill.requests as i64)
    }

    /// Nothing that the run made outlives it.
    async fn gone(&self, run: &AgentRun) -> Result<()> {
        let (client, team) = (&self.bed.client, &self.bed.team);
        let child = names::child_name(&run.uid().context("a UID")?, 1);
        until_gone(&Api::<Pod>::namespaced(client.clone(), team), &child, Within::Medium).await?;
        until_gone(&Api::<Secret>::namespaced(client.clone(), team), &child, Within::Medium).await?;
        until_gone(&Api::<NetworkPolicy>::namespaced(client.clone(), team), &child, Within::Medium).await
    }

    /// The events are dense, hold what was acknowledged, and end once.
    async fn told(&self) -> Result<()> {
        let token = self.bed.reader("reader").await?;
        let port = self.addresses.people.port();
        let url = format!("https://{}:{port}/v1/namespaces/{}/runs/{NAME}/events?stream=1", self.bed.host(), self.bed.team);
        let http = self.bed.client_through(self.addresses.people)?;
        let asking = async {
            loop {
                let request = http.get(&url).header("accept", "text/event-stream").bearer_auth(&token);
                // A gateway that cannot ask whether this person may see it says so, or dies of it, and is asked again. The answer
                // ends by itself once it has told the end.
                if let Ok(answer) = request.send().await
                    && answer.status() != 503
                    && let Ok(text) = answer.error_for_status()?.text().await
                {
                    return anyhow::Ok(text);
                }
                tokio::time::sleep(Duration::from_millis(100)).await; // as people pause
            }
        };
        let text = tokio::time::timeout(PATIENCE, asking).await.context("the events do not end")??;
        // The last frame says that this is all, and is no event.
        let events: Vec<Event> = text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok()).collect();
        let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
        ensure!(seqs == (1..=events.len() as i64).collect::<Vec<_>>(), "not dense from 1: {seqs:?}");
        let said = events.iter().filter(|event| event.kind == EventType::Message && event.data["text"] == SAID).count();
        let ends = events.iter().filter(|event| event.kind == EventType::End).count();
        ensure!((said, ends) == (1, 1) && events.last().is_some_and(|event| event.kind == EventType::End), "{events:?}");
        Ok(())
    }
}
