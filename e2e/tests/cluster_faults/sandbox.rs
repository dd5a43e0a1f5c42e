//! What node and runner do for a run, done by hand: the Pod comes up, tokens are fetched, one event, one model call and one change
//! are handed in, the Pod ends. Each step is repeated as a runner repeats it.

use std::time::{Duration, Instant};

use agentrun_crds::{AgentRun, names};
use agentrun_e2e::exchange::Runner;
use agentrun_e2e::gateways::MODEL;
use agentrun_e2e::node::{Within, until};
use agentrun_protocol::event::{AppendRequest, EventType, NewEvent};
use agentrun_protocol::exchange::ExchangeResponse;
use agentrun_protocol::result::{Change, FileState, Outcome, SandboxResult};
use agentrun_protocol::routes;
use agentrun_scripted_model::request_body;
use anyhow::{Context, Result, bail, ensure};
use http::Method;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::world::{PATIENCE, World};

/// The file of the run's source, and what the agent makes of it.
pub const FILE: (&str, &str, &str) = ("a.txt", "one\n", "two\n");
/// The text of the event that the sandbox appends.
pub const SAID: &str = "what must not be lost";

pub async fn work(world: &World, run: &AgentRun) -> Result<()> {
    let (client, team) = (&world.bed.client, &world.bed.team);
    let uid = run.uid().context("a UID")?;
    let name = names::child_name(&uid, 1);
    let pods: Api<Pod> = Api::namespaced(client.clone(), team);
    let pod = until(&pods, &name, Within::Medium, "the operator has made it", |_| true).await?;
    let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    report(&pods, &name, "Running", state).await?;

    let secret = Api::<Secret>::namespaced(client.clone(), team).get(&name).await.context("the ticket's Secret")?;
    let ticket = &secret.data.as_ref().and_then(|data| data.get("ticket")).context("a ticket")?.0;
    let bound = Some((name.as_str(), pod.metadata.uid.as_deref().context("a UID")?));
    let token = world.bed.server.token(team, names::SANDBOX_SERVICE_ACCOUNT, &[names::EXCHANGE_AUDIENCE], bound).await?;
    let request = serde_json::to_vec(&Runner::new()?.request(ticket, &token))?;
    let tokens: ExchangeResponse = serde_json::from_slice(&send(world, Method::POST, routes::EXCHANGE, None, request).await?)?;

    let event = NewEvent { key: "said".into(), kind: EventType::Message, data: json!({"text": SAID}) };
    let events = serde_json::to_vec(&AppendRequest { events: vec![event] })?;
    let holder = Some(tokens.events_token.as_str());
    send(world, Method::POST, routes::EVENTS, holder, events).await?;
    let call = serde_json::to_vec(&request_body(MODEL, "hello", false))?;
    send(world, Method::POST, routes::CHAT_COMPLETIONS, Some(&tokens.model_token), call).await?;
    let digest = |text: &str| format!("sha256:{}", hex(&Sha256::digest(text)));
    let (path, before, after) = FILE;
    send(world, Method::PUT, &format!("{}/{}", routes::BLOBS, digest(after)), holder, after.into()).await?;
    let state = |text| Some(FileState { digest: digest(text), mode: 644 });
    let result = SandboxResult {
        run_uid: uid,
        attempt: 1,
        outcome: Outcome::Done,
        message: "done".into(),
        steps: 1,
        checks: Vec::new(),
        changes: vec![Change { path: path.into(), before: state(before), after: state(after) }],
        manifest_complete: true,
    };
    if let Err(error) = send(world, Method::POST, routes::RESULT, holder, serde_json::to_vec(&result)?).await {
        // Handed in before, by a call whose answer was lost; the run is over by now, and its tokens are worth nothing.
        let run = world.bed.get(&run.name_any()).await?;
        ensure!(run.status.is_some_and(|status| status.result.is_some()), "{error:#}");
    }
    let state = json!({"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}});
    report(&pods, &name, "Succeeded", state).await
}

/// Say what a kubelet would of the runner's container. A Pod that is gone already needs nothing said.
async fn report(pods: &Api<Pod>, name: &str, phase: &str, state: serde_json::Value) -> Result<()> {
    let container = json!({"name": "runner", "image": "none", "imageID": "none", "ready": false, "restartCount": 0, "state": state});
    let status = json!({"status": {"phase": phase, "containerStatuses": [container]}});
    match pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await {
        Err(kube::Error::Api(error)) if error.code == 404 && phase != "Running" => Ok(()),
        other => other.map(drop).context("saying how the Pod is"),
    }
}

/// Ask the gateway until it has done it. What it refuses for good fails.
async fn send(world: &World, method: Method, path: &str, token: Option<&str>, body: Vec<u8>) -> Result<Vec<u8>> {
    let url = format!("https://{}:{}{path}", world.bed.host(), world.addresses.sandbox.port());
    let begun = Instant::now();
    loop {
        // A connection of its own: the process at the other end may be another by now.
        let http = world.bed.client_through(world.addresses.sandbox)?;
        let mut request = http.request(method.clone(), &url).header("content-type", "application/json").body(body.clone());
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let problem = match request.send().await {
            Ok(answer) if answer.status().is_success() => match answer.bytes().await {
                Ok(bytes) => return Ok(bytes.into()),
                Err(error) => format!("{error:#}"),
            },
            Ok(answer) => {
                let (status, text) = (answer.status(), answer.text().await.unwrap_or_default());
                ensure!(matches!(status.as_u16(), 408 | 425 | 429 | 500..=599), "{path} is refused for good: {status} {text}");
                format!("{status} {text}")
            }
            Err(error) => format!("{error:?}"),
        };
        if begun.elapsed() > PATIENCE {
            bail!("{path} is not done within {PATIENCE:?}: {problem}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // as a runner pauses
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
