//! Cancel to last forwarded byte: every one of a hundred open streams, on two gateways, ends within the promise.

use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, MODEL};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt, iter};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

const TRIES: usize = 100;
/// Streams that are open together.
const TOGETHER: usize = 8;
const PROMISE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_gets_no_byte_after_two_seconds() {
    let _turn = super::turn::alone().await;
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("and").with(FaultKind::Endless { ms_per_chunk: 20 })])).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    let (bed, gateways) = (&bed, &gateways);
    let mut took: Vec<Duration> =
        iter(0..TRIES).map(|number| cancel(bed, &gateways[number % 2], number)).buffer_unordered(TOGETHER).try_collect().await?;
    took.sort();
    println!("cancel to last byte of {TRIES}: median {:?}, slowest {:?}", took[TRIES / 2], took[TRIES - 1]);
    Ok(())
}

async fn cancel(bed: &Bed, gateway: &Gateway, number: usize) -> Result<Duration> {
    let name = format!("run-{number}");
    let run = bed.run(&name, Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
    let mut answer = gateway.chat(&bed.token(&run, Audience::Model), &request_body(MODEL, &name, true)).await?;
    ensure!(answer.status().is_success() && answer.chunk().await?.is_some(), "{name}: no stream began");
    let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
    let mut last = Instant::now();
    let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"spec": {"cancel": true}})));
    let cancelling = async { runs.patch(&name, &params, &patch).await.map(|_| Instant::now()) };
    let reading = async {
        while let Ok(Some(_)) = answer.chunk().await {
            last = Instant::now();
        }
    };
    let both = async { tokio::join!(cancelling, reading) };
    let acknowledged =
        tokio::time::timeout(Duration::from_secs(30), both).await.with_context(|| format!("{name}: the stream goes on"))?.0?;
    let took = last.saturating_duration_since(acknowledged);
    ensure!(took < PROMISE, "{name}: a byte came {took:?} after the cancellation was acknowledged");
    Ok(took)
}
