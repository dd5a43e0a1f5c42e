//! Every route of the sandbox listener × every kind of wrong token: each is refused, all of them alike, and nothing changes.
//! The routes come from the gateway itself, so a new one is tried as soon as it exists, and fails until it has a body here.

use agentrun_crds::budget::{Limit, Spent};
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun, MODEL, now};
use agentrun_gateway::app::{Access, SANDBOX_ROUTES};
use agentrun_protocol::routes;
use agentrun_protocol::token::{Audience, Claims, KeyRing};
use agentrun_scripted_model::{Script, Turn, request_body};
use anyhow::{Context, Result, bail, ensure};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const BLOB: &[u8] = b"two\n";

fn limit() -> Limit {
    Limit { requests: 10, ..Limit::default() }
}

fn blob_digest() -> String {
    let hex: String = Sha256::digest(BLOB).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn action() -> Value {
    json!({"tool": "run_command", "argv": ["ls"]})
}

/// A body that the route takes from the run's own runner.
fn good_body(path: &str, run: &LiveRun) -> Result<Vec<u8>> {
    let value = match path {
        routes::RENEW | routes::JOB | routes::SOURCE => return Ok(Vec::new()),
        routes::EVENTS => json!({"events": [{"key": "k", "type": "note", "data": {"text": "x"}}]}),
        routes::ARTIFACTS => json!({"name": "log.txt", "digest": blob_digest()}),
        routes::RESULT => json!({
            "runUid": run.uid, "attempt": 1, "outcome": "agentError", "message": "m", "steps": 1, "checks": [], "changes": [], "manifestComplete": true,
        }),
        routes::CHAT_COMPLETIONS => request_body(MODEL, "hello", false),
        routes::MESSAGES | routes::COUNT_TOKENS | routes::RESPONSES | routes::EMBEDDINGS => request_body(MODEL, "hello", false),
        routes::MODELS | routes::GEMINI_MODELS => return Ok(Vec::new()),
        path if path.starts_with(routes::GEMINI_MODELS) => json!({"contents": []}),
        routes::APPROVALS => json!({ "action": action() }),
        "/sandbox/v1/approvals/{approval}" => return Ok(Vec::new()),
        "/sandbox/v1/approvals/{approval}/consume" => json!({"action": action(), "executionId": "x"}),
        path if path.starts_with(routes::BLOBS) => return Ok(BLOB.to_vec()),
        path => bail!("route {path} has no body here: add one, so that wrong tokens are tried on it"),
    };
    Ok(serde_json::to_vec(&value)?)
}

async fn send(gateway: &Gateway, (method, path): (&str, &str), run: &LiveRun, headers: &[(&str, String)]) -> Result<(u16, String)> {
    let url = format!("{}{}", gateway.url, path.replace("{digest}", &blob_digest()).replace("{approval}", "1"));
    let mut request = gateway.http.request(method.parse()?, url).body(good_body(path, run)?);
    if method == "POST" {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, value.as_str());
    }
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

fn audiences(access: Access) -> Vec<Audience> {
    match access {
        Access::Exchange => Vec::new(),
        Access::ModelToken => vec![Audience::Model],
        Access::EventsToken => vec![Audience::Events],
        Access::ApprovalsToken => vec![Audience::Approvals],
        Access::AnyToken => Audience::ALL.to_vec(),
    }
}

/// Wrong tokens that are made from good ones, by name.
fn forgeries(bed: &Bed, run: &LiveRun, other: &LiveRun, audience: Audience) -> Vec<(String, String)> {
    let good = Claims { audience, ..run.claims };
    let token = bed.ring.mint(&good);
    let strangers = KeyRing::new([(1, vec![9; 32])]).expect("32 bytes");
    let another_id = KeyRing::new([(2, vec![9; 32])]).expect("32 bytes");
    let mut wrong: Vec<(String, String)> = [
        ("of another run, by UID", Claims { run_uid: other.claims.run_uid, ..good }),
        ("of a run that does not exist", Claims { run_uid: [42; 16], ..good }),
        ("of another attempt, later", Claims { attempt: 2, ..good }),
        ("of another attempt, earlier", Claims { attempt: 0, ..good }),
        ("of another Pod", Claims { pod_uid: other.claims.pod_uid, ..good }),
        ("of another holder", Claims { nonce: other.claims.nonce, ..good }),
        ("expired", Claims { issued_at: now() - 1000, expires_at: now() - 1, ..good }),
        ("not valid yet", Claims { issued_at: now() + 600, expires_at: now() + 900, ..good }),
    ]
    .map(|(name, claims)| (name.to_owned(), bed.ring.mint(&claims)))
    .into();
    wrong.push(("signed with another key".into(), strangers.mint(&good)));
    wrong.push(("signed with an unknown key id".into(), another_id.mint(&good)));
    for at in [4, 10, 30, token.len() / 2, token.len() - 20, token.len() - 1] {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        wrong.push((format!("tampered at byte {at}"), String::from_utf8(bytes).expect("ASCII")));
    }
    for length in [0, 1, 4, 20, token.len() / 2, token.len() - 1] {
        wrong.push((format!("truncated to {length}"), token[..length].to_owned()));
    }
    wrong.push(("with something after it".into(), format!("{token}A")));
    wrong.push(("a JWT".into(), "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.".into()));
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_refuses_every_wrong_token() {
    let _turn = super::turn::beside().await;
    table().await.unwrap();
}

async fn table() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let run = bed.run("run", limit(), Spent::default()).await?;
    let other = bed.run("other", limit(), Spent::default()).await?;
    let gateway = bed.gateway("a").await?;
    let before = bed.get("run").await?.metadata.resource_version;
    let mut rows = 0;
    for (method, path, access) in SANDBOX_ROUTES {
        let route = (*method, *path);
        let mut answer = None; // of this route: each dialect has its own words
        if *access == Access::Exchange {
            continue; // takes no token; its credentials have a table of their own in exchange.rs
        }
        let right = audiences(*access);
        let mut wrong: Vec<(String, Vec<(&str, String)>)> = vec![("missing".into(), vec![])];
        for audience in Audience::ALL {
            let bearer = |token: &str| vec![("authorization", format!("Bearer {token}"))];
            if right.contains(&audience) {
                let named = forgeries(&bed, &run, &other, audience);
                wrong.extend(named.into_iter().map(|(name, token)| (format!("{name} ({audience:?})"), bearer(&token))));
                let good = bed.token(&run, audience);
                wrong.push(("with another scheme".into(), vec![("authorization", format!("Basic {good}"))]));
                wrong.push(("in a cookie".into(), vec![("cookie", format!("token={good}"))]));
            } else {
                wrong.push((format!("of another audience ({audience:?})"), bearer(&bed.token(&run, audience))));
            }
        }
        for (name, headers) in wrong {
            let got = send(&gateway, route, &run, &headers).await.with_context(|| format!("{method} {path} with a token {name}"))?;
            ensure!(got.0 == 401 && got.1.contains("inactive_run_token"), "{method} {path} with a token {name}: {got:?}");
            // All alike, so that nobody learns from the answer which part was wrong.
            ensure!(
                answer.get_or_insert_with(|| got.1.clone()) == &got.1,
                "{method} {path} with a token {name} is answered in other words: {got:?}"
            );
            rows += 1;
        }
    }
    ensure!(rows > 100, "only {rows} rows were tried");
    assert_eq!(bed.get("run").await?.metadata.resource_version, before, "a refused call wrote something");
    ensure!(bed.model.model.bill().is_empty(), "a refused call reached the provider");

    // The other run's own good token does not act on this run.
    let theirs = [("authorization", format!("Bearer {}", bed.token(&other, Audience::Events)))];
    let (status, body) = send(&gateway, ("POST", routes::RESULT), &run, &theirs).await?;
    ensure!((400..500).contains(&status), "another run's token delivered this run's result: {status} {body}");
    ensure!(bed.get("run").await?.status.is_some_and(|status| status.result.is_none()), "a result of another run was written");

    // And the table can tell: the run's own tokens are taken. The result comes last, since it closes the log.
    for (method, path, access) in SANDBOX_ROUTES
        .iter()
        .filter(|route| route.1 != routes::RESULT)
        .chain(SANDBOX_ROUTES.iter().filter(|route| route.1 == routes::RESULT))
    {
        if path.ends_with("/consume") {
            let mut approval = serde_json::to_value(&bed.get("run").await?.status.context("a status")?.approvals)?;
            (approval[0]["state"], approval[0]["decidedBy"], approval[0]["scope"]) = ("allowed".into(), "somebody".into(), "once".into());
            approval[0]["decidedAt"] = jiff::Timestamp::from_second(now())?.to_string().into();
            bed.patch_status("run", json!({ "approvals": approval })).await?;
        }
        for audience in audiences(*access) {
            let good = [("authorization", format!("Bearer {}", bed.token(&run, audience)))];
            let (status, body) = send(&gateway, (method, path), &run, &good).await?;
            // This run's source is in the AgentRun itself, which only its own runner is told.
            let taken = (200..300).contains(&status) || (*path == routes::SOURCE && status == 404) || body.contains("wrong_dialect");
            ensure!(taken, "{method} {path} refuses the right token: {status} {body}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_refuses_a_revoked_token_within_two_seconds() {
    let _turn = super::turn::beside().await;
    revoked().await.unwrap();
}

async fn revoked() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let gateway = bed.gateway("a").await?;
    let runs = Api::<agentrun_crds::AgentRun>::namespaced(bed.client.clone(), &bed.team);
    for how in ["terminal", "closed", "cancelled", "compromised", "next-attempt", "deleted"] {
        let run = bed.run(how, limit(), Spent::default()).await?;
        let bearer = |audience| [("authorization", format!("Bearer {}", bed.token(&run, audience)))];
        // The gateway knows the run and has just confirmed it as open.
        let (status, body) = send(&gateway, ("GET", routes::JOB), &run, &bearer(Audience::Events)).await?;
        ensure!(status == 200, "{how}: {status} {body}");
        let end = |status: Value| bed.patch_status(how, status);
        match how {
            "terminal" => {
                drop(end(json!({"phase": "Failed", "finishedAt": jiff::Timestamp::now().to_string(), "budget": {"gate": "Closed"}})).await?)
            }
            "closed" => drop(end(json!({"budget": {"gate": "Closed"}})).await?),
            "cancelled" => drop(runs.patch(how, &PatchParams::default(), &Patch::Merge(json!({"spec": {"cancel": true}}))).await?),
            "compromised" => drop(end(json!({"exchange": {"compromised": true}})).await?),
            "next-attempt" => drop(end(json!({"attempt": 2})).await?),
            _ => drop(runs.delete(how, &DeleteParams::default()).await?),
        }
        // The promise: at most two seconds, on every route, whatever was confirmed before.
        tokio::time::sleep(agentrun_gateway::runs::CONFIRMATION_TTL).await;
        for (method, path, access) in SANDBOX_ROUTES {
            // A closed budget ends model calls; what a run that has spent everything did can still be reported.
            for audience in audiences(*access).into_iter().filter(|audience| how != "closed" || *audience == Audience::Model) {
                let (status, body) = send(&gateway, (method, path), &run, &bearer(audience)).await?;
                ensure!(
                    status == 401 && body.contains("inactive_run_token"),
                    "{method} {path} with a token of a run that is {how}: {status} {body}"
                );
            }
        }
    }
    ensure!(bed.model.model.bill().is_empty(), "a revoked token reached the provider");
    Ok(())
}
