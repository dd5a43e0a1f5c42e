//! The exchange against a real TokenReview and real Pods: its reply lost and asked for again, a second holder, and every
//! incomplete set of credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::{AgentRun, names};
use agentrun_e2e::exchange::Runner;
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun};
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::exchange::{ExchangeRequest, ExchangeResponse};
use agentrun_protocol::routes;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const AUDIENCE: &[&str] = &[names::EXCHANGE_AUDIENCE];

async fn bed() -> Result<Bed> {
    Bed::start(Script::new("", [Turn::say("yes")])).await
}

fn limit() -> Limit {
    Limit { requests: 10, ..Limit::default() }
}

async fn pod_token(bed: &Bed, run: &LiveRun) -> Result<String> {
    let pod = Some((run.pod.name.as_str(), run.pod.uid.as_str()));
    bed.server.token(&bed.team, names::SANDBOX_SERVICE_ACCOUNT, AUDIENCE, pod).await
}

async fn post(gateway: &Gateway, request: &ExchangeRequest) -> Result<reqwest::Response> {
    Ok(gateway.http.post(format!("{}{}", gateway.url, routes::EXCHANGE)).json(request).send().await?)
}

fn exchanged(run: &AgentRun) -> bool {
    run.status.as_ref().is_some_and(|status| status.exchange.is_some())
}

/// A relay that lets a whole TLS handshake and one request through, and then swallows everything that comes back.
struct Swallower {
    address: std::net::SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Swallower {
    async fn before(gateway: &Gateway) -> Result<Swallower> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, upstream) = (listener.local_addr()?, gateway.address);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, upstream));
            }
        });
        Ok(Swallower { address, task })
    }
}

impl Drop for Swallower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(client: TcpStream, upstream: std::net::SocketAddr) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(upstream).await?.into_split();
    let swallowing = Arc::new(AtomicBool::new(false));
    let swallow = swallowing.clone();
    let up = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return to_server.shutdown().await;
            }
            // TLS records: 23 is application data. The handshake's last message of the client is shorter than 300 bytes,
            // a request with two credentials is longer.
            if buffer[..read].windows(5).any(|head| head[0] == 23 && head[1..3] == [3, 3] && u16::from_be_bytes([head[3], head[4]]) > 600) {
                swallow.store(true, Ordering::SeqCst);
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let down = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok::<(), std::io::Error>(());
            }
            if !swallowing.load(Ordering::SeqCst) {
                to_client.write_all(&buffer[..read]).await?;
            }
        }
    };
    tokio::try_join!(up, down).map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_asked_for_again_and_a_second_holder_ends_the_run() {
    let _turn = super::turn::beside().await;
    Box::pin(lost_reply()).await.unwrap();
}

async fn lost_reply() -> Result<()> {
    let bed = bed().await?;
    let run = bed.run_before_exchange("run", limit(), Spent::default()).await?;
    let gateway = bed.gateway("a").await?;
    let token = pod_token(&bed, &run).await?;
    let runner = Runner::new()?;
    let request = runner.request(&run.ticket, &token);

    let relay = Swallower::before(&gateway).await?;
    let server = format!("agentrun-gateway.{}.svc", bed.system);
    let through = bed.client_through(relay.address)?;
    let asking = tokio::spawn({
        let (url, request) = (format!("https://{server}:{}{}", relay.address.port(), routes::EXCHANGE), request.clone());
        async move { through.post(url).json(&request).send().await.map(|answer| answer.status()) }
    });
    let runs: Api<AgentRun> = Api::namespaced(bed.client.clone(), &bed.team);
    let after = until(&runs, "run", Within::Short, "the exchange is written", exchanged).await?;
    ensure!(!asking.is_finished(), "the reply came through: {:?}", asking.await);
    asking.abort();

    // The same key again: no incident, the same tokens each time, and the exchange stands as it was written.
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let answer = post(&gateway, &request).await?;
        ensure!(answer.status().is_success(), "a repeat is refused: {}", answer.text().await?);
        let answer: ExchangeResponse = answer.json().await?;
        tokens.push([answer.model_token, answer.events_token, answer.approvals_token]);
    }
    assert_eq!(tokens[0], tokens[1]);
    let exchange = |run: &AgentRun| run.status.as_ref().and_then(|status| status.exchange.clone());
    assert_eq!(exchange(&bed.get("run").await?), exchange(&after));
    let written = exchange(&after).context("just seen")?;
    assert_eq!((written.public_key, written.nonce), (URL_SAFE_NO_PAD.encode(runner.public_key()), URL_SAFE_NO_PAD.encode(runner.nonce())));
    let job = async || -> Result<u16> {
        Ok(gateway.http.get(format!("{}{}", gateway.url, routes::JOB)).bearer_auth(&tokens[0][1]).send().await?.status().as_u16())
    };
    assert_eq!(job().await?, 200);

    // Good credentials with another key.
    let thief = post(&gateway, &Runner::new()?.request(&run.ticket, &token)).await?;
    let (status, text) = (thief.status().as_u16(), thief.text().await?);
    ensure!((400..500).contains(&status) && !text.contains("ar1."), "a second holder got {status} {text}");
    ensure!(exchange(&bed.get("run").await?).is_some_and(|exchange| exchange.compromised), "the run is not marked");
    assert_eq!(job().await?, 401, "the first holder's tokens still work");
    ensure!(!post(&gateway, &request).await?.status().is_success(), "a compromised run hands out tokens");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_less_than_both_credentials_is_refused_and_writes_nothing() {
    let _turn = super::turn::beside().await;
    incomplete().await.unwrap();
}

