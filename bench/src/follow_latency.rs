//! How long after its append was sent an event is in the hands of a follower, one event at a time, over TLS, with the store's
//! fsync in between. The reference is the time that the append itself took to be acknowledged.

use std::time::Instant;

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::Bed;
use agentrun_protocol::event::{AppendRequest, EventType, NewEvent};
use agentrun_protocol::routes;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result};
use serde_json::json;

use crate::report::{Row, median};

const EVENTS: usize = 300;
/// Milliseconds to a follower that are promised, at the median.
const PROMISED: f64 = 100.0;

/// Measure, and give the rows.
pub async fn measure() -> Result<Vec<Row>> {
    let bed = Bed::start(Script::new("", [Turn::say("Nothing to do.")])).await?;
    let run = bed.run("bench", Limit { requests: 1, ..Limit::default() }, Spent::default()).await?;
    let gateway = bed.gateway("bench").await?;
    let (reader, token) = (bed.reader("reader").await?, bed.token(&run, Audience::Events));
    let follow = format!("{}/v1/namespaces/{}/runs/{}/events?follow=true", gateway.people_url, bed.team, run.name);
    let mut stream = gateway.http.get(follow).bearer_auth(reader).send().await?.error_for_status()?;
    let mut text = String::new();
    let (mut seen, mut acknowledged) = (Vec::new(), Vec::new());
    for number in 0..EVENTS {
        let wanted = format!("event {number}.");
        let event = NewEvent { key: number.to_string(), kind: EventType::Note, data: json!({ "text": wanted }) };
        let append = gateway
            .http
            .post(format!("{}{}", gateway.url, routes::EVENTS))
            .bearer_auth(&token)
            .json(&AppendRequest { events: vec![event] })
            .send();
        let sent = Instant::now();
        let following = async {
            while !text.contains(&wanted) {
                text.push_str(&String::from_utf8_lossy(&stream.chunk().await?.context("the stream ended")?));
            }
            text.clear();
            anyhow::Ok(sent.elapsed())
        };
        let appending = async {
            append.await?.error_for_status()?;
            anyhow::Ok(sent.elapsed())
        };
        let (seen_after, acknowledged_after) = tokio::try_join!(following, appending)?;
        seen.push(seen_after.as_secs_f64() * 1e3);
        acknowledged.push(acknowledged_after.as_secs_f64() * 1e3);
    }
    let seen = median(seen);
    Ok(vec![
        Row::compared("events: append sent to seen by a follower, over acknowledged", "ms", seen, median(acknowledged), None),
        Row::compared("events: append sent to seen by a follower, over the promise", "ms", seen, PROMISED, Some(1.0)),
    ])
}
