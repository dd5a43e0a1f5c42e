//! Fifty runs of a thousand events at once, with readers that drop the connection and resume: what each reader got is the log.

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun};
use agentrun_protocol::event::{AppendRequest, Event, EventType, NewEvent};
use agentrun_protocol::routes;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::json;

const RUNS: usize = 50;
const EVENTS: usize = 1_000;
const BATCH: usize = 50;
/// What is in texts that would break a frame, if anything did.
const HOSTILE: [&str; 6] = ["\r\n\r\ndata: x", "\u{2028}\u{2029}", "\u{1b}[2J", "id: 7\n", "\0", "\u{202e}"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_drop_and_resume_get_the_whole_log() {
    let _turn = super::turn::alone().await;
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let gateway = bed.gateway("a").await?;
    let reader = bed.reader("reader").await?;
    let mut runs = Vec::new();
    for number in 0..RUNS {
        runs.push(bed.run(&format!("run-{number}"), Limit { requests: 1, ..Limit::default() }, Spent::default()).await?);
    }
    let (bed, gateway, reader) = (&bed, &gateway, &reader);
    try_join_all(runs.iter().enumerate().map(|(number, run)| async move {
        let seed = number as u64 + 1;
        let (_, got) = tokio::try_join!(append(bed, gateway, run), follow(bed, gateway, reader, run, seed))?;
        let log = page(bed, gateway, reader, run, 0).await?;
        ensure!(log.iter().map(|event| event.seq).eq(1..=log.len() as i64), "{}: the log is not dense", run.name);
        let notes = log.iter().filter(|event| event.kind == EventType::Note);
        ensure!(
            notes.map(|event| event.data["text"].as_str().unwrap_or_default()).eq((0..EVENTS)
                .map(|at| text(run, at))
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str)),
            "{}: an event is missing or another",
            run.name
        );
        ensure!(log.starts_with(&got), "{}: what the reader got is not the log", run.name);
        anyhow::Ok(())
    }))
    .await?;
    Ok(())
}

async fn append(bed: &Bed, gateway: &Gateway, run: &LiveRun) -> Result<()> {
    let token = bed.token(run, Audience::Events);
    let event = |at: usize| NewEvent { key: at.to_string(), kind: EventType::Note, data: json!({ "text": text(run, at) }) };
    for first in (0..EVENTS).step_by(BATCH) {
        let request = AppendRequest { events: (first..first + BATCH).map(event).collect() };
        let url = format!("{}{}", gateway.url, routes::EVENTS);
        gateway.http.post(url).bearer_auth(&token).json(&request).send().await?.error_for_status()?;
    }
    Ok(())
}

fn text(run: &LiveRun, at: usize) -> String {
    format!("{} {at} {}", run.name, HOSTILE[at % HOSTILE.len()])
}

/// Follow to the last note, hanging up after a random number of events each time.
async fn follow(bed: &Bed, gateway: &Gateway, reader: &str, run: &LiveRun, seed: u64) -> Result<Vec<Event>> {
    let (mut got, mut random) = (Vec::<Event>::new(), seed);
    let mut notes = 0;
    while notes < EVENTS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let patience = 1 + (random >> 33) as usize % 400;
        let after = got.last().map_or(0, |event| event.seq);
        let url = format!("{}&after={after}", address(bed, gateway, run, "follow=true"));
        let mut answer = gateway.http.get(url).bearer_auth(reader).send().await?.error_for_status()?;
        let (mut pending, mut taken) = (Vec::new(), 0);
        while taken < patience && notes < EVENTS {
            let chunk = answer.chunk().await?.context("the stream ended before the log did")?;
            pending.extend_from_slice(&chunk);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                if taken < patience && notes < EVENTS && line.len() > 1 {
                    let event: Event = serde_json::from_slice(&line).context("a line is an event")?;
                    notes += usize::from(event.kind == EventType::Note);
                    got.push(event);
                    taken += 1;
                }
            }
        }
    }
    Ok(got)
}

async fn page(bed: &Bed, gateway: &Gateway, reader: &str, run: &LiveRun, after: i64) -> Result<Vec<Event>> {
    let url = format!("{}&after={after}", address(bed, gateway, run, "follow=false"));
    let text = gateway.http.get(url).bearer_auth(reader).send().await?.error_for_status()?.text().await?;
    text.split('\n').filter(|line| !line.is_empty()).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn address(bed: &Bed, gateway: &Gateway, run: &LiveRun, query: &str) -> String {
    format!("{}/v1/namespaces/{}/runs/{}/events?{query}", gateway.people_url, bed.team, run.name)
}
