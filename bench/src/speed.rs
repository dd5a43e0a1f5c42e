//! The model proxy's speed against a bare hyper proxy from the same lock file, and nginx and LiteLLM where they are installed. Each
//! is given the same one core from its start on, its own warm connections and the same requests, in turns; the direct call to the
//! model is what "added" starts from. CPU is what the kernel booked for the process, so waiting for the API server or the model
//! is free.

use std::time::{Duration, Instant};

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, MODEL, upstream};
use agentrun_protocol::routes::CHAT_COMPLETIONS;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::references::{Proxy, pin, unpin};
use crate::report::{Row, median};

const ROUNDS: usize = 10;
const CALLS: usize = 200;
/// Over all connections together.
const PARALLEL_CALLS: usize = 1600;
const CONNECTIONS: usize = 8;
const STREAMS: usize = 10_000;
/// Streams at once on a budget that has fewer left.
const CROWD: usize = 256;
const LEFT: i64 = 16;
/// A chat of 1 KB, and an agent's of 95 KB with 200 messages.
const SMALL: usize = 1024;
const LARGE: usize = 95 * 1024;

/// One thing that calls are sent to.
struct Target {
    name: &'static str,
    /// `None`: the model itself.
    pid: Option<u32>,
    clients: Vec<reqwest::Client>,
    url: String,
    token: String,
    model: String,
    /// It gets one of so many calls, since it is that much slower.
    thinned: usize,
}

/// What calls took, each in microseconds.
#[derive(Clone, Copy, Default)]
struct Took {
    cpu: f64,
    median: f64,
    first_byte: f64,
    per_second: f64,
}

/// Measure, and give the rows.
pub async fn measure() -> Result<Vec<Row>> {
    let bed = Bed::start(Script::new("", [Turn::say("Nothing to do.")])).await?;
    let run = bed.run("bench", Limit { requests: 1_000_000, ..Limit::default() }, Spent::default()).await?;
    let model = bed.model.url.trim_start_matches("http://").parse()?;
    // What is started from here on has one core, and knows it.
    pin(std::process::id())?;
    let gateway = bed.gateway("bench").await?;
    let mut proxies = vec![Proxy::hyper(model).await?];
    proxies.extend(Proxy::nginx(model).await?);
    proxies.extend(Proxy::litellm(model, &upstream()).await?);
    unpin(std::process::id())?;
    let idle = resident(gateway.pid())?;
    let ours = Target {
        name: "gateway",
        pid: Some(gateway.pid()),
        clients: (0..CONNECTIONS).map(|_| bed.client_through(gateway.address)).collect::<Result<_>>()?,
        url: format!("{}{CHAT_COMPLETIONS}", gateway.url),
        token: bed.token(&run, Audience::Model),
        model: MODEL.into(),
        thinned: 1,
    };
    let clients = (0..CONNECTIONS).map(|_| Ok(reqwest::Client::builder().tls_certs_only([]).build()?)).collect::<Result<_>>()?;
    let mut targets = vec![ours, provided("the model", None, clients, bed.model.completions(), 1)];
    for proxy in &proxies {
        let clients = (0..CONNECTIONS).map(|_| proxy.client()).collect::<Result<_>>()?;
        targets.push(provided(proxy.name, Some(proxy.pid()), clients, proxy.url.clone(), proxy.thinned));
    }
    let one = in_turns(&targets, 1, SMALL, false, CALLS).await?;
    let eight = in_turns(&targets, CONNECTIONS, SMALL, false, PARALLEL_CALLS).await?;
    let large = in_turns(&targets, 1, LARGE, false, CALLS / 4).await?;
    let streams = in_turns(&targets, 1, SMALL, true, CALLS / 4).await?;
    targets[0].calls(CONNECTIONS, SMALL, true, STREAMS).await?;

    let added = |took: &[Took], at: usize| took[at].median - took[1].median;
    let mut rows = Vec::new();
    for (at, reference) in targets.iter().enumerate().skip(2) {
        let bare = at == 2;
        let over = |what: &str| format!("gateway: {what}, over {}", reference.name);
        let target = |number: f64| bare.then_some(number);
        rows.extend([
            Row::compared(&over("CPU per call of 1 KB"), "us", one[0].cpu, one[at].cpu, None).target(target(1.3)),
            Row::compared(&over("added p50, 1 KB, one connection"), "us", added(&one, 0), added(&one, at), None).target(target(1.3)),
            Row::compared(&over("CPU per call, 8 connections"), "us", eight[0].cpu, eight[at].cpu, None).target(Some(if bare {
                1.3
            } else {
                1.2
            })),
            Row::compared(
                &over("time per call of one core, 8 connections"),
                "us",
                1e6 / eight[0].per_second,
                1e6 / eight[at].per_second,
                None,
            )
            .target(target(1.25)),
            Row::compared(&over("added p50, 95 KB"), "us", added(&large, 0), added(&large, at), None).target(target(2.2)),
        ]);
    }
    let first = (streams[0].first_byte - streams[1].first_byte) / 1e3;
    rows.push(Row::compared("gateway: first byte of a stream, added, over 0.3 ms", "ms", first, 0.3, None).target(Some(1.0)));
    rows.push(Row::compared("gateway: memory when idle, over 15 MB", "MB", idle, 15.0, None).target(Some(1.0)));
    let name = format!("gateway: memory after {} streams, over 30 MB", STREAMS + ROUNDS * CALLS / 4);
    rows.push(Row::compared(&name, "MB", resident(gateway.pid())?, 30.0, None).target(Some(1.0)));
    let (passed, billed) = crowd(&bed, &gateway).await?;
    let limit = format!("gateway: passed of {CROWD} streams at once, over {LEFT} left");
    rows.push(Row::compared(&limit, "", passed as f64, LEFT as f64, Some(1.0)));
    rows.push(Row::compared("gateway: the same as the provider counted them", "", billed as f64, LEFT as f64, Some(1.0)));
    Ok(rows)
}