async fn incomplete() -> Result<()> {
    let bed = bed().await?;
    let run = bed.run_before_exchange("run", limit(), Spent::default()).await?;
    let other = bed.run_before_exchange("other", limit(), Spent::default()).await?;
    let gone = bed.run_before_exchange("gone", limit(), Spent::default()).await?;
    let gateway = bed.gateway("a").await?;
    let (token, others) = (pod_token(&bed, &run).await?, pod_token(&bed, &other).await?);
    let gones = pod_token(&bed, &gone).await?;
    Api::<k8s_openapi::api::core::v1::Pod>::namespaced(bed.client.clone(), &bed.team)
        .delete(&gone.pod.name, &DeleteParams::default().grace_period(0))
        .await?;
    let account = names::SANDBOX_SERVICE_ACCOUNT;
    let bound = Some((run.pod.name.as_str(), run.pod.uid.as_str()));
    let unbound = bed.server.token(&bed.team, account, AUDIENCE, None).await?;
    let default_audience = bed.server.token(&bed.team, account, &[], bound).await?;
    let people = bed.server.token(&bed.team, account, &[names::PEOPLE_AUDIENCE], bound).await?;
    let runner = Runner::new()?;
    let good = serde_json::to_value(runner.request(&run.ticket, &token))?;
    let signed = |ticket: &[u8], token: &str| serde_json::to_value(runner.request(ticket, token));
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let anothers = serde_json::to_value(Runner::new()?.request(&run.ticket, &token))?;

    for (name, body) in [
        ("another run's ticket", signed(&other.ticket, &token)?),
        ("another run's Pod token", signed(&run.ticket, &others)?),
        ("a ticket nobody made", signed(&[5; 32], &token)?),
        ("a short ticket", signed(&run.ticket[..31], &token)?),
        ("no ticket", signed(&[], &token)?),
        ("a Pod token without a Pod", signed(&run.ticket, &unbound)?),
        ("a Pod token of the default audience", signed(&run.ticket, &default_audience)?),
        ("a Pod token for the people listener", signed(&run.ticket, &people)?),
        ("a tampered Pod token", signed(&run.ticket, &token.replace('a', "b"))?),
        ("no Pod token", signed(&run.ticket, "")?),
        ("the token of a Pod that is gone", signed(&gone.ticket, &gones)?),
        ("another key's signature", with("signature", anothers["signature"].clone())),
        ("another key", with("publicKey", anothers["publicKey"].clone())),
        ("another nonce", with("nonce", anothers["nonce"].clone())),
        ("an empty signature", with("signature", json!(""))),
        ("a wall missing", with("walls", json!(["nonRoot"]))),
        ("no walls", with("walls", json!([]))),
        ("a field too many", with("admin", json!(true))),
        ("a number for a ticket", with("ticket", json!(7))),
        ("null", Value::Null),
    ] {
        let url = format!("{}{}", gateway.url, routes::EXCHANGE);
        let answer = gateway.http.post(url).json(&body).send().await?;
        let (status, text) = (answer.status().as_u16(), answer.text().await?);
        ensure!((400..500).contains(&status) && !text.contains("ar1."), "{name}: {status} {text}");
        let credentials = ["ticket", "Pod", "key", "signature", "nonce"].iter().any(|word| name.contains(word));
        if credentials && !name.contains("number") && !name.contains("short") && !name.contains("no ticket") && !name.contains("empty") {
            ensure!(status == 401, "{name} is answered with {status}: {text}");
        }
        ensure!(!text.contains(&token) && !text.contains(&URL_SAFE_NO_PAD.encode(&run.ticket)), "{name}: the answer repeats a credential");
        for run in ["run", "other", "gone"] {
            ensure!(!exchanged(&bed.get(run).await?), "{name} wrote an exchange into {run}");
        }
    }
    // And the same request, complete, is taken.
    let answer = post(&gateway, &runner.request(&run.ticket, &token)).await?;
    ensure!(answer.status().is_success(), "the right credentials are refused: {}", answer.text().await?);
    let log = gateway.log();
    for secret in [token.as_str(), others.as_str(), &URL_SAFE_NO_PAD.encode(&run.ticket), "ar1."] {
        ensure!(!log.contains(secret), "the gateway's log holds a credential");
    }
    Ok(())
}
