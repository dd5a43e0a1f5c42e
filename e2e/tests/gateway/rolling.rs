//! Gateways that are replaced one after the other, as a StatefulSet does it, behind what a Service is to its clients. No stream is
//! cut, no call is refused; what outlasts the drain is cut and charged.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun, MODEL, upstream};
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::routes;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{FaultKind, Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::Api;
use tokio::net::{TcpListener, TcpStream};

/// How late the Service hears of a gateway's readiness. The delay of the gateways is longer.
const HEARS_EVERY: Duration = Duration::from_millis(400);
const ARGUMENTS: [&str; 2] = ["--shutdown-delay-seconds=2", "--drain-seconds=30"];
const STREAMS: usize = 12;

/// Sends each new connection to one of the gateways that were ready when it last asked, and leaves those that are open alone.
struct Service {
    address: SocketAddr,
    gateways: Arc<Mutex<Vec<Endpoint>>>,
}

#[derive(Clone)]
struct Endpoint {
    address: SocketAddr,
    operations: String,
    ready: bool,
}

impl Service {
    async fn start() -> Result<Service> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let service = Service { address: listener.local_addr()?, gateways: Arc::default() };
        tokio::spawn(forward(listener, service.gateways.clone()));
        tokio::spawn(hear(service.gateways.clone()));
        Ok(service)
    }

    fn add(&self, gateway: &Gateway) {
        let endpoint = Endpoint { address: gateway.address, operations: gateway.operations.clone(), ready: true };
        self.gateways.lock().unwrap_or_else(PoisonError::into_inner).push(endpoint);
    }
}

