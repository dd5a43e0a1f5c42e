//! Budgets in leased slices: exact on two gateways, over kills, restarts, drains and a cluster that was restored. The scripted
//! model's own count is the referee.

use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_crds::budget::{Budget, Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun, MODEL, upstream};
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use kube::Api;

/// Kills of a gateway with fifty streams open; AGENTRUN_KILLS sets another number.
const KILLS: usize = 4;
const STREAMS: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_calls_of_a_large_budget_take_no_write_and_the_sum_is_exact() {
    let _turn = super::turn::beside().await;
    few_writes().await.unwrap();
}

async fn few_writes() -> Result<()> {
    const CALLS: usize = 256;
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: 5000, ..Limit::default() }, Spent::default()).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
    let version = |run: &AgentRun| run.metadata.resource_version.clone();
    let mut versions = std::collections::BTreeSet::new();
    let mut watched = Box::pin(kube::runtime::watcher::watch_object(runs.clone(), "run"));
    let calling = futures::stream::iter(0..CALLS)
        .map(|number| ask(&bed, &gateways[number % 2], &run, number))
        .buffer_unordered(16)
        .try_for_each(|status| async move {
            ensure!(status == 200, "refused with {status}");
            Ok(())
        });
    let mut calling = Box::pin(calling);
    loop {
        tokio::select! {
            done = &mut calling => break done?,
            seen = watched.next() => if let Some(Ok(Some(run))) = seen { versions.insert(version(&run)); }
        }
    }
    let budget = settled(&bed, "run").await?;
    billed_exactly(&bed, &budget, CALLS as i64)?;
    println!("{CALLS} calls on two gateways took {} writes that a watch saw", versions.len());
    ensure!(versions.len() < CALLS / 4, "{} writes for {CALLS} calls", versions.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_256_streams_exactly_the_16_left_pass() {
    let _turn = super::turn::beside().await;
    sixteen().await.unwrap();
}

async fn sixteen() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes").with(FaultKind::DelayHeader { ms: 800 })])).await?;
    let spent = Spent { requests: 384, upstream_attempts: 384, ..Spent::default() };
    let run = bed.run("run", Limit { requests: 400, ..Limit::default() }, spent).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    let token = bed.token(&run, Audience::Model);
    let answers = join_all((0..256).map(|number| {
        let (gateway, token) = (&gateways[number % 2], &token);
        async move {
            let answer = gateway.chat(token, &request_body(MODEL, &format!("call {number}"), true)).await?;
            let status = answer.status().as_u16();
            anyhow::Ok((status, answer.text().await?))
        }
    }))
    .await
    .into_iter()
    .collect::<Result<Vec<_>>>()?;
    let passed = answers.iter().filter(|(status, _)| *status == 200).count();
    for (status, body) in answers.iter().filter(|(status, _)| *status != 200) {
        ensure!([403, 429].contains(status), "refused with {status}: {body}");
    }
    assert_eq!((passed, bed.model.model.bill()[&upstream()].requests), (16, 16));
    assert_eq!(settled(&bed, "run").await?.spent.requests, 400);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_gateway_holds_in_advance_comes_back_when_another_needs_it() {
    let _turn = super::turn::beside().await;
    called_in().await.unwrap();
}

async fn called_in() -> Result<()> {
    const LIMIT: usize = 48;
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: LIMIT as i64, ..Limit::default() }, Spent::default()).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    for number in 0..2 {
        ensure!(ask(&bed, &gateways[0], &run, number).await? == 200, "call {number}");
    }
    ensure!(budget(&bed, "run").await?.has_slices(), "nothing is held in advance, so this tests nothing");
    let statuses = join_all((2..LIMIT).map(|number| ask(&bed, &gateways[1], &run, number))).await;
    for status in statuses {
        ensure!(status? == 200, "a call was refused while there was room");
    }
    ensure!(ask(&bed, &gateways[1], &run, LIMIT).await? == 403, "one too many");
    billed_exactly(&bed, &settled(&bed, "run").await?, LIMIT as i64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_gives_back_what_was_held_in_advance() {
    let _turn = super::turn::beside().await;
    drained().await.unwrap();
}

async fn drained() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: 1000, ..Limit::default() }, Spent::default()).await?;
    let mut gateway = bed.gateway("a").await?;
    for number in 0..12 {
        ensure!(ask(&bed, &gateway, &run, number).await? == 200, "call {number}");
    }
    ensure!(budget(&bed, "run").await?.has_slices(), "nothing is held in advance, so this tests nothing");
    gateway.terminate()?;
    let budget = budget(&bed, "run").await?;
    ensure!(budget.reservations.is_empty(), "left behind: {budget:?}");
    billed_exactly(&bed, &budget, 12)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_that_comes_back_with_its_volume_books_what_was_used_of_its_slice() {
    let _turn = super::turn::beside().await;
    recovered().await.unwrap();
}

