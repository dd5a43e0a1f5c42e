//! Statuses: `statuses.yaml`. A run and a policy are led through the writes of operator and gateway, with the credentials that
//! these have; at each step others try theirs.

use serde::Deserialize;
use serde_json::{Value, json};

use super::bed::{Bed, Place, Sender, bed};
use super::table::{self, Row};

/// The least number of bad writes that the table may shrink to.
const BAD: usize = 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    agentruns: Kind,
    agentpolicies: Kind,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    object: Value,
    /// Writes that are accepted, one after the other.
    steps: Vec<Row>,
    /// What is tried after a step (`at`), and changes nothing.
    tried: Vec<Row>,
}

fn table() -> Table {
    table::read(include_str!("statuses.yaml"))
}

/// Lead an object through the steps in both namespaces, and try what is tried at each.
async fn lead(bed: &Bed, place: &Place, plural: &str, kind: &Kind) -> Vec<String> {
    let mut surprises = Vec::new();
    let folder = |namespace: &str| format!("/apis/agentrun.dev/v1alpha1/namespaces/{namespace}/{plural}");
    let name = kind.object["metadata"]["name"].as_str().expect("a name");
    for namespace in [&place.walled, &place.open] {
        bed.send(Sender::Admin, "POST", &folder(namespace), &kind.object).await.expect("a good object is accepted");
    }
    let path = |namespace: &str| format!("{}/{name}/status?fieldValidation=Strict", folder(namespace));
    let dry = |namespace: &str| format!("{}&dryRun=All", path(namespace));
    // The walls must be known to stand before a good write says anything.
    let nobody = json!({"status": {}});
    bed.send_until(Sender::Admin, "PATCH", &dry(&place.walled), &nobody, true).await.expect_err("an administrator writes no status");
    for step in &kind.steps {
        let body = json!({"status": step.status});
        for namespace in [&place.walled, &place.open] {
            if let Err(message) = bed.send(step.sender, "PATCH", &path(namespace), &body).await {
                return vec![format!("step {}: {message}", step.name)];
            }
        }
        for row in kind.tried.iter().filter(|row| row.at == step.name) {
            let request = |namespace: &str| (dry(namespace), json!({"status": row.status}));
            let (walled, open) = bed.both(place, row, "PATCH", request).await;
            surprises.extend(row.surprise(&walled, &open, None));
        }
    }
    let unreached = kind.tried.iter().filter(|row| !kind.steps.iter().any(|step| step.name == row.at));
    surprises.extend(unreached.map(|row| format!("{}: no step {}", row.name, row.at)));
    surprises
}

#[tokio::test]
async fn a_status_is_written_by_whom_it_belongs_to() {
    let (bed, table) = (bed().await, table());
    let kinds = [("agentruns", &table.agentruns), ("agentpolicies", &table.agentpolicies)];
    let bad = kinds.iter().flat_map(|(_, kind)| &kind.tried).filter(|row| !row.by.is_empty()).count();
    assert!(bad >= BAD, "only {bad} bad writes");
    let place = bed.place(None).await;
    let mut surprises = Vec::new();
    for (plural, kind) in kinds {
        surprises.extend(lead(bed, &place, plural, kind).await);
    }
    assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
}
