//! A namespace's budget for a period: exact over several runs and two gateways, over a kill, and told of in Events. The scripted
//! model's own count is the referee.

use std::time::Duration;

use agentrun_crds::agent_policy::{AgentPolicy, AgentPolicySpec};
use agentrun_crds::agent_policy_status::PeriodStatus;
use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::names;
use agentrun_crds::period::{Period, Window};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun, MODEL, upstream};
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_runs_on_two_gateways_pass_exactly_what_their_namespace_has_left() {
    let _turn = super::turn::beside().await;
    storm().await.unwrap();
}

async fn storm() -> Result<()> {
    const LEFT: usize = 20;
    const CALLS: usize = 96;
    // All are in flight together: the model answers only after the last was sent.
    let bed = Bed::start(Script::new("", [Turn::say("yes").with(FaultKind::DelayHeader { ms: 500 })])).await?;
    policy(&bed, json!([{"period": "Month", "limit": {"requests": LEFT}}])).await?;
    let runs = three_runs(&bed).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    let answers = join_all((0..CALLS).map(|number| insist(&bed, &gateways[number % 2], &runs[number % 3], number))).await;
    let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
    for (status, code) in answers.iter().filter(|(status, _)| *status != 200) {
        ensure!((*status, code.as_str()) == (403, "namespace_budget_exhausted"), "refused with {status} {code}");
    }
    let passed = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!((passed, bed.model.model.bill()[&upstream()].requests), (LEFT, LEFT as u64));
    let month = settled(&bed).await?;
    assert_eq!((month.spent.requests, month.spent.upstream_attempts, month.used_percent), (LEFT as i64, LEFT as i64, 100));
    // What the namespace refused cost no run anything.
    let mut spent = 0;
    for run in &runs {
        let empty = |run: &agentrun_crds::AgentRun| {
            run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|budget| budget.reservations.is_empty())
        };
        let api: Api<agentrun_crds::AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
        let run = until(&api, &run.name, Within::Medium, "nothing is reserved", empty).await?;
        spent += run.status.and_then(|status| status.budget).context("a budget")?.spent.requests;
    }
    assert_eq!(spent, LEFT as i64);
    for gateway in &gateways {
        let late = gateway.chat(&bed.token(&runs[0], Audience::Model), &request_body(MODEL, "late", false)).await?;
        let header = |name: &str| late.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        assert_eq!((late.status().as_u16(), header("x-should-retry").as_str()), (403, "false"));
        ensure!((1..=3600).contains(&header("retry-after").parse::<i64>()?), "Retry-After is bounded");
    }
    let policies: Api<AgentPolicy> = Api::namespaced(bed.client.clone(), &bed.team);
    let status = policies.get(names::POLICY).await?.status.context("a status")?;
    assert_eq!(status.spent_text.as_deref(), Some("Month 100%"));
    told_once(&bed).await
}

