//! AgentRuns through the API server.

use agentrun_crds::conditions::types;
use agentrun_crds::{AgentRun, GROUP, VERSION};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Fault};
use crate::exit::Exit;
use crate::failure::Failure;

/// Runs a page of a list.
const PAGE: usize = 100;
/// Most runs that one command lists.
const MOST: usize = 20_000;

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    items: Vec<AgentRun>,
}

#[derive(Deserialize, Default)]
struct Meta {
    #[serde(rename = "continue", default)]
    next: String,
}

/// Path of a namespace's runs, or of all (`None`).
pub fn path(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/agentruns"),
        None => format!("/apis/{GROUP}/{VERSION}/agentruns"),
    }
}

/// All of them, page by page, in the API server's order.
pub async fn list(cluster: &Cluster, namespace: Option<&str>, selector: Option<&str>) -> Result<Vec<AgentRun>, Failure> {
    let selector = selector.map_or(String::new(), |selector| format!("&labelSelector={}", encoded(selector)));
    let mut runs = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!("{}?limit={PAGE}{selector}&continue={}", path(namespace), encoded(&next));
        let page: Page = cluster.get(&path).await.map_err(|fault| fault.failure("listing AgentRuns"))?;
        runs.extend(page.items);
        next = page.metadata.next;
        if next.is_empty() {
            return Ok(runs);
        }
        if runs.len() >= MOST {
            return Err(Failure::new(Exit::Failed, format!("there are more than {MOST} runs; name a namespace or a selector")));
        }
    }
}

/// One run, `None` if there is none of this name.
pub async fn find(cluster: &Cluster, name: &str) -> Result<Option<AgentRun>, Fault> {
    match cluster.get(&format!("{}/{name}", path(Some(&cluster.namespace)))).await {
        Ok(run) => Ok(Some(run)),
        Err(Fault::Refused(refusal)) if refusal.status == 404 && refusal.code == "NotFound" && refusal.message.contains(name) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// One run that must be there.
pub async fn get(cluster: &Cluster, name: &str) -> Result<AgentRun, Failure> {
    match find(cluster, name).await {
        Ok(Some(run)) => Ok(run),
        Ok(None) => Err(absent(cluster, name)),
        Err(fault) => Err(fault.failure(&format!("reading AgentRun {name}"))),
    }
}

pub fn absent(cluster: &Cluster, name: &str) -> Failure {
    Failure::new(Exit::NotSubmitted, format!("there is no AgentRun {name} in namespace {}", cluster.namespace))
        .advice("kubectl agentrun list shows those that are there; -n names another namespace.")
}

/// Ask for the end of the run as it was read, so that of this and its result one comes first; the answer is the run as it then is.
pub async fn cancel(cluster: &Cluster, name: &str, read: &AgentRun) -> Result<AgentRun, Fault> {
    let path = format!("{}/{name}?fieldManager=kubectl-agentrun", path(Some(&cluster.namespace)));
    cluster
        .send(
            Method::PATCH,
            &path,
            "application/merge-patch+json",
            &json!({ "metadata": { "resourceVersion": read.metadata.resource_version }, "spec": { "cancel": true } }),
        )
        .await
}

/// Create; the API server refuses unknown fields.
pub async fn create(cluster: &Cluster, namespace: &str, run: &Value, dry: bool) -> Result<Value, Fault> {
    let dry = if dry { "&dryRun=All" } else { "" };
    let path = format!("{}?fieldManager=kubectl-agentrun&fieldValidation=Strict{dry}", path(Some(namespace)));
    cluster.send(Method::POST, &path, "application/json", run).await
}

/// `(phase, reason, message)` of a run that has ended.
pub fn ended(run: &AgentRun) -> Option<(agentrun_crds::agent_run_status::Phase, String, String)> {
    let status = run.status.as_ref()?;
    let phase = status.phase.filter(|phase| phase.is_terminal())?;
    let complete = status.conditions.iter().find(|condition| condition.type_ == types::COMPLETE);
    let (reason, message) = complete.map_or_else(Default::default, |c| (c.reason.clone(), c.message.clone()));
    Some((phase, reason, message))
}

/// Percent-encoding of a query value.
pub fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_value_is_encoded() {
        for (text, expected) in [("a=b,c in (d)", "a%3Db%2Cc%20in%20%28d%29"), ("ü&", "%C3%BC%26"), ("A-z.0_~", "A-z.0_~")] {
            assert_eq!(encoded(text), expected);
        }
    }
}
