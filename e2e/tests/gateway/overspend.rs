//! Concurrent calls cannot overspend: 64 at once on a run with 10 requests left pass exactly 10, with one gateway and with two.

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, MODEL, upstream};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use futures::future::join_all;

const LEFT: i64 = 10;
const CALLS: usize = 64;
const SPENT: i64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gateway_passes_exactly_what_is_left() {
    let _turn = super::turn::beside().await;
    storm(&["a"]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_pass_exactly_what_is_left() {
    let _turn = super::turn::beside().await;
    storm(&["a", "b"]).await.unwrap();
}

async fn storm(instances: &[&str]) -> Result<()> {
    // All are in flight together: the model answers only after the last was sent.
    let bed = Bed::start(Script::new("", [Turn::say("yes").with(FaultKind::DelayHeader { ms: 500 })])).await?;
    let spent = Spent { requests: SPENT, upstream_attempts: SPENT, ..Spent::default() };
    let run = bed.run("run", Limit { requests: SPENT + LEFT, ..Limit::default() }, spent).await?;
    let mut gateways: Vec<Gateway> = Vec::new();
    for instance in instances {
        gateways.push(bed.gateway(instance).await?);
    }
    let token = bed.token(&run, Audience::Model);

    let answers = join_all((0..CALLS).map(|number| {
        let (gateway, token) = (&gateways[number % gateways.len()], &token);
        async move {
            let answer = gateway.chat(token, &request_body(MODEL, &format!("call {number}"), number % 3 == 0)).await?;
            let (status, retry) = (answer.status().as_u16(), answer.headers().get("x-should-retry").cloned());
            anyhow::Ok((status, retry, answer.text().await?))
        }
    }))
    .await
    .into_iter()
    .collect::<Result<Vec<_>>>()?;

    let passed = answers.iter().filter(|(status, ..)| *status == 200).count() as i64;
    let refused: Vec<_> = answers.iter().filter(|(status, ..)| *status != 200).collect();
    assert_eq!(passed, LEFT, "{:?}", refused.iter().map(|(status, ..)| status).collect::<Vec<_>>());
    for (status, _, body) in &refused {
        ensure!([403, 429].contains(status), "refused with {status}: {body}");
    }
    assert_eq!(bed.model.model.bill()[&upstream()].requests as i64, LEFT, "what the provider saw");

    // The books are closed once every answer has been settled, which the answers' ends do not wait for.
    let budget = settled(&bed).await?;
    assert_eq!((budget.spent.requests, budget.spent.upstream_attempts, budget.overrun), (SPENT + LEFT, SPENT + LEFT, None));
    for gateway in &gateways {
        let late = gateway.chat(&token, &request_body(MODEL, "late", false)).await?;
        assert_eq!(
            (late.status().as_u16(), late.headers().get("x-should-retry").map(|value| value.as_bytes())),
            (403, Some(&b"false"[..]))
        );
        let body: serde_json::Value = late.json().await?;
        assert_eq!(
            (&body["error"]["code"], &body["error"]["type"]),
            (&"model_request_budget_exhausted".into(), &"insufficient_quota".into())
        );
    }
    assert_eq!(bed.model.model.bill()[&upstream()].requests as i64, LEFT);
    Ok(())
}

async fn settled(bed: &Bed) -> Result<agentrun_crds::budget::Budget> {
    let runs = kube::Api::<agentrun_crds::AgentRun>::namespaced(bed.client.clone(), &bed.team);
    let empty = |run: &agentrun_crds::AgentRun| {
        let budget = run.status.as_ref().and_then(|status| status.budget.as_ref());
        budget.is_some_and(|budget| budget.reservations.is_empty())
    };
    let run = agentrun_e2e::node::until(&runs, "run", agentrun_e2e::node::Within::Short, "nothing is reserved", empty).await?;
    run.status.and_then(|status| status.budget).context("a budget")
}