/// `NamespaceBudgetLow` may be passed over by a write that reaches the end at once; neither comes twice.
async fn told_once(bed: &Bed) -> Result<()> {
    let events: Api<Event> = Api::namespaced(bed.client.clone(), &bed.team);
    let of_policy = ListParams::default().fields("regarding.kind=AgentPolicy");
    let spent = async {
        loop {
            let events = events.list(&of_policy).await?.items;
            let count = |reason: &str| events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count();
            if count("NamespaceBudgetSpent") > 0 {
                assert_eq!((count("NamespaceBudgetSpent"), count("NamespaceBudgetLow") <= 1), (1, true), "{events:?}");
                ensure!(events.iter().all(|event| event.type_.as_deref() == Some("Warning")), "{events:?}");
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // a field selector cannot be awaited otherwise
        }
    };
    tokio::time::timeout(Duration::from_secs(20), spent).await.context("no Event says that the budget is spent")?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_with_streams_open_books_at_least_what_was_billed_to_the_namespace() {
    let _turn = super::turn::alone().await;
    killed().await.unwrap();
}

async fn killed() -> Result<()> {
    const STREAMS: usize = 40;
    let bed = Bed::start(Script::new("", [Turn::say("and on").with(FaultKind::Slow { ms_per_chunk: 40 })])).await?;
    for (number, requests) in [30, 400].into_iter().enumerate() {
        if number == 0 {
            policy(&bed, json!([{"period": "Month", "limit": {"requests": requests}}])).await?;
        } else {
            limit(&bed, requests).await?;
        }
        let run = bed.run(&format!("run-{number}"), Limit { requests: 4000, ..Limit::default() }, Spent::default()).await?;
        let mut gateway = bed.gateway("a").await?;
        let token = bed.token(&run, Audience::Model);
        let (http, url) = (gateway.http.clone(), format!("{}{}", gateway.url, agentrun_protocol::routes::CHAT_COMPLETIONS));
        let streams: Vec<_> = (0..STREAMS)
            .map(|stream| {
                let sending = http.post(&url).bearer_auth(&token).json(&request_body(MODEL, &format!("{number} {stream}"), true)).send();
                tokio::spawn(async move {
                    if let Ok(mut answer) = sending.await {
                        while let Ok(Some(_)) = answer.chunk().await {}
                    }
                })
            })
            .collect();
        let seen = || bed.model.model.bill().get(&upstream()).map_or(0, |bill| bill.requests);
        let wanted = seen() + 12;
        while seen() < wanted && !streams.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(2)).await; // the provider's count can only be polled
        }
        gateway.crash()?;
        for stream in streams {
            stream.await?;
        }
        let _again = bed.gateway("a").await?;
        let month = settled(&bed).await?;
        let billed = bed.model.model.bill()[&upstream()];
        println!("limit {requests}: {} billed, {} spent", billed.requests, month.spent.requests);
        ensure!(month.spent.requests >= billed.requests as i64 && month.spent.requests <= requests, "{month:?}, billed {billed:?}");
        ensure!(month.spent.output_tokens >= billed.completion_tokens, "{month:?}, billed {billed:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_limit_counts_for_what_another_gateway_holds_in_advance() {
    let _turn = super::turn::beside().await;
    lowered().await.unwrap();
}

async fn lowered() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    policy(&bed, json!([{"period": "Month", "limit": {"requests": 1000}}])).await?;
    let runs = three_runs(&bed).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    for number in 0..8 {
        ensure!(ask(&bed, &gateways[number % 2], &runs[0], number).await?.0 == 200, "call {number}");
    }
    limit(&bed, 8).await?;
    // At most a couple of seconds later; here the next calls.
    let refused = async {
        loop {
            let (a, b) = (ask(&bed, &gateways[0], &runs[1], 0).await?, ask(&bed, &gateways[1], &runs[2], 1).await?);
            if a.0 == 403 && b.0 == 403 {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), refused).await.context("a lower limit did not count")??;
    let spent = settled(&bed).await?.spent.requests;
    ensure!(spent as u64 == bed.model.model.bill()[&upstream()].requests, "{spent} booked");
    limit(&bed, 1).await?;
    let shown = |policy: &AgentPolicy| {
        policy.status.as_ref().and_then(|status| status.of(Period::Month)).is_some_and(|month| month.limit.requests == Some(1))
    };
    let policies: Api<AgentPolicy> = Api::namespaced(bed.client.clone(), &bed.team);
    until(&policies, names::POLICY, Within::Medium, "status shows a lower limit without a call", shown).await?;
    limit(&bed, spent + 1).await?;
    let raised = async {
        while ask(&bed, &gateways[0], &runs[1], 2).await?.0 != 200 {}
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(5), raised).await.context("a higher limit did not count")?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_deleted_and_made_again_has_not_spent_less() {
    let _turn = super::turn::beside().await;
    remade().await.unwrap();
}

async fn remade() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let budgets = json!([{"period": "Month", "limit": {"requests": 5}}]);
    policy(&bed, budgets.clone()).await?;
    let runs = three_runs(&bed).await?;
    let gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    for number in 0..5 {
        ensure!(insist(&bed, &gateways[0], &runs[0], number).await?.0 == 200, "call {number}");
    }
    settled(&bed).await?;
    let policies: Api<AgentPolicy> = Api::namespaced(bed.client.clone(), &bed.team);
    policies.delete(names::POLICY, &DeleteParams::default()).await?;
    policy(&bed, budgets).await?;
    // Nobody calls: the gateway that knows says so by itself, and the other, which has a ledger of its own, has it from there.
    let told = |policy: &AgentPolicy| {
        policy.status.as_ref().and_then(|status| status.of(Period::Month)).is_some_and(|month| month.spent.requests == 5)
    };
    until(&policies, names::POLICY, Within::Medium, "what was spent stands in the new policy", told).await?;
    for (number, run) in runs.iter().enumerate() {
        let refused = ask(&bed, &gateways[1], run, 5 + number).await?;
        ensure!(refused == (403, "namespace_budget_exhausted".into()), "a second budget: {refused:?}");
    }
    assert_eq!(bed.model.model.bill()[&upstream()].requests, 5);
    Ok(())
}

/// The namespace's policy with these budgets.
async fn policy(bed: &Bed, budgets: serde_json::Value) -> Result<()> {
    let spec: AgentPolicySpec = serde_json::from_value(json!({
        "models": [{"name": MODEL, "provider": "scripted", "model": "m"}], "images": ["*"], "budgets": budgets,
    }))?;
    let policies: Api<AgentPolicy> = Api::namespaced(bed.client.clone(), &bed.team);
    policies.create(&PostParams::default(), &AgentPolicy::new(names::POLICY, spec)).await?;
    Ok(())
}

/// Change the month's limit.
async fn limit(bed: &Bed, requests: i64) -> Result<()> {
    let patch = json!({"spec": {"budgets": [{"period": "Month", "limit": {"requests": requests}}]}});
    let policies: Api<AgentPolicy> = Api::namespaced(bed.client.clone(), &bed.team);
    policies.patch(names::POLICY, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn three_runs(bed: &Bed) -> Result<[LiveRun; 3]> {
    // A test that meets the end of a month would see another budget.
    let month = Window::at(Period::Month, k8s_openapi::jiff::Timestamp::now());
    ensure!(month.end.as_second() - agentrun_e2e::gateways::now() > 120, "the month ends within two minutes; run this again then");
    let run = |name: &'static str| bed.run(name, Limit { requests: 500, ..Limit::default() }, Spent::default());
    Ok([run("one").await?, run("two").await?, run("three").await?])
}

/// The answer's status, and the code of an error.
async fn ask(bed: &Bed, gateway: &Gateway, run: &LiveRun, number: usize) -> Result<(u16, String)> {
    let body = request_body(MODEL, &format!("call {number}"), number.is_multiple_of(3));
    let answer = gateway.chat(&bed.token(run, Audience::Model), &body).await?;
    let (status, text) = (answer.status().as_u16(), answer.text().await?);
    let code = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|body| Some(body["error"]["code"].as_str()?.to_owned()));
    Ok((status, code.unwrap_or_default()))
}

/// The same as clients do it: what is refused for the moment is asked again.
async fn insist(bed: &Bed, gateway: &Gateway, run: &LiveRun, number: usize) -> Result<(u16, String)> {
    let asking = async {
        loop {
            match ask(bed, gateway, run, number).await? {
                (429 | 503, _) => tokio::time::sleep(Duration::from_millis(200)).await, // the pause that the answer asks for, cut short
                other => return Ok(other),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await.context("refused for the moment, again and again")?
}

/// The month once nobody holds anything.
async fn settled(bed: &Bed) -> Result<PeriodStatus> {
    let policies: Api<AgentPolicy> = Api::namespaced(bed.client.clone(), &bed.team);
    let month = |policy: &AgentPolicy| policy.status.as_ref().and_then(|status| status.of(Period::Month)).cloned();
    let empty = |policy: &AgentPolicy| month(policy).is_some_and(|month| month.reservations.is_empty());
    month(&until(&policies, names::POLICY, Within::Medium, "nothing is reserved", empty).await?).context("a month")
}
