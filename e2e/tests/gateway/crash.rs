//! A gateway that dies with calls in flight loses no charge: the next one under its name books them in full.

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, MODEL};
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_in_flight_is_charged_in_full_after_a_crash() {
    let _turn = super::turn::beside().await;
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("and").with_first(1, FaultKind::Endless { ms_per_chunk: 20 })])).await?;
    let run = bed.run("run", Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
    let mut gateway = bed.gateway("a").await?;
    let token = bed.token(&run, Audience::Model);
    let mut answer = gateway.chat(&token, &request_body(MODEL, "on and on", true)).await?;
    ensure!(answer.status().is_success() && answer.chunk().await?.is_some(), "no stream began");
    let held = bed.get("run").await?.status.and_then(|status| status.budget).context("a budget")?.reserved();
    ensure!(held.requests == 1 && held.output_tokens > 0, "nothing is reserved while a stream is open: {held:?}");

    gateway.crash()?;
    while let Ok(Some(_)) = answer.chunk().await {}
    let gateway = bed.gateway("a").await?;
    let runs = kube::Api::<agentrun_crds::AgentRun>::namespaced(bed.client.clone(), &bed.team);
    let booked = until(&runs, "run", Within::Medium, "what was in flight is booked", |run| {
        run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|budget| budget.reservations.is_empty())
    })
    .await?;
    let spent = booked.status.and_then(|status| status.budget).context("a budget")?.spent;
    assert_eq!((spent.requests, spent.input_tokens, spent.output_tokens), (1, held.input_tokens, held.output_tokens));
    let next = gateway.chat(&token, &request_body(MODEL, "on and on", false)).await?;
    ensure!(next.status().is_success(), "the run cannot go on: {}", next.text().await?);
    Ok(())
}
