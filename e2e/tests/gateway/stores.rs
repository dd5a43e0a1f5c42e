//! Two gateways that share a database and a bucket: what one has taken, the other has, also when the one is killed.

use std::time::Duration;

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun, upstream};
use agentrun_protocol::event::{AppendRequest, AppendResponse, Event, EventType, NewEvent};
use agentrun_protocol::routes;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::leases::{ask, budget, settled};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_gateway_has_taken_the_other_has_also_after_it_was_killed() {
    let _turn = super::turn::beside().await;
    shared().await.unwrap();
}

async fn shared() -> Result<()> {
    let bed = Bed::start_with_shared_stores(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: 10, ..Limit::default() }, Spent::default()).await?;
    let reader = bed.reader("reader").await?;
    let (mut a, b) = (bed.gateway("a").await?, bed.gateway("b").await?);

    let mut follower = b.http.get(url(&bed, &b, &run, "events?follow=true")).bearer_auth(&reader).send().await?.error_for_status()?;
    let mut seqs = Vec::new();
    for number in 0..20 {
        seqs.push(append(&bed, [&a, &b][number % 2], &run, &number.to_string()).await?);
    }
    let mut lines = String::new();
    let followed = async {
        while notes(&lines)?.len() < 20 {
            lines.push_str(&String::from_utf8(follower.chunk().await?.context("the stream has ended")?.to_vec())?);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, followed).await.context("following through the other gateway")??;
    let texts: Vec<String> = notes(&lines)?.iter().map(|event| event.data["text"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(texts, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());

    let content = b"an artifact of some bytes".to_vec();
    let digest = upload(&bed, &a, &run, content.clone()).await?;
    let down = b.http.get(url(&bed, &b, &run, &format!("artifacts/{digest}"))).bearer_auth(&reader).send().await?.error_for_status()?;
    assert_eq!(down.bytes().await?, content);

    let action = json!({"action": {"tool": "run_command", "argv": ["echo", "shown by both"]}});
    let asking = a.http.post(format!("{}{}", a.url, routes::APPROVALS)).bearer_auth(bed.token(&run, Audience::Approvals)).json(&action);
    let id = asking.send().await?.error_for_status()?.json::<Value>().await?["id"].as_i64().context("an id")?;
    let mut shown = Vec::new();
    for gateway in [&a, &b] {
        let asking = gateway.http.get(url(&bed, gateway, &run, &format!("approvals/{id}"))).bearer_auth(&reader);
        shown.push(asking.send().await?.error_for_status()?.json::<Value>().await?);
    }
    ensure!(shown[0]["shown"].as_str().is_some_and(|text| text.contains("shown by both")), "{}", shown[0]);
    assert_eq!(shown[0], shown[1]);

    a.crash()?;
    assert_eq!(append(&bed, &b, &run, "0").await?, seqs[0], "a key has its number, whoever took it");
    let log = b.http.get(url(&bed, &b, &run, "events?follow=false")).bearer_auth(&reader).send().await?.error_for_status()?.text().await?;
    let log = events(&log)?;
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=log.len() as i64).collect::<Vec<_>>());
    for (number, seq) in seqs.iter().enumerate() {
        let event = log.iter().find(|event| event.seq == *seq).context("an acknowledged event is gone")?;
        assert_eq!(event.data["text"], number.to_string());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_is_exact_and_a_killed_gateways_slice_is_spent() {
    let _turn = super::turn::beside().await;
    exact().await.unwrap();
}

async fn exact() -> Result<()> {
    const LIMIT: i64 = 200;
    let bed = Bed::start_with_shared_stores(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: LIMIT, ..Limit::default() }, Spent::default()).await?;
    let mut gateways = [bed.gateway("a").await?, bed.gateway("b").await?];
    let statuses = join_all((0..60).map(|number| insist(&bed, &gateways[number % 2], &run, number))).await;
    ensure!(statuses.into_iter().collect::<Result<Vec<_>>>()?.iter().all(|status| *status == 200), "there is room for all of these");
    settled(&bed, "run").await?;
    for number in 60..66 {
        ensure!(ask(&bed, &gateways[0], &run, number).await? == 200, "call {number}");
    }
    gateways[0].crash()?;
    // It comes back with its folder: what was used of its slice is booked, and no more.
    gateways[0] = bed.gateway("a").await?;
    assert_eq!(settled(&bed, "run").await?.spent.requests, 66);
    let statuses = join_all((66..300).map(|number| insist(&bed, &gateways[number % 2], &run, number))).await;
    let passed = statuses.into_iter().collect::<Result<Vec<u16>>>()?.into_iter().filter(|status| *status == 200).count() as i64;
    let budget = settled(&bed, "run").await?;
    let billed = bed.model.model.bill()[&upstream()].requests as i64;
    assert_eq!((budget.spent.requests, billed, 66 + passed), (LIMIT, LIMIT, LIMIT));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_is_told_what_another_gateway_has_spent() {
    let _turn = super::turn::beside().await;
    restored().await.unwrap();
}

async fn restored() -> Result<()> {
    let bed = Bed::start_with_shared_stores(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: 6, ..Limit::default() }, Spent::default()).await?;
    let (mut a, b) = (bed.gateway("a").await?, bed.gateway("b").await?);
    let key = format!("/registry/agentrun.dev/agentruns/{}/run", bed.team);
    // Both know the run as it is in the backup.
    for (number, gateway) in [&a, &b].into_iter().enumerate() {
        ensure!(ask(&bed, gateway, &run, number).await? == 200, "call {number}");
    }
    settled(&bed, "run").await?;
    let backup = bed.server.etcd_get(&key).await?;
    for number in 2..5 {
        ensure!(ask(&bed, &a, &run, number).await? == 200, "call {number}");
    }
    settled(&bed, "run").await?;
    // It is gone, with its last write in the ledger.
    a.terminate()?;
    bed.server.etcd_put(&key, &backup).await?;
    assert_eq!(budget(&bed, "run").await?.spent.requests, 2, "the older state is back");
    ensure!(ask(&bed, &b, &run, 5).await? == 200, "there is room for one more");
    assert_eq!(settled(&bed, "run").await?.spent.requests, 6);
    ensure!(ask(&bed, &b, &run, 6).await? == 403, "the budget was spent a second time");
    let fresh = bed.gateway("c").await?;
    ensure!(ask(&bed, &fresh, &run, 7).await? == 403, "nor does a new gateway admit it");
    Ok(())
}

/// Ask as clients do: what is refused for the moment is asked again.
async fn insist(bed: &Bed, gateway: &Gateway, run: &LiveRun, number: usize) -> Result<u16> {
    let asking = async {
        loop {
            match ask(bed, gateway, run, number).await {
                Ok(429 | 503) => tokio::time::sleep(Duration::from_millis(200)).await, // the pause that the answer asks for, cut short
                other => return other,
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.context("refused for the moment, again and again")?
}

fn url(bed: &Bed, gateway: &Gateway, run: &LiveRun, rest: &str) -> String {
    format!("{}/v1/namespaces/{}/runs/{}/{rest}", gateway.people_url, bed.team, run.name)
}

async fn append(bed: &Bed, gateway: &Gateway, run: &LiveRun, key: &str) -> Result<i64> {
    let event = NewEvent { key: key.into(), kind: EventType::Note, data: json!({"text": key}) };
    let request = gateway.http.post(format!("{}{}", gateway.url, routes::EVENTS)).bearer_auth(bed.token(run, Audience::Events));
    let answer = request.json(&AppendRequest { events: vec![event] }).send().await?.error_for_status()?;
    answer.json::<AppendResponse>().await?.seqs.first().copied().context("a number")
}

async fn upload(bed: &Bed, gateway: &Gateway, run: &LiveRun, content: Vec<u8>) -> Result<String> {
    let hex: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let request = gateway.http.put(format!("{}{}/sha256:{hex}", gateway.url, routes::BLOBS)).bearer_auth(bed.token(run, Audience::Events));
    request.body(content).send().await?.error_for_status()?;
    Ok(format!("sha256:{hex}"))
}

fn events(lines: &str) -> Result<Vec<Event>> {
    let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter(|line| !line.is_empty()).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// The notes among the whole lines so far.
fn notes(lines: &str) -> Result<Vec<Event>> {
    Ok(events(lines)?.into_iter().filter(|event| event.kind == EventType::Note).collect())
}
