//! What is around a sandbox, and how far the operator reaches: `reach.yaml`, as changes to what the operator builds and to what is
//! somebody else's.

use std::collections::BTreeMap;

use agentrun_operator::agent_run::objects::Owner;
use agentrun_operator::agent_run::objects::account::account;
use agentrun_operator::agent_run::objects::network_policy::{deny_all, to_gateway};
use agentrun_operator::agent_run::objects::ticket::{self, Ticket};
use serde::Serialize;
use serde_json::{Value, json};

use super::bed::{Bed, Place, Sender, bed};
use super::pods::{foreign, gateway, sandbox};
use super::table::{self, Row};

/// An object's place below the API server, and the object.
type Placed = (String, Value);

fn placed(group: &str, plural: &str, namespace: &str, object: &impl Serialize) -> Placed {
    (format!("{group}/namespaces/{namespace}/{plural}"), serde_json::to_value(object).expect("JSON"))
}

/// What a run of this UID has, and what is called `name` and nobody's of ours.
fn things(namespace: &str, uid: &str, name: &str) -> BTreeMap<&'static str, Placed> {
    let owner = Owner { namespace: namespace.into(), name: "fix".into(), uid: uid.into() };
    let (core, network) = ("/api/v1", "/apis/networking.k8s.io/v1");
    let metadata = json!({"name": name, "namespace": namespace});
    let open = json!({"metadata": metadata, "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}});
    [
        ("the sandbox", placed(core, "pods", namespace, &sandbox(namespace, uid))),
        ("the ticket", placed(core, "secrets", namespace, &ticket::secret(&owner, 1, &Ticket::random().expect("randomness"), "ca"))),
        ("the account", placed(core, "serviceaccounts", namespace, &account(namespace))),
        ("the way", placed(network, "networkpolicies", namespace, &to_gateway(&owner, 1, &gateway()))),
        ("the wall", placed(network, "networkpolicies", namespace, &deny_all(namespace))),
        ("a Pod", placed(core, "pods", namespace, &foreign(namespace, name))),
        ("a Secret", placed(core, "secrets", namespace, &json!({"metadata": metadata}))),
        ("an account", placed(core, "serviceaccounts", namespace, &json!({"metadata": metadata}))),
        ("a policy", placed(network, "networkpolicies", namespace, &open)),
    ]
    .into()
}

/// Everything that is there, made by whom it should be.
async fn made(bed: &Bed, place: &Place) {
    for namespace in [&place.walled, &place.open] {
        for (what, (folder, object)) in things(namespace, "there", "there") {
            // Every place has the account.
            if what == "the account" {
                continue;
            }
            let sender = if what.starts_with("the ") { Sender::Operator } else { Sender::Admin };
            // Until the walls know of the namespace's policy.
            bed.send_until(sender, "POST", &folder, &object, false).await.expect("what is right is accepted");
        }
    }
}

/// `at` of a row: the method, and what it is about.
fn request(namespace: &str, row: &Row) -> (String, String, Value) {
    let (method, what) = row.at.split_once(' ').expect("a method and a thing");
    let name = if method == "POST" { "new" } else { "there" };
    let (folder, object) = things(namespace, name, name).remove(what).unwrap_or_else(|| unreachable!("no {what}"));
    let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
    let path = if method == "POST" { folder } else { format!("{folder}/{name}") };
    let body = if method == "DELETE" { Value::Null } else { row.change(&object) };
    (method.to_owned(), format!("{path}?dryRun=All"), body)
}

#[tokio::test]
async fn the_walls_around_a_sandbox_are_the_operators_and_it_reaches_no_further() {
    let bed = bed().await;
    let place = bed.place(Some(&json!({}))).await;
    made(bed, &place).await;
    let mut surprises = Vec::new();
    for row in table::read::<Vec<Row>>(include_str!("reach.yaml")) {
        let (method, ..) = request(&place.open, &row);
        let sent = |namespace: &str| {
            let (_, path, body) = request(namespace, &row);
            (path, body)
        };
        let (walled, open) = bed.both(&place, &row, &method, sent).await;
        surprises.extend(row.surprise(&walled, &open, None));
    }
    assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
}