/// How many of a crowd of streams pass where few are left, and how many of them the provider saw.
async fn crowd(bed: &Bed, gateway: &Gateway) -> Result<(usize, u64)> {
    let run = bed.run("crowd", Limit { requests: LEFT, ..Limit::default() }, Spent::default()).await?;
    let (token, body) = (bed.token(&run, Audience::Model), body(MODEL, SMALL, true));
    let billed = || bed.model.model.bill().values().map(|line| line.requests).sum::<u64>();
    let before = billed();
    let answers = futures::future::join_all((0..CROWD).map(|_| async {
        let answer = gateway.chat(&token, &body).await?;
        let passed = answer.status().is_success();
        ensure!(!passed || answer.text().await?.ends_with("[DONE]\n\n"), "a stream that passed was cut");
        Ok(passed)
    }))
    .await;
    let passed = answers.into_iter().collect::<Result<Vec<_>>>()?.into_iter().filter(|passed| *passed).count();
    Ok((passed, billed() - before))
}

/// The same calls, as the provider takes them.
fn provided(name: &'static str, pid: Option<u32>, clients: Vec<reqwest::Client>, url: String, thinned: usize) -> Target {
    Target { name, pid, clients, url, token: "sk-provider-key".into(), model: upstream(), thinned }
}

/// Rounds of every target in turns; the mean of CPU and throughput, the median of the rounds' medians.
async fn in_turns(targets: &[Target], connections: usize, bytes: usize, stream: bool, calls: usize) -> Result<Vec<Took>> {
    let mut rounds: Vec<Vec<Took>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 0..=ROUNDS {
        for (target, took) in targets.iter().zip(&mut rounds) {
            let measured = target.calls(connections, bytes, stream, (calls / target.thinned).max(connections)).await?;
            // The first is for warming.
            if round > 0 {
                took.push(measured);
            }
        }
    }
    let mean = |took: &[Took], of: fn(&Took) -> f64| took.iter().map(of).sum::<f64>() / took.len() as f64;
    let middle = |took: &[Took], of: fn(&Took) -> f64| median(took.iter().map(of).collect());
    Ok(rounds
        .iter()
        .map(|took| Took {
            // The kernel books CPU in ticks of 10 ms, so a round is a few ticks.
            cpu: mean(took, |took| took.cpu),
            median: middle(took, |took| took.median),
            first_byte: middle(took, |took| took.first_byte),
            per_second: mean(took, |took| took.per_second),
        })
        .collect())
}