async fn recovered() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: 1000, ..Limit::default() }, Spent::default()).await?;
    let mut gateway = bed.gateway("a").await?;
    for number in 0..5 {
        ensure!(ask(&bed, &gateway, &run, number).await? == 200, "call {number}");
    }
    gateway.crash()?;
    let left = budget(&bed, "run").await?;
    ensure!(left.reserved().requests + left.spent.requests > 5, "the slice was not larger than what was used: {left:?}");
    let _gateway = bed.gateway("a").await?;
    let after = settled(&bed, "run").await?;
    // The last call's settlement may not have been noted: then it is charged at its worst case.
    let bill = bed.model.model.bill()[&upstream()];
    assert_eq!((after.spent.requests, after.spent.upstream_attempts), (5, 5), "{after:?}");
    ensure!(after.spent.input_tokens >= bill.prompt_tokens && after.spent.output_tokens >= bill.completion_tokens, "{after:?} {bill:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_with_fifty_streams_open_books_at_least_what_was_billed() {
    let _turn = super::turn::alone().await;
    killed().await.unwrap();
}

async fn killed() -> Result<()> {
    let kills = std::env::var("AGENTRUN_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let bed = Bed::start(Script::new("", [Turn::say("and on").with(FaultKind::Slow { ms_per_chunk: 40 })])).await?;
    let mut gateway = bed.gateway("a").await?;
    for number in 0..kills {
        // Between a budget that is nearly spent and one with large slices.
        let requests = [60, 400, 4000][number % 3];
        let limit = Limit { requests, output_tokens: Some(64 * requests), ..Limit::default() };
        let name = format!("run-{number}");
        let run = bed.run(&name, limit, Spent::default()).await?;
        let before = bed.model.model.bill().get(&upstream()).copied().unwrap_or_default();
        let token = bed.token(&run, Audience::Model);
        let (http, url) = (gateway.http.clone(), format!("{}{}", gateway.url, agentrun_protocol::routes::CHAT_COMPLETIONS));
        let streams: Vec<_> = (0..STREAMS)
            .map(|stream| {
                let body = request_body(MODEL, &format!("{name} {stream}"), true);
                let sending = http.post(&url).bearer_auth(&token).json(&body).send();
                tokio::spawn(async move {
                    if let Ok(mut answer) = sending.await {
                        while let Ok(Some(_)) = answer.chunk().await {}
                    }
                })
            })
            .collect();
        // From the first call that the provider sees to the last settlement.
        let seen = || bed.model.model.bill().get(&upstream()).map_or(0, |bill| bill.requests - before.requests);
        let wanted = (number as u64 * 37 + 20) % (STREAMS as u64 + 1);
        while seen() < wanted && !streams.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(2)).await; // the provider's count can only be polled
        }
        tokio::time::sleep(Duration::from_millis(number as u64 * 13 % 120)).await;
        gateway.crash()?;
        for stream in streams {
            stream.await?;
        }
        gateway = bed.gateway("a").await?;
        let budget = settled(&bed, &name).await?;
        let bill = bed.model.model.bill().get(&upstream()).copied().unwrap_or_default();
        let billed = (bill.requests - before.requests) as i64;
        let (input, output) = (bill.prompt_tokens - before.prompt_tokens, bill.completion_tokens - before.completion_tokens);
        let spent = budget.spent;
        println!("try {number}: {billed} billed, {} of {requests} spent", spent.requests);
        ensure!(spent.requests >= billed && spent.upstream_attempts >= billed, "try {number}: {spent:?}, billed {bill:?}");
        ensure!(spent.input_tokens >= input && spent.output_tokens >= output, "try {number}: {spent:?}, billed {input} {output}");
        ensure!(spent.requests <= requests && spent.output_tokens <= 64 * requests, "try {number}: {spent:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_does_not_have_its_budgets_spent_again() {
    let _turn = super::turn::beside().await;
    restored().await.unwrap();
}

async fn restored() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    for (name, requests, restarts) in
        [("small", 6, false), ("small-restarted", 6, true), ("large", 500, false), ("large-restarted", 500, true)]
    {
        let run = bed.run(name, Limit { requests, ..Limit::default() }, Spent::default()).await?;
        let mut gateway = bed.gateway(name).await?;
        let key = format!("/registry/agentrun.dev/agentruns/{}/{name}", bed.team);
        ensure!(ask(&bed, &gateway, &run, 0).await? == 200, "{name}: the first call");
        settled(&bed, name).await?;
        let backup = bed.server.etcd_get(&key).await?;
        for number in 1..5 {
            ensure!(ask(&bed, &gateway, &run, number).await? == 200, "{name}: call {number}");
        }
        settled(&bed, name).await?;
        if restarts {
            gateway.crash()?;
        }
        bed.server.etcd_put(&key, &backup).await?;
        if restarts {
            assert_eq!(budget(&bed, name).await?.spent.requests, 1, "{name}: the older state is back");
            gateway = bed.gateway(name).await?;
        } else {
            // A gateway that sees it says by itself what it knows, before another may admit from it.
            let told = |run: &AgentRun| {
                run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|budget| budget.spent.requests == 5)
            };
            let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
            until(&runs, name, Within::Medium, "what was spent stands in the older state", told).await?;
        }
        ensure!(ask(&bed, &gateway, &run, 5).await? == 200, "{name}: there is room for one more");
        let spent = settled(&bed, name).await?.spent;
        assert_eq!((spent.requests, spent.upstream_attempts), (6, 6), "{name}");
        if requests == 6 {
            ensure!(ask(&bed, &gateway, &run, 6).await? == 403, "{name}: the budget was spent a second time");
        }
    }
    Ok(())
}

