//! The gateway's CPU per chat/completions call, against a bare proxy: both are given one core, warm connections and the same
//! 1 KB requests in turns. CPU is what the kernel booked for the process, so waiting for the API server or the model is free.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, MODEL, upstream};
use agentrun_protocol::routes::CHAT_COMPLETIONS;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn, request_body};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::report::{Row, median};

const WARM: usize = 200;
const ROUNDS: usize = 10;
const CALLS: usize = 200;

/// Measure, and give the rows.
pub async fn measure() -> Result<Vec<Row>> {
    let bed = Bed::start(Script::new("", [Turn::say("Nothing to do.")])).await?;
    let run = bed.run("bench", Limit { requests: 1_000_000, ..Limit::default() }, Spent::default()).await?;
    let gateway = bed.gateway("bench").await?;
    let proxy = Proxy::start(bed.model.url.trim_start_matches("http://").parse()?).await?;
    for pid in [gateway.pid(), proxy.child.id()] {
        let pinned =
            Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", "0", &pid.to_string()]).stdout(Stdio::null()).status()?;
        ensure!(pinned.success(), "taskset could not pin process {pid}");
    }
    let token = bed.token(&run, Audience::Model);
    let ours = Target {
        pid: gateway.pid(),
        http: &gateway.http,
        url: format!("{}{CHAT_COMPLETIONS}", gateway.url),
        token: &token,
        body: body(MODEL),
    };
    let bare =
        Target { pid: proxy.child.id(), http: &proxy.http, url: proxy.url.clone(), token: "sk-provider-key", body: body(&upstream()) };

    for target in [&ours, &bare] {
        target.call(WARM).await?;
    }
    let (mut gateway_cpu, mut proxy_cpu, mut gateway_time, mut proxy_time) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let (cpu, time) = ours.call(CALLS).await?;
        gateway_cpu.push(cpu);
        gateway_time.push(time);
        let (cpu, time) = bare.call(CALLS).await?;
        proxy_cpu.push(cpu);
        proxy_time.push(time);
    }
    // The kernel books CPU in ticks of 10 ms, so a round of the proxy is a few ticks: the mean of all rounds is the number.
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    Ok(vec![
        Row::compared("gateway: CPU per call of 1 KB, over a bare hyper proxy", "us", mean(&gateway_cpu), mean(&proxy_cpu), None),
        Row::compared("gateway: time per call of 1 KB, over a bare hyper proxy", "us", median(gateway_time), median(proxy_time), None),
    ])
}

fn body(model: &str) -> Value {
    let mut body = request_body(model, "", false);
    let padding = 1024 - body.to_string().len();
    body["messages"][0]["content"] = "x".repeat(padding).into();
    body
}

struct Target<'a> {
    pid: u32,
    http: &'a reqwest::Client,
    url: String,
    token: &'a str,
    body: Value,
}

impl Target<'_> {
    /// So many calls, one after the other; CPU and time of one, in microseconds.
    async fn call(&self, calls: usize) -> Result<(f64, f64)> {
        let (cpu, started) = (cpu_time(self.pid)?, Instant::now());
        for _ in 0..calls {
            let answer = self.http.post(&self.url).bearer_auth(self.token).json(&self.body).send().await?;
            let status = answer.status();
            let text = answer.text().await?;
            ensure!(status.is_success() && text.contains("Nothing to do."), "{}: {status} {text}", self.url);
        }
        let each = |time: Duration| time.as_secs_f64() * 1e6 / calls as f64;
        Ok((each(cpu_time(self.pid)? - cpu), each(started.elapsed())))
    }
}

/// utime + stime of a process with all its threads, from `/proc/<pid>/stat`, in the kernel's ticks of 1/100 s.
fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name stands in parentheses and may hold blanks; utime and stime are fields 14 and 15 of all.
    let (_, after) = stat.rsplit_once(") ").context("a stat line")?;
    let field = |number: usize| -> Result<u64> { Ok(after.split(' ').nth(number - 3).context("a stat line")?.parse()?) };
    Ok(Duration::from_millis(10 * (field(14)? + field(15)?)))
}

struct Proxy {
    child: Child,
    http: reqwest::Client,
    url: String,
    _certificates: tempfile::TempDir,
}

impl Proxy {
    async fn start(upstream: SocketAddr) -> Result<Proxy> {
        let certificates = tempfile::tempdir()?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        std::fs::write(certificates.path().join("tls.crt"), made.cert.pem())?;
        std::fs::write(certificates.path().join("tls.key"), made.signing_key.serialize_pem())?;
        let address = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let child = Command::new(std::env::current_exe()?)
            .args(["proxy", "--listen", &address.to_string(), "--upstream", &upstream.to_string(), "--certificates"])
            .arg(certificates.path())
            .spawn()?;
        let authority = reqwest::Certificate::from_pem(made.cert.pem().as_bytes())?;
        let http = reqwest::Client::builder().tls_certs_only([authority]).resolve("localhost", address).build()?;
        let proxy =
            Proxy { child, http, url: format!("https://localhost:{}{CHAT_COMPLETIONS}", address.port()), _certificates: certificates };
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "the bare proxy does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(proxy)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