impl Target {
    /// So many calls over so many connections, on each one after the other.
    async fn calls(&self, connections: usize, bytes: usize, stream: bool, calls: usize) -> Result<Took> {
        let body = body(&self.model, bytes, stream);
        let (cpu, started) = (self.cpu()?, Instant::now());
        let each = self.clients.iter().take(connections).map(|client| async {
            let mut times = Vec::with_capacity(calls / connections);
            for _ in 0..calls / connections {
                times.push(self.call(client, &body).await?);
            }
            anyhow::Ok(times)
        });
        let times: Vec<(f64, f64)> = futures::future::try_join_all(each).await?.into_iter().flatten().collect();
        let (elapsed, count) = (started.elapsed().as_secs_f64(), times.len() as f64);
        Ok(Took {
            cpu: (self.cpu()? - cpu).as_secs_f64() * 1e6 / count,
            median: median(times.iter().map(|(whole, _)| *whole).collect()),
            first_byte: median(times.iter().map(|(_, first)| *first).collect()),
            per_second: count / elapsed,
        })
    }

    /// The whole answer, and its first byte, after so many microseconds.
    async fn call(&self, client: &reqwest::Client, body: &Value) -> Result<(f64, f64)> {
        let sent = Instant::now();
        let mut answer = client.post(&self.url).bearer_auth(&self.token).json(body).send().await?;
        let status = answer.status();
        let mut text = answer.chunk().await?.unwrap_or_default().to_vec();
        let first = sent.elapsed();
        while let Some(chunk) = answer.chunk().await? {
            text.extend_from_slice(&chunk);
        }
        let whole = sent.elapsed();
        ensure!(
            status.is_success() && text.ends_with(if body["stream"] == true { b"[DONE]\n\n" } else { b"}" }),
            "{}: {status}",
            self.name
        );
        Ok((whole.as_secs_f64() * 1e6, first.as_secs_f64() * 1e6))
    }

    fn cpu(&self) -> Result<Duration> {
        self.pid.map_or(Ok(Duration::ZERO), cpu_time)
    }
}

fn body(model: &str, bytes: usize, stream: bool) -> Value {
    let mut body = request_body(model, "", stream);
    let messages = if bytes > SMALL { 200 } else { 1 };
    let message = body["messages"][0].clone();
    let padding = bytes.saturating_sub(body.to_string().len() + (messages - 1) * (message.to_string().len() + 1)) / messages;
    body["messages"] = (0..messages)
        .map(|_| {
            let mut message = message.clone();
            message["content"] = "x".repeat(padding).into();
            message
        })
        .collect();
    body
}

/// utime + stime of a process with all its threads, from `/proc/<pid>/stat`, in the kernel's ticks of 1/100 s.
fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name stands in parentheses and may hold blanks; utime and stime are fields 14 and 15 of all.
    let (_, after) = stat.rsplit_once(") ").context("a stat line")?;
    let field = |number: usize| -> Result<u64> { Ok(after.split(' ').nth(number - 3).context("a stat line")?.parse()?) };
    Ok(Duration::from_millis(10 * (field(14)? + field(15)?)))
}

/// Resident memory in MB.
fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