/// The answer's status, its body read to the end.
pub(super) async fn ask(bed: &Bed, gateway: &Gateway, run: &LiveRun, number: usize) -> Result<u16> {
    let answer = gateway.chat(&bed.token(run, Audience::Model), &request_body(MODEL, &format!("call {number}"), false)).await?;
    let status = answer.status().as_u16();
    answer.bytes().await?;
    Ok(status)
}

pub(super) async fn budget(bed: &Bed, name: &str) -> Result<Budget> {
    bed.get(name).await?.status.and_then(|status| status.budget).context("a budget")
}

/// The budget once nobody holds anything.
pub(super) async fn settled(bed: &Bed, name: &str) -> Result<Budget> {
    let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
    let empty = |run: &AgentRun| run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|b| b.reservations.is_empty());
    let run = until(&runs, name, Within::Medium, "nothing is reserved", empty).await?;
    run.status.and_then(|status| status.budget).context("a budget")
}

fn billed_exactly(bed: &Bed, budget: &Budget, calls: i64) -> Result<()> {
    let bill = bed.model.model.bill()[&upstream()];
    let spent = budget.spent;
    assert_eq!((spent.requests, spent.upstream_attempts, bill.requests as i64), (calls, calls, calls));
    assert_eq!((spent.input_tokens, spent.output_tokens), (bill.prompt_tokens, bill.completion_tokens));
    Ok(())
}
