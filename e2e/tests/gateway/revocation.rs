//! Authority that is taken away in the middle of a stream: the stream ends within two seconds, and the provider with it.

use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, MODEL, upstream};
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

/// The promise is two seconds; the rest is for a busy machine to notice that the stream has ended.
const PROMISE: Duration = Duration::from_millis(2000 + 1500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_stream_ends_when_its_run_loses_its_authority() {
    let _turn = super::turn::beside().await;
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 20 })])).await?;
    let gateway = bed.gateway("a").await?;
    let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
    for how in ["cancelled", "closed", "compromised", "deleted"] {
        let run = bed.run(how, Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
        let mut answer = gateway.chat(&bed.token(&run, Audience::Model), &request_body(MODEL, how, true)).await?;
        ensure!(answer.status().is_success() && answer.chunk().await?.is_some(), "{how}: no stream began");
        match how {
            "cancelled" => drop(runs.patch(how, &PatchParams::default(), &Patch::Merge(json!({"spec": {"cancel": true}}))).await?),
            "compromised" => drop(bed.patch_status(how, json!({"exchange": {"compromised": true}})).await?),
            "deleted" => drop(runs.delete(how, &DeleteParams::default()).await?),
            _ => close(&bed, how).await?,
        }
        let taken = Instant::now();
        let ended = async { while let Ok(Some(_)) = answer.chunk().await {} };
        tokio::time::timeout(Duration::from_secs(30), ended).await.with_context(|| format!("{how}: the stream goes on"))?;
        ensure!(taken.elapsed() < PROMISE, "{how}: the stream went on for {:?}", taken.elapsed());
        if how != "deleted" {
            let booked = until(&runs, how, Within::Short, "the call is booked", |run| {
                run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|budget| budget.reservations.is_empty())
            })
            .await?;
            let spent = booked.status.and_then(|status| status.budget).context("a budget")?.spent;
            ensure!(spent.requests == 1 && spent.output_tokens > 0, "{how}: a stream that was cut off is not charged in full: {spent:?}");
        }
    }
    assert_eq!(bed.model.model.bill()[&upstream()].finished, 0, "the provider was left to go on");
    Ok(())
}

/// As the operator closes a budget: every reservation charged, in one write.
async fn close(bed: &Bed, name: &str) -> Result<()> {
    let run = bed.get(name).await?;
    let mut budget = run.status.and_then(|status| status.budget).context("a budget")?;
    budget.close();
    let mut budget = serde_json::to_value(budget)?;
    budget["reservations"] = json!(null);
    bed.patch_status(name, json!({ "budget": budget })).await.map(drop)
}
