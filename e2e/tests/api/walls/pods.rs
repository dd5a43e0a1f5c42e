//! Pods: `pods.yaml`, as changes to the Pod that the operator builds.

use std::collections::BTreeMap;

use agentrun_operator::agent_run::objects::Owner;
use agentrun_operator::agent_run::objects::network_policy::Gateway;
use agentrun_operator::agent_run::objects::pod::{RunnerImage, pod};
use agentrun_operator::agent_run::objects::probed::Probed;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bed::{Bed, Place, Sender, bed};
use super::table::{self, Row};

/// The least number of bad Pods that the table may shrink to.
const BAD: usize = 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Creations that are accepted, and those that are not.
    good: Vec<Row>,
    bad: Vec<Row>,
    /// Creations under a namespace's policy.
    policies: Vec<Policy>,
    /// Creations of somebody else's Pod, with its labels changed or not.
    foreign: Vec<Row>,
    /// Changes to a sandbox that is there, accepted or not.
    changes: Vec<Row>,
    /// Changes to somebody else's Pod.
    foreign_changes: Vec<Row>,
    /// Bindings to a node.
    bindings: Vec<Row>,
    /// Connections to a sandbox.
    entries: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    /// `spec.sandbox`; none: the namespace has no policy.
    sandbox: Option<Value>,
    rows: Vec<Row>,
}

fn table() -> Table {
    table::read(include_str!("pods.yaml"))
}

/// The gateway as the chart installs it.
pub fn gateway() -> Gateway {
    let selector = [("app.kubernetes.io/name", "agentrun"), ("app.kubernetes.io/component", "gateway")];
    Gateway {
        namespace: "agentrun-system".into(),
        service: "agentrun-gateway".into(),
        address: "10.0.0.1".into(),
        selector: selector.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
    }
}

/// The sandbox of a run, by the operator's own hand.
pub fn sandbox(namespace: &str, uid: &str) -> Value {
    let resolved = serde_json::from_value(json!({
        "policySha256": "00", "image": "tools:1", "maxSteps": 12, "wallTimeSeconds": 180, "startupDeadlineSeconds": 300,
        "model": {"name": "small", "provider": "p", "model": "m", "maxOutputTokens": 4096}, "budget": {"requests": 14},
        "allowedPaths": ["**"], "checks": [], "hostUsers": "Isolated", "cpu": "2", "memory": "3Gi", "workspace": "4Gi",
    }));
    let owner = Owner { namespace: namespace.into(), name: "fix".into(), uid: uid.into() };
    let image = RunnerImage { name: "runner:1".into(), pull_policy: "IfNotPresent".into() };
    let probed = Probed { api_server: ([10, 96, 0, 1], 443).into(), name_server: None, internet: None };
    let resolved = resolved.expect("what a run was resolved to");
    serde_json::to_value(pod(&owner, 1, &resolved, &gateway(), &image, &probed)).expect("JSON")
}

/// A Pod as weak as can be.
pub fn foreign(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"hostNetwork": true, "hostPID": true, "containers": [{"name": "a", "image": "a", "securityContext": {"privileged": true}}]},
    })
}

fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict")
}

async fn creations(bed: &Bed, place: &Place, rows: &[Row], good: impl Fn(&str) -> Value) -> Vec<String> {
    let mut surprises = Vec::new();
    for row in rows {
        let (walled, open) = bed.both(place, row, "POST", |namespace| (pods(namespace), row.change(&good(namespace)))).await;
        surprises.extend(row.surprise(&walled, &open, None));
    }
    surprises
}

fn none(surprises: &[String]) {
    assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
}

#[tokio::test]
async fn a_weaker_sandbox_is_refused_whoever_makes_it() {
    let (bed, table) = (bed().await, table());
    let place = bed.place(Some(&json!({}))).await;
    assert!(table.bad.len() >= BAD, "only {} bad Pods", table.bad.len());
    // First, so that the walls are known to stand.
    let bad = creations(bed, &place, &table.bad, |namespace| sandbox(namespace, "u-1")).await;
    let good = creations(bed, &place, &table.good, |namespace| sandbox(namespace, "u-1")).await;
    none(&[bad, good].concat());
}

