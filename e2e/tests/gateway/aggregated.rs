//! The aggregated API through a real API server, with nothing but a kubeconfig and RBAC: events, following for longer than the
//! API server's own limit, refusals that Kubernetes' clients understand; and nobody else is believed.

use std::time::{Duration, Instant};

use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::names::AGGREGATED_GROUP;
use agentrun_e2e::api_server::{Clients, FRONT_PROXY, binary};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun};
use agentrun_e2e::plugin::Plugin;
use agentrun_protocol::routes;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use futures::io::AsyncBufReadExt as _;
use kube::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Longer than the API server lets a GET of a named object go on.
const LONG: Duration = Duration::from_secs(63);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_is_enough() {
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let gateway = bed.gateway("a").await?;
    let run = bed.run("fix-it", Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
    let aggregated = bed.aggregate(&gateway).await?;
    let reads = [(AGGREGATED_GROUP, "*", "get"), ("agentrun.dev", "agentruns", "get")];
    let viewer = bed.account("viewer", &reads).await?;
    tokio::try_join!(
        follows_a_log_for_long(&bed, &gateway, &run, &viewer),
        the_plugin_follows_for_long(&bed, &viewer),
        events_end_before_the_api_server_cuts(&bed, &viewer),
        plain_reads(&bed, &viewer),
        refusals(&bed, &viewer),
        only_the_front_proxy(&bed, &gateway),
    )?;
    aggregated.withdraw().await
}

fn path(bed: &Bed, rest: &str) -> String {
    format!("/apis/{AGGREGATED_GROUP}/v1alpha1/namespaces/{}/agentruns/{rest}", bed.team)
}

fn get(path: &str) -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(Vec::new())?)
}

/// The lines of a stream, until this holds of one or the stream ends.
async fn lines(client: &Client, path: &str, enough: impl Fn(&Value) -> bool) -> Result<Vec<Value>> {
    let mut lines = client.request_stream(get(path)?).await?.lines();
    let mut seen = Vec::new();
    while let Some(line) = futures::TryStreamExt::try_next(&mut lines).await? {
        if line.is_empty() {
            continue; // a sign of life
        }
        seen.push(serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))?);
        if seen.last().is_some_and(&enough) {
            break;
        }
    }
    Ok(seen)
}

async fn follows_a_log_for_long(bed: &Bed, gateway: &Gateway, run: &LiveRun, token: &str) -> Result<()> {
    let client = bed.server.client_with_token(token);
    let begun = Instant::now();
    let append = async {
        tokio::time::sleep(LONG).await; // the length of the follow is what is tested
        let event = json!({"events": [{"key": "late", "type": "note", "data": {"text": "still here"}}]});
        let url = format!("{}{}", gateway.url, routes::EVENTS);
        gateway.http.post(url).bearer_auth(bed.token(run, Audience::Events)).json(&event).send().await?.error_for_status()?;
        anyhow::Ok(())
    };
    let path = path(bed, "fix-it/log?follow=true");
    let late = |event: &Value| event["data"]["text"] == "still here";
    let follow = async { tokio::time::timeout(LONG * 2, lines(&client, &path, late)).await? };
    let (seen, ()) = tokio::try_join!(follow, append)?;
    ensure!(begun.elapsed() >= LONG && seen.last().is_some_and(late), "the follower missed the event: {seen:?}");
    Ok(())
}

/// What `follows_a_log_for_long` appends at the end is seen by `kubectl agentrun` too, and every event before it once.
async fn the_plugin_follows_for_long(bed: &Bed, token: &str) -> Result<()> {
    let plugin = Plugin::new(&bed.server.write_kubeconfig("plugin", token)?, &bed.team)?;
    let mut child = plugin.command(&["events", "fix-it", "-f", "-o", "json"]).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let mut seen: Vec<Value> = Vec::new();
    while seen.last().is_none_or(|event| event["data"]["text"] != "still here") {
        let line = tokio::time::timeout(LONG * 2, lines.next_line()).await??.context("the follower ended")?;
        seen.push(serde_json::from_str(&line)?);
    }
    ensure!(seen.iter().map(|event| event["seq"].as_i64()).eq((1..=seen.len() as i64).map(Some)), "{seen:?}");
    Ok(())
}

async fn events_end_before_the_api_server_cuts(bed: &Bed, token: &str) -> Result<()> {
    let client = bed.server.client_with_token(token);
    let begun = Instant::now();
    let seen = lines(&client, &path(bed, "fix-it/events?follow=true"), |_| false).await?;
    let last = seen.last().context("a last line")?;
    ensure!(last["error"]["code"] == "stream_too_long", "{last}");
    let resume = seen.iter().filter_map(|line| line["seq"].as_i64()).max().unwrap_or_default();
    ensure!(last["error"]["message"].as_str().is_some_and(|text| text.ends_with(&format!("?after={resume}"))), "{last}");
    ensure!(begun.elapsed() < Duration::from_secs(58), "cut by somebody else, after {:?}", begun.elapsed());
    Ok(())
}

