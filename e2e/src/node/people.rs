//! The gateway's people listener, called as a viewer of one namespace would: with a ServiceAccount's token.

use std::net::SocketAddr;

use agentrun_crds::names;
use agentrun_protocol::event::{Event, EventType};
use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

use super::{Node, SYSTEM, Within, until};

const VIEWER: &str = "viewer";
const GATEWAY: &str = "agentrun-gateway";

/// A person who may read one namespace.
#[derive(Clone)]
pub struct People {
    http: reqwest::Client,
    base: String,
    token: String,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl People {
    /// Make the viewer of a namespace.
    pub async fn viewer(node: &Node, namespace: &str) -> Result<People> {
        let accounts: Api<ServiceAccount> = Api::namespaced(node.client.clone(), namespace);
        let metadata = ObjectMeta { name: Some(VIEWER.into()), ..ObjectMeta::default() };
        accounts.create(&PostParams::default(), &ServiceAccount { metadata: metadata.clone(), ..ServiceAccount::default() }).await?;
        let binding = RoleBinding {
            metadata,
            role_ref: RoleRef { api_group: Some("rbac.authorization.k8s.io".into()), kind: "ClusterRole".into(), name: "view".into() },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: VIEWER.into(),
                namespace: Some(namespace.into()),
                ..Subject::default()
            }]),
        };
        Api::<RoleBinding>::namespaced(node.client.clone(), namespace).create(&PostParams::default(), &binding).await?;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { audiences: Some(vec![names::PEOPLE_AUDIENCE.into()]), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let answer = accounts.create_token_request(VIEWER, &PostParams::default(), &request).await?;
        let token = answer.status.and_then(|status| status.token).context("the API server gave no token")?;
        Ok(People { http: gateway_client(node).await?, base: format!("https://{}:{}", server_name(), names::PEOPLE_PORT), token })
    }

    /// GET a path, whatever the answer.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        let response = self.http.get(format!("{}{path}", self.base)).bearer_auth(&self.token).send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply { status, headers, body: response.bytes().await?.to_vec() })
    }

    /// GET a path that must answer 200.
    pub async fn get_ok(&self, path: &str) -> Result<Reply> {
        let reply = self.get(path).await?;
        ensure!(reply.status == 200, "GET {path}: {} {}", reply.status, reply.text());
        Ok(reply)
    }

    /// The events so far.
    pub async fn events(&self, namespace: &str, run: &str) -> Result<Vec<Event>> {
        let reply = self.get_ok(&format!("/v1/namespaces/{namespace}/runs/{run}/events")).await?;
        reply.text().lines().map(|line| serde_json::from_str(line).with_context(|| format!("event {line}"))).collect()
    }

    /// Follow the events by SSE until `stop` holds for one, and return those up to it. Resumes when the gateway goes away.
    pub async fn follow(&self, namespace: &str, run: &str, within: Within, stop: impl Fn(&Event) -> bool) -> Result<Vec<Event>> {
        let mut events: Vec<Event> = Vec::new();
        let followed = tokio::time::timeout(within.duration(), async {
            loop {
                let after = events.last().map_or(0, |event| event.seq);
                let url = format!("{}/v1/namespaces/{namespace}/runs/{run}/events?after={after}&stream=1", self.base);
                let request = self.http.get(url).bearer_auth(&self.token).header("accept", "text/event-stream");
                let response = match request.send().await {
                    Ok(response) if response.status().is_success() => response,
                    Ok(response) if response.status().is_server_error() => continue,
                    Ok(response) => bail!("following events: {} {}", response.status(), response.text().await?),
                    // A gateway that is starting again: each try waits for its own connection.
                    Err(_) => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                };
                let mut chunks = response.bytes_stream();
                let mut buffer = Vec::new();
                while let Some(Ok(chunk)) = chunks.next().await {
                    buffer.extend_from_slice(&chunk);
                    while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = buffer.drain(..=end).collect();
                        let Some(data) = line.strip_prefix(b"data:") else { continue };
                        let Ok(event) = serde_json::from_slice::<Event>(data) else { continue };
                        let done = stop(&event);
                        events.push(event);
                        if done {
                            return Ok(());
                        }
                    }
                }
            }
        })
        .await;
        match followed {
            Ok(Ok(())) => Ok(events),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let types: Vec<_> = events.iter().map(|event| event.kind).collect();
                bail!("followed the events of {run} for {:?}; seen so far: {types:?}", within.duration())
            }
        }
    }

    /// All events of a run that ends, checked to be dense from 1 and to end with `end`.
    pub async fn all_events(&self, namespace: &str, run: &str) -> Result<Vec<Event>> {
        let events = self.follow(namespace, run, Within::Long, |event| event.kind == EventType::End).await?;
        let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
        let dense: Vec<i64> = (1..=seqs.len() as i64).collect();
        ensure!(seqs == dense, "the sequence is not dense from 1: {seqs:?}");
        Ok(events)
    }
}

/// The gateway's name in its certificate.
pub fn server_name() -> String {
    format!("{GATEWAY}.{SYSTEM}.svc")
}

/// The address of the gateway's Service.
pub async fn gateway_address(node: &Node) -> Result<String> {
    let service = Api::<Service>::namespaced(node.client.clone(), SYSTEM).get(GATEWAY).await?;
    service.spec.and_then(|spec| spec.cluster_ip).context("the gateway's Service has no address")
}

/// The certificate that signs the gateway's.
pub async fn gateway_ca(node: &Node) -> Result<Vec<u8>> {
    let secrets: Api<Secret> = Api::namespaced(node.client.clone(), SYSTEM);
    let has_ca = |secret: &Secret| secret.data.as_ref().is_some_and(|data| data.contains_key("ca.crt"));
    let secret = until(&secrets, names::SERVING_SECRET, Within::Medium, "it holds ca.crt", has_ca).await?;
    Ok(secret.data.unwrap_or_default().remove("ca.crt").context("just seen")?.0)
}

/// A client that trusts the operator's authority and nothing else, and knows where the gateway is.
pub async fn gateway_client(node: &Node) -> Result<reqwest::Client> {
    let authority = reqwest::Certificate::from_pem(&gateway_ca(node).await?)?;
    let address: SocketAddr = format!("{}:0", gateway_address(node).await?).parse()?;
    let builder = reqwest::Client::builder().tls_certs_only([authority]).resolve(&server_name(), address);
    Ok(builder.connect_timeout(Within::Short.duration()).build()?)
}
