//! The exchange, by hand against the real gateway: a lost reply may be asked for again with the same key and gives the same
//! tokens; another key means that somebody else holds the credentials, and ends the run.

use agentrun_crds::agent_policy::{PolicyLimits, SandboxPolicy};
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::names;
use agentrun_e2e::exchange::Runner;
use agentrun_e2e::node::{Offer, Story, Within, fixing_turns, gateway_client, server_name, story, until};
use agentrun_protocol::exchange::ExchangeResponse;
use agentrun_protocol::routes;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::PostParams;

#[tokio::test]
async fn the_same_key_gets_the_same_tokens_and_another_key_ends_the_run() {
    story("exchange", body).await;
}

async fn body(story: &Story) -> Result<()> {
    // A Pod that no node takes: its runner never starts, so the test can be the runner.
    let mut offer = Offer::new(fixing_turns());
    offer.sandbox = SandboxPolicy { runtime_class_name: Some(story.nowhere().await?), ..SandboxPolicy::default() };
    offer.limits = PolicyLimits { startup_deadline: Some("5m".into()), ..PolicyLimits::default() };
    story.offer(offer).await?;
    story.create("run", story.spec()).await?;
    let run = until(&story.runs, "run", Within::Short, "it has a Pod", |run| {
        run.status.as_ref().is_some_and(|status| status.pod_ref.is_some() && status.ticket_sha256.is_some())
    })
    .await?;
    let status = run.status.context("just seen")?;
    let pod = status.pod_ref.context("just seen")?;
    let secrets: Api<Secret> = Api::namespaced(story.node.client.clone(), &story.namespace);
    let secret = until(&secrets, &pod.name, Within::Short, "it holds the ticket", |secret| secret.data.is_some()).await?;
    let ticket = secret.data.unwrap_or_default().remove("ticket").context("the Secret's ticket")?.0;
    let pod_token = pod_token(story, &pod.name, &pod.uid).await?;

    let http = gateway_client(&story.node).await?;
    let url = format!("https://{}:{}{}", server_name(), names::SANDBOX_PORT, routes::EXCHANGE);
    let post = async |runner: &Runner| http.post(&url).json(&runner.request(&ticket, &pod_token)).send().await;
    let ours = Runner::new()?;
    let first: ExchangeResponse = post(&ours).await?.error_for_status()?.json().await?;
    let again: ExchangeResponse = post(&ours).await?.error_for_status()?.json().await?;
    for (one, two) in [
        (&first.model_token, &again.model_token),
        (&first.events_token, &again.events_token),
        (&first.approvals_token, &again.approvals_token),
    ] {
        ensure!(one == two && one.starts_with("ar1."), "a repeat got other tokens");
    }
    let job = async |token: &str| -> Result<u16> {
        let url = format!("https://{}:{}{}", server_name(), names::SANDBOX_PORT, routes::JOB);
        Ok(http.get(url).bearer_auth(token).send().await?.status().as_u16())
    };
    assert_eq!(job(&first.events_token).await?, 200);
    assert_eq!(job(&first.model_token).await?, 401);

    let thief = post(&Runner::new()?).await?;
    ensure!(!thief.status().is_success(), "a second holder got tokens");
    let ended = story.until_ended("run", Phase::Failed, "Compromised").await?;
    assert_eq!(job(&first.events_token).await?, 401, "the tokens outlive the run");
    story.until_children_gone(&ended).await
}

async fn pod_token(story: &Story, name: &str, uid: &str) -> Result<String> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![names::EXCHANGE_AUDIENCE.into()]),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: Some(name.into()),
                uid: Some(uid.into()),
            }),
            expiration_seconds: None,
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(story.node.client.clone(), &story.namespace);
    let answer = accounts.create_token_request(names::SANDBOX_SERVICE_ACCOUNT, &PostParams::default(), &request).await?;
    answer.status.and_then(|status| status.token).context("a token")
}