async fn forward(listener: TcpListener, gateways: Arc<Mutex<Vec<Endpoint>>>) {
    let mut turn = 0;
    while let Ok((mut client, _)) = listener.accept().await {
        let ready: Vec<_> = gateways.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|one| one.ready).cloned().collect();
        let Some(chosen) = ready.get(turn % ready.len().max(1)).map(|one| one.address) else { continue };
        turn += 1;
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(chosen).await else { return };
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

async fn hear(gateways: Arc<Mutex<Vec<Endpoint>>>) {
    let http = reqwest::Client::new();
    loop {
        tokio::time::sleep(HEARS_EVERY).await; // as late as a node may hear
        let all = gateways.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for one in all {
            let answer = http.get(format!("{}/readyz", one.operations)).send().await;
            let ready = answer.is_ok_and(|answer| answer.status().is_success());
            let mut gateways = gateways.lock().unwrap_or_else(PoisonError::into_inner);
            gateways.iter_mut().filter(|other| other.address == one.address).for_each(|other| other.ready = ready);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_update_cuts_no_stream_and_refuses_no_call() {
    let _turn = super::turn::alone().await;
    rolled().await.unwrap();
}

async fn rolled() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let slow = Turn::say("word by word ".repeat(40)).with(FaultKind::Slow { ms_per_chunk: 500 });
    bed.model.model.register(Script::new("slow", [slow])).map_err(anyhow::Error::msg)?;
    let run = bed.run("run", Limit { requests: 20_000, ..Limit::default() }, Spent::default()).await?;
    let service = Service::start().await?;
    let mut gateways = Vec::new();
    for instance in ["a", "b"] {
        let gateway = bed.gateway_with(instance, &ARGUMENTS).await?;
        service.add(&gateway);
        gateways.push((instance, gateway));
    }
    let (updated, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    // Of each protocol: connections that are kept and used again and again, and one after the other.
    let callers = (0..6).map(|number| call(&bed, &service, &run, number, &updated, &calls));
    let update = async {
        let (mut streams, mut successors) = (Vec::new(), Vec::new());
        for (instance, mut gateway) in gateways {
            let opened = opened(&bed, &service, &run, &format!("[script:slow] {instance}")).await?;
            streams.extend(opened.into_iter().map(|stream| tokio::spawn(to_the_end(stream))));
            let log = tokio::task::spawn_blocking(move || gateway.terminate().map(|()| gateway.log())).await??;
            ensure!(!log.contains("broken off"), "{instance} cut something: {log}");
            let successor = bed.gateway_with(instance, &ARGUMENTS).await?;
            service.add(&successor);
            successors.push(successor);
        }
        for stream in streams {
            stream.await??;
        }
        updated.store(true, Ordering::Relaxed);
        anyhow::Ok(successors)
    };
    let (_, _successors) = tokio::try_join!(try_join_all(callers), update)?;
    let (calls, streams) = (calls.into_inner(), 2 * STREAMS);
    println!("{calls} calls and {streams} streams over the update of two gateways");
    ensure!(calls > 100, "only {calls} calls were made meanwhile");
    let spent = settled(&bed).await?;
    let bill = bed.model.model.bill()[&upstream()];
    assert_eq!((spent.requests as usize, bill.requests as usize), (calls + streams, calls + streams));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_asked_to_end_is_not_ready_and_serves_for_the_delay() {
    let _turn = super::turn::beside().await;
    delayed().await.unwrap();
}

async fn delayed() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", Limit { requests: 100, ..Limit::default() }, Spent::default()).await?;
    let mut gateway = bed.gateway_with("a", &ARGUMENTS).await?;
    let token = bed.token(&run, Audience::Model);
    let chat = |http: reqwest::Client| {
        let url = format!("{}{}", gateway.url, routes::CHAT_COMPLETIONS);
        http.post(url).bearer_auth(&token).json(&request_body(MODEL, "hello", false)).send()
    };
    let kept = bed.client_builder(gateway.address)?.http1_only().build()?;
    ensure!(chat(kept.clone()).await?.headers().get("connection").is_none(), "a connection is closed for no reason");
    let asked = Instant::now();
    gateway.ask_to_end()?;
    let ready = || async { reqwest::get(format!("{}/readyz", gateway.operations)).await.is_ok_and(|answer| answer.status() == 200) };
    while ready().await {
        ensure!(asked.elapsed() < Duration::from_secs(1), "it is still ready");
    }
    // The connection that it had, and two that are new.
    for http in [kept, bed.client_builder(gateway.address)?.http1_only().build()?, bed.client_through(gateway.address)?] {
        let answer = chat(http).await?;
        ensure!(answer.status() == 200, "refused with {}", answer.status());
        if answer.version() == http::Version::HTTP_11 {
            ensure!(answer.headers().get("connection").is_some_and(|value| value == "close"), "nothing says to come no more");
        }
    }
    ensure!(asked.elapsed() < Duration::from_secs(2), "this took longer than the delay, and so shows nothing");
    gateway.terminate()?;
    let whole = asked.elapsed();
    ensure!(whole > Duration::from_secs(2), "it ended after {whole:?}, before its delay");
    ensure!(whole < Duration::from_secs(20), "it ended after {whole:?}, with nothing to wait for");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlasts_the_drain_is_cut_and_charged_in_full() {
    let _turn = super::turn::beside().await;
    outlasted().await.unwrap();
}

async fn outlasted() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes").with(FaultKind::Endless { ms_per_chunk: 50 })])).await?;
    let run = bed.run("run", Limit { requests: 100, output_tokens: Some(1000), ..Limit::default() }, Spent::default()).await?;
    let mut gateway = bed.gateway_with("a", &["--drain-seconds=1"]).await?;
    let mut stream = gateway.chat(&bed.token(&run, Audience::Model), &request_body(MODEL, "for ever", true)).await?;
    stream.chunk().await?.context("a first chunk")?;
    let reading = tokio::spawn(to_the_end(stream));
    gateway.terminate()?;
    let cut = reading.await?.expect_err("an endless stream came to an end");
    ensure!(gateway.log().contains("broken off"), "{cut:#}; its log: {}", gateway.log());
    let spent = settled(&bed).await?;
    assert_eq!((spent.requests, spent.output_tokens), (1, 64), "{spent:?}");
    Ok(())
}

/// Calls until the update is over, each of which must be answered.
async fn call(bed: &Bed, service: &Service, run: &LiveRun, number: usize, updated: &AtomicBool, calls: &AtomicUsize) -> Result<()> {
    let token = bed.token(run, Audience::Model);
    let mut http = client(bed, service, number)?;
    while !updated.load(Ordering::Relaxed) {
        if number.is_multiple_of(3) {
            http = client(bed, service, number)?;
        }
        let url = format!("https://{}:{}{}", bed.host(), service.address.port(), routes::CHAT_COMPLETIONS);
        let body = request_body(MODEL, &format!("call of {number}"), false);
        let answer = http.post(url).bearer_auth(&token).json(&body).send().await.with_context(|| format!("caller {number}"))?;
        ensure!(answer.status() == 200, "caller {number} was refused with {}", answer.status());
        answer.bytes().await.with_context(|| format!("caller {number}"))?;
        calls.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await; // for the pace of an agent, and no longer load than it takes
    }
    Ok(())
}

/// Streams that have begun, each over a connection of its own.
async fn opened(bed: &Bed, service: &Service, run: &LiveRun, words: &str) -> Result<Vec<reqwest::Response>> {
    let token = bed.token(run, Audience::Model);
    try_join_all((0..STREAMS).map(|number| {
        let token = &token;
        async move {
            let url = format!("https://{}:{}{}", bed.host(), service.address.port(), routes::CHAT_COMPLETIONS);
            let body = request_body(MODEL, &format!("{words} {number}"), true);
            let answer = client(bed, service, number)?.post(url).bearer_auth(token).json(&body).send().await?;
            ensure!(answer.status() == 200, "stream {number} was refused with {}", answer.status());
            Ok(answer)
        }
    }))
    .await
}

async fn to_the_end(mut stream: reqwest::Response) -> Result<()> {
    let mut text = Vec::new();
    while let Some(chunk) = stream.chunk().await.context("a stream was cut")? {
        text.extend_from_slice(&chunk);
    }
    ensure!(text.ends_with(b"data: [DONE]\n\n"), "a stream ended early: {}", String::from_utf8_lossy(&text));
    Ok(())
}

/// HTTP/1.1 and HTTP/2 in turn. As a runner's, it sends again what it is told was not looked at, and nothing else.
fn client(bed: &Bed, service: &Service, number: usize) -> Result<reqwest::Client> {
    let builder = bed.client_builder(service.address)?;
    Ok(if number.is_multiple_of(2) { builder.build()? } else { builder.http1_only().build()? })
}

/// What is spent once nobody holds anything.
async fn settled(bed: &Bed) -> Result<Spent> {
    let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
    let empty = |run: &AgentRun| run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|b| b.reservations.is_empty());
    let run = until(&runs, "run", Within::Medium, "nothing is reserved", empty).await?;
    Ok(run.status.and_then(|status| status.budget).context("a budget")?.spent)
}
