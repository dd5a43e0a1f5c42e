//! What people may ask, with real RBAC: every operation × every identity, on the listener for people and through the API server;
//! and runs submitted, listed and cancelled over HTTP.

use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::names::{AGGREGATED_GROUP, PEOPLE_AUDIENCE};
use agentrun_crds::{AgentRun, GROUP};
use agentrun_e2e::api_server::FRONT_PROXY;
use agentrun_e2e::chart;
use agentrun_e2e::gateways::{Bed, Gateway, MODEL};
use agentrun_gateway::aggregated::{DISCOVERY, KEPT_ELSEWHERE, RUN_PREFIX};
use agentrun_gateway::people::{OPERATIONS, PEOPLE_ONLY, RUN_PREFIXES};
use agentrun_protocol::people::{RunList, RunView};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// What somebody is, and the rights of theirs that count here.
struct Identity {
    name: &'static str,
    token: Option<String>,
    /// `None`: nobody knows them.
    rights: Option<&'static [&'static str]>,
}

/// People to whom the chart's roles are bound, and others.
async fn identities(bed: &Bed, run_token: String) -> Result<Vec<Identity>> {
    let roles: Api<ClusterRole> = Api::all(bed.client.clone());
    for role in chart::render(bed.server, "aggregated-roles.yaml", &[])? {
        let name = role["metadata"]["name"].as_str().context("a name")?;
        roles.patch(name, &PatchParams::apply("the tests").force(), &Patch::Apply(&role)).await?;
    }
    let mut all = Vec::new();
    for (name, roles, rights) in [
        ("nobody", &[] as &[_], &[] as &[_]),
        ("viewer", &["agentrun-view"], &["get", "list"]),
        // As the cluster's own role edit has it.
        ("editor", &["agentrun-view", "agentrun-edit"], &["get", "list", "create", "patch"]),
        ("approver", &["agentrun-approver"], &["get", "list", "approve"]),
    ] {
        all.push(Identity { name, token: Some(bed.bound(name, roles).await?), rights: Some(rights) });
    }
    // Somebody who may do everything, elsewhere.
    bed.server.service_account(&bed.system, "elsewhere").await?;
    let elsewhere = bed.server.token(&bed.system, "elsewhere", &[], None).await?;
    all.push(Identity { name: "of another namespace", token: Some(elsewhere), rights: Some(&[]) });
    bed.account("dismissed", &[(GROUP, "agentruns", "*"), (AGGREGATED_GROUP, "*", "*")]).await?;
    let dismissed = bed.server.token(&bed.team, "dismissed", &[], None).await?;
    Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(bed.client.clone(), &bed.team)
        .delete("dismissed", &DeleteParams::default())
        .await?;
    let expired = bed.server.expired_token(&bed.team, "editor", &[]).await?;
    let others = bed.server.token(&bed.team, "editor", &["somebody-else"], None).await?;
    all.push(Identity { name: "anonymous", token: None, rights: None });
    all.push(Identity { name: "the run itself", token: Some(run_token), rights: None });
    all.push(Identity { name: "a token that was withdrawn", token: Some(dismissed), rights: None });
    all.push(Identity { name: "an expired token", token: Some(expired), rights: None });
    all.push(Identity { name: "a token for another audience", token: Some(others), rights: None });
    all.push(Identity { name: "a made-up token", token: Some("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.".into()), rights: None });
    Ok(all)
}