#[tokio::test]
async fn a_sandbox_is_as_its_namespaces_policy_says() {
    let (bed, table) = (bed().await, table());
    let mut surprises = Vec::new();
    for under in &table.policies {
        let place = bed.place(under.sandbox.as_ref()).await;
        surprises.extend(creations(bed, &place, &under.rows, |namespace| sandbox(namespace, "u-1")).await);
    }
    none(&surprises);
}

#[tokio::test]
async fn other_pods_are_nobodys_business_until_they_take_our_labels() {
    let (bed, table) = (bed().await, table());
    let place = bed.place(None).await;
    none(&creations(bed, &place, &table.foreign, |namespace| foreign(namespace, "new")).await);
}

/// Make a Pod that is there, in both namespaces; what leads to the one in a namespace, and how it stands.
async fn made(bed: &Bed, place: &Place, sender: Sender, good: impl Fn(&str) -> Value) -> impl Fn(&str) -> (String, Value) {
    let mut found = BTreeMap::new();
    for namespace in [&place.open, &place.walled] {
        let folder = format!("/api/v1/namespaces/{namespace}/pods");
        // Until the walls know of the namespace's policy.
        let pod = bed.send_until(sender, "POST", &folder, &good(namespace), false).await.expect("a good Pod is accepted");
        found.insert(namespace.clone(), (format!("{folder}/{}", pod["metadata"]["name"].as_str().expect("a name")), pod));
    }
    move |namespace| found[namespace].clone()
}

async fn changes(bed: &Bed, place: &Place, rows: &[Row], pod: impl Fn(&str) -> (String, Value)) -> Vec<String> {
    let mut surprises = Vec::new();
    for row in rows {
        let request = |namespace: &str| {
            let (path, pod) = pod(namespace);
            let part = if row.at.is_empty() { String::new() } else { format!("/{}", row.at) };
            (format!("{path}{part}?dryRun=All&fieldValidation=Strict"), row.change(&pod))
        };
        let (walled, open) = bed.both(place, row, "PUT", request).await;
        surprises.extend(row.surprise(&walled, &open, None));
    }
    surprises
}

#[tokio::test]
async fn a_sandbox_stays_what_it_was_made_as() {
    let (bed, table) = (bed().await, table());
    let place = bed.place(Some(&json!({}))).await;
    let pod = made(bed, &place, Sender::Operator, |namespace| sandbox(namespace, "changed")).await;
    none(&changes(bed, &place, &table.changes, pod).await);
    let pod = made(bed, &place, Sender::Admin, |namespace| foreign(namespace, "there")).await;
    none(&changes(bed, &place, &table.foreign_changes, pod).await);
}

#[tokio::test]
async fn binding_a_sandbox_brings_nothing_along() {
    let (bed, table) = (bed().await, table());
    let place = bed.place(Some(&json!({}))).await;
    let pod = made(bed, &place, Sender::Operator, |namespace| sandbox(namespace, "bound")).await;
    let mut surprises = Vec::new();
    for row in &table.bindings {
        let request = |namespace: &str| {
            let (path, pod) = pod(namespace);
            let good = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"], "namespace": namespace},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
            });
            let path = match row.at.as_str() {
                "bindings" => format!("/api/v1/namespaces/{namespace}/bindings"),
                _ => format!("{path}/binding"),
            };
            (format!("{path}?dryRun=All"), row.change(&good))
        };
        let (walled, open) = bed.both(&place, row, "POST", request).await;
        surprises.extend(row.surprise(&walled, &open, None));
    }
    none(&surprises);
}

#[tokio::test]
async fn nobody_enters_a_sandbox_without_the_verb() {
    let (bed, table) = (bed().await, table());
    let place = bed.place(Some(&json!({}))).await;
    let pod = made(bed, &place, Sender::Operator, |namespace| sandbox(namespace, "entered")).await;
    let mut surprises = Vec::new();
    for row in &table.entries {
        let request = |namespace: &str| (format!("{}/{}", pod(namespace).0, row.at), Value::Null);
        let (walled, open) = bed.both(&place, row, "POST", request).await;
        // No node runs the Pod.
        surprises.extend(row.surprise(&walled, &open, Some("does not have a host assigned")));
    }
    none(&surprises);
}