async fn plain_reads(bed: &Bed, token: &str) -> Result<()> {
    let client = bed.server.client_with_token(token);
    let first = lines(&client, &path(bed, "fix-it/events"), |_| true).await?;
    ensure!(first[0]["seq"] == 1 && first[0]["type"] == "phase", "{first:?}");
    let artifacts: Value = client.request(get(&path(bed, "fix-it/artifacts"))?).await?;
    ensure!(artifacts == json!({"artifacts": []}), "{artifacts}");

    // With kubectl itself, which also reads what we say of ourselves.
    let viewer = bed.server.write_kubeconfig("viewer", token)?;
    let output = kubectl(&viewer, &["get", "--raw", &path(bed, "fix-it/events")]).await?;
    ensure!(output.starts_with(r#"{"seq":1,"#), "{output}");
    let admin = bed.server.kubeconfig_path();
    let listed = kubectl(&admin, &["get", "--raw", &format!("/apis/{AGGREGATED_GROUP}/v1alpha1")]).await?;
    ensure!(listed.contains(r#""agentruns/log""#), "{listed}");
    kubectl(&admin, &["api-resources"]).await?;
    let runs = kubectl(&admin, &["get", "agentruns", "-n", &bed.team, "-o", "name"]).await?;
    ensure!(runs.trim() == "agentrun.agentrun.dev/fix-it", "{runs}");
    Ok(())
}

async fn kubectl(kubeconfig: &std::path::Path, arguments: &[&str]) -> Result<String> {
    let cache = tempfile::tempdir()?;
    let mut command = tokio::process::Command::new(binary("kubectl")?);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(cache.path()).args(arguments).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && errors.is_empty(), "kubectl {arguments:?}: {} {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

async fn refusals(bed: &Bed, viewer: &str) -> Result<()> {
    let half = bed.account("half", &[(AGGREGATED_GROUP, "*", "*")]).await?;
    let nobody = bed.account("nobody", &[]).await?;
    for (who, token, rest, code, reason, message) in [
        ("who may not read the run itself", half.as_str(), "fix-it/events", 403, "Forbidden", "RBAC verb get on agentruns.agentrun.dev"),
        ("who may do nothing", &nobody, "fix-it/events", 403, "Forbidden", "cannot get resource"),
        ("a viewer of no run", viewer, "nothing/events", 404, "NotFound", "no AgentRun nothing"),
        ("a viewer with a bad cursor", viewer, "fix-it/events?after=x", 400, "BadRequest", "digits only"),
        ("a viewer ahead of the log", viewer, "fix-it/events?after=900", 409, "Conflict", "the log's last is"),
        ("a viewer without a patch", viewer, "fix-it/patch", 404, "NotFound", "no result yet"),
        ("a viewer of no artifact", viewer, "fix-it/artifacts/none", 404, "NotFound", "no artifact none"),
        ("a viewer of nothing that there is", viewer, "fix-it/nothing", 404, "NotFound", "no such route"),
    ] {
        let client = bed.server.client_with_token(token);
        match client.request_text(get(&path(bed, rest))?).await {
            Err(kube::Error::Api(status)) => {
                ensure!((status.code, status.reason.as_str()) == (code, reason), "{who}: {status:?}");
                ensure!(status.message.contains(message), "{who}: {status:?}");
            }
            other => anyhow::bail!("{who}: {other:?}"),
        }
    }
    Ok(())
}

/// What the API server says of somebody is believed from the API server alone, and on one listener alone.
async fn only_the_front_proxy(bed: &Bed, gateway: &Gateway) -> Result<()> {
    let admin = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
    let there = path(bed, "fix-it/events");
    let people = format!("/v1/namespaces/{}/runs/fix-it/events", bed.team);
    let proxy = |name: &str| bed.client_with_certificate(gateway.aggregated, bed.server.front_proxy.client(name)?);
    let strangers = bed.client_with_certificate(gateway.aggregated, Clients::new()?.client(FRONT_PROXY)?)?;
    let rows = [
        ("the front proxy", proxy(FRONT_PROXY)?, format!("{}{there}", gateway.aggregated_url), Some(200)),
        ("no certificate", gateway.http.clone(), format!("{}{there}", gateway.aggregated_url), Some(401)),
        ("no certificate, no route", gateway.http.clone(), format!("{}/nothing", gateway.aggregated_url), Some(401)),
        ("no certificate, discovery", gateway.http.clone(), format!("{}/apis", gateway.aggregated_url), Some(401)),
        ("another name", proxy("somebody")?, format!("{}{there}", gateway.aggregated_url), Some(401)),
        ("another authority", strangers, format!("{}{there}", gateway.aggregated_url), None),
        ("the front proxy on the people listener", proxy(FRONT_PROXY)?, format!("{}{people}", gateway.people_url), Some(401)),
        ("the front proxy on the sandbox listener", proxy(FRONT_PROXY)?, format!("{}{}", gateway.url, routes::JOB), Some(401)),
    ];
    for (who, http, url, expected) in rows {
        let mut request = http.get(url);
        for (name, value) in admin {
            request = request.header(name, value);
        }
        // None: the handshake fails.
        let got = request.send().await.ok().map(|answer| answer.status().as_u16());
        ensure!(got == expected, "{who}: {got:?}, not {expected:?}");
    }
    let unnamed = proxy(FRONT_PROXY)?.get(format!("{}{there}", gateway.aggregated_url)).send().await?;
    ensure!(unnamed.status() == 401, "the front proxy that names nobody: {}", unnamed.status());
    Ok(())
}