/// A body that lets the question of rights be asked.
fn body(bed: &Bed, method: &str, path: &str) -> Vec<u8> {
    match (method, path) {
        ("POST", "/v1/runs") => json!({"namespace": bed.team, "name": "submitted", "spec": {}}).to_string().into_bytes(),
        ("POST", _) => b"{}".to_vec(),
        _ => Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_asks_who_and_whether_they_may() {
    let _turn = super::turn::beside().await;
    table().await.unwrap();
}

async fn table() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let gateway = bed.gateway("a").await?;
    let run = bed.run("fix-it", Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
    let aggregated = bed.aggregate(&gateway).await?;
    let all = identities(&bed, bed.token(&run, Audience::Events)).await?;
    let filled = |path: &str| {
        path.replace("{ns}", &bed.team)
            .replace("{name}", "fix-it")
            .replace("{id}", &run.uid)
            .replace("{artifact}", "x")
            .replace("{approval}", "1")
    };
    let mut rows = Vec::new();
    for prefix in RUN_PREFIXES {
        rows.extend(OPERATIONS.iter().map(|operation| (operation, format!("{prefix}{}", operation.path))));
    }
    rows.extend(PEOPLE_ONLY.iter().map(|operation| (operation, operation.path.to_owned())));
    for (operation, path) in rows {
        // The list of all namespaces is for whoever may list them all.
        let query = if operation.right == "list" { format!("?namespace={}", bed.team) } else { String::new() };
        let url = format!("{}{}{query}", gateway.people_url, filled(&path));
        for who in &all {
            let body = body(&bed, operation.method, operation.path);
            let status = ask(&gateway.http, operation.method, &url, who.token.as_deref(), body).await?;
            let by_id = path.starts_with("/v1/runs/{id}");
            let fits = match who.rights {
                None => status == 401,
                Some(rights) if rights.contains(&operation.right) => !matches!(status, 401 | 403),
                // Whoever may not read a run is not told by its id that it is there.
                Some(rights) if by_id && !rights.contains(&"get") => status == 404,
                Some(_) => status == 403,
            };
            ensure!(fits, "{} {path} by {}: {status}", operation.method, who.name);
        }
    }
    through_the_api_server(&bed, &gateway, &all, &filled).await?;
    aggregated.withdraw().await
}

async fn through_the_api_server(bed: &Bed, gateway: &Gateway, all: &[Identity], filled: &impl Fn(&str) -> String) -> Result<()> {
    let authority = reqwest::Certificate::from_pem(bed.server.ca_pem().as_bytes())?;
    let http = reqwest::Client::builder().tls_certs_only([authority]).build()?;
    let strangers = bed.client_with_certificate(gateway.aggregated, bed.server.front_proxy.client("somebody")?)?;
    let proxy = bed.client_with_certificate(gateway.aggregated, bed.server.front_proxy.client(FRONT_PROXY)?)?;
    for operation in OPERATIONS {
        let path = filled(&format!("{RUN_PREFIX}{}", operation.path));
        let body = || body(bed, operation.method, operation.path);
        for who in all {
            let status = ask(&http, operation.method, &format!("{}{path}", bed.server.url()), who.token.as_deref(), body()).await?;
            let fits = match who.rights {
                // To the API server, somebody without a token is a user without rights.
                None => status == 401 || (who.token.is_none() && status == 403),
                Some(rights) if rights.contains(&operation.right) => !matches!(status, 401 | 403),
                Some(_) => status == 403,
            };
            ensure!(fits, "{} {path} by {} through the API server: {status}", operation.method, who.name);
        }
        // Directly, no token counts, and no certificate but the front proxy's.
        let url = format!("{}{path}", gateway.aggregated_url);
        for (name, http) in [("without a certificate", &gateway.http), ("with another name", &strangers), ("without a user", &proxy)] {
            for who in all {
                let status = ask(http, operation.method, &url, who.token.as_deref(), body()).await?;
                ensure!(status == 401, "{} {path} by {} directly, {name}: {status}", operation.method, who.name);
            }
        }
    }
    // What the API server asks of us, it alone may ask.
    let others = KEPT_ELSEWHERE.iter().chain(["/readyz", "/nothing"].iter());
    for path in DISCOVERY.iter().map(|(path, _)| path).chain(others) {
        let url = format!("{}{}", gateway.aggregated_url, filled(path));
        for (name, http) in [("without a certificate", &gateway.http), ("with another name", &strangers)] {
            for who in all {
                let status = ask(http, "GET", &url, who.token.as_deref(), Vec::new()).await?;
                ensure!(status == 401, "GET {path} by {} directly, {name}: {status}", who.name);
            }
        }
    }
    Ok(())
}

async fn ask(http: &reqwest::Client, method: &str, url: &str, token: Option<&str>, body: Vec<u8>) -> Result<u16> {
    let mut request = http.request(method.parse()?, url).body(body);
    if method == "POST" {
        request = request.header("content-type", "application/json");
    }
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    Ok(request.send().await.with_context(|| format!("{method} {url}"))?.status().as_u16())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_submitted_listed_and_cancelled() {
    let _turn = super::turn::beside().await;
    submitting().await.unwrap();
}

async fn submitting() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let gateway = bed.gateway("a").await?;
    bed.account("ci", &["get", "list", "create", "patch"].map(|verb| (GROUP, "agentruns", verb))).await?;
    let token = bed.server.token(&bed.team, "ci", &[PEOPLE_AUDIENCE], None).await?;
    let send = async |key: Option<&str>, request: &Value| -> Result<(u16, Value, String)> {
        let mut call = gateway.http.post(format!("{}/v1/runs", gateway.people_url)).bearer_auth(&token).json(request);
        if let Some(key) = key {
            call = call.header("idempotency-key", key);
        }
        let answer = call.send().await?;
        let place = answer.headers().get("location").and_then(|place| place.to_str().ok()).unwrap_or_default().to_owned();
        Ok((answer.status().as_u16(), answer.json().await?, place))
    };
    let spec = json!({"instruction": "Fix it.", "model": MODEL, "source": {"inline": {"files": [{"path": "a.txt", "content": "x"}]}}});
    let named = json!({"namespace": bed.team, "name": "one", "spec": spec});
    let prefixed = json!({"namespace": bed.team, "generateName": "ci-", "spec": spec});

    let (status, answer, place) = send(None, &named).await?;
    ensure!(status == 202, "{status} {answer}");
    let view: RunView = serde_json::from_value(answer)?;
    ensure!(place == view.links.run && view.name == "one", "{place} {view:?}");
    ensure!(view.submitted_by == Some(format!("system:serviceaccount:{}:ci", bed.team)), "{view:?}");
    let found = gateway.http.get(format!("{}{place}", gateway.people_url)).bearer_auth(&token).send().await?;
    ensure!(found.status() == 200 && found.json::<RunView>().await? == view, "what was answered is not found");

    // Repeating: the same key is the same run, whether it was named or not, and by many at once.
    let first = send(Some("k1"), &prefixed).await?;
    ensure!(first.0 == 202 && first.1["name"].as_str().is_some_and(|name| name.starts_with("ci-")), "{first:?}");
    let again = futures::future::try_join_all((0..8).map(|_| send(Some("k1"), &prefixed))).await?;
    ensure!(again.iter().all(|other| other.0 == 202 && other.1["id"] == first.1["id"]), "{again:?}");
    let another = send(Some("k2"), &prefixed).await?;
    ensure!(another.0 == 202 && another.1["id"] != first.1["id"], "another key is another run: {another:?}");
    let mut changed = prefixed.clone();
    changed["spec"]["instruction"] = "Do something else.".into();
    let mut bad = prefixed.clone();
    bad["spec"]["limits"] = json!({"maxSteps": 0});
    let mut unknown = prefixed.clone();
    unknown["spec"]["instructions"] = "typo".into();
    let mut forged = json!({"namespace": bed.team, "name": "forged", "spec": spec});
    forged["spec"]["submittedBy"] = "somebody-else".into();
    let with = |key: &str, value: Value| {
        let mut request = named.clone();
        request[key] = value;
        request
    };
    for (what, key, request, expected, code, field) in [
        ("a key with another request", Some("k1"), &changed, 409, "idempotency_key_reused", "Idempotency-Key"),
        ("a name that is taken", None, &named, 409, "already_exists", "name"),
        ("a name that another key's run has", Some("k3"), &named, 409, "already_exists", "name"),
        ("a bad field", None, &bad, 422, "invalid_field", "spec.limits.maxSteps"),
        ("an unknown field", None, &unknown, 422, "invalid_field", "spec"),
        ("no spec", None, &with("spec", json!("x")), 422, "invalid_field", "spec"),
        ("two names", None, &with("generateName", json!("x")), 422, "invalid_field", "name"),
        ("a path for a namespace", None, &with("namespace", json!("../x")), 422, "invalid_field", "namespace"),
        ("another namespace", None, &with("namespace", json!("default")), 403, "forbidden", ""),
        ("an empty key", Some(""), &named, 400, "invalid_idempotency_key", "Idempotency-Key"),
    ] {
        let (status, answer, _) = send(key, request).await?;
        let got = (status, answer["error"]["code"].as_str().unwrap_or_default(), answer["error"]["field"].as_str().unwrap_or_default());
        ensure!(got == (expected, code, field), "{what}: {answer}");
    }
    let (status, answer, _) = send(None, &forged).await?;
    ensure!(status == 202 && answer["submittedBy"] == format!("system:serviceaccount:{}:ci", bed.team), "{answer}");

    let list = gateway.http.get(format!("{}/v1/runs?namespace={}", gateway.people_url, bed.team)).bearer_auth(&token).send().await?;
    let list: RunList = list.json().await?;
    let made = Api::<AgentRun>::namespaced(bed.client.clone(), &bed.team).list(&ListParams::default()).await?.items.len();
    ensure!(list.runs.len() == made && made == 4 && !list.more, "{made} {list:?}");

    // Cancelled once and again; what has ended otherwise is not.
    let cancel = async |name: &str| -> Result<(u16, Value)> {
        let url = format!("{}/v1/namespaces/{}/runs/{name}/cancel", gateway.people_url, bed.team);
        let answer = gateway.http.post(url).bearer_auth(&token).header("content-type", "application/json").send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    };
    for _ in 0..2 {
        let (status, answer) = cancel("one").await?;
        ensure!(status == 202, "{status} {answer}");
    }
    ensure!(bed.get("one").await?.spec.cancel, "nothing was cancelled");
    bed.patch_status("forged", json!({"phase": "Failed", "finishedAt": jiff::Timestamp::now().to_string()})).await?;
    let (status, answer) = cancel("forged").await?;
    ensure!(status == 409 && answer["error"]["code"] == "already_completed", "{status} {answer}");
    // A result that is there decides, though the operator has not said so yet.
    let decided = another.1["name"].as_str().context("a name")?;
    let result = json!({"attempt": 1, "verdict": "Succeeded", "message": "", "changedFiles": 0, "steps": 1});
    bed.patch_status(decided, json!({"phase": "Running", "attempt": 1, "result": result})).await?;
    let (status, answer) = cancel(decided).await?;
    ensure!(status == 409 && answer["error"]["code"] == "already_completed", "{status} {answer}");
    ensure!(!bed.get(decided).await?.spec.cancel, "it is not asked to end");

    // Pages of other sites, and other names, are kept out before anybody is asked who they are.
    let get = |header: (&'static str, &'static str)| gateway.http.get(format!("{}/v1/runs", gateway.people_url)).header(header.0, header.1);
    for (header, expected) in [(("origin", "https://evil.example.com"), 403), (("host", "evil.example.com"), 421)] {
        let status = get(header).bearer_auth(&token).send().await?.status().as_u16();
        ensure!(status == expected, "{header:?}: {status}");
    }
    Ok(())
}
