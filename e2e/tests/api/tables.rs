//! The tables of good and bad objects (`crds/tests/tables/`), judged by the API server itself: each refusal names the field,
//! and a rule's refusal says what is allowed.

#[path = "../../../crds/tests/tables/loader.rs"]
mod loader;

use agentrun_e2e::api_server::ApiServer;
use loader::{Row, Table, without};
use serde_json::{Value, json};

use super::raw::{Answer, Raw};

const RUN: &str = include_str!("../../../crds/tests/tables/agent_run.yaml");
const POLICY: &str = include_str!("../../../crds/tests/tables/agent_policy.yaml");
const RECORD: &str = include_str!("../../../crds/tests/tables/agent_run_record.yaml");
const TEMPLATE: &str = include_str!("../../../crds/tests/tables/agent_template.yaml");
const PROVIDER: &str = include_str!("../../../crds/tests/tables/model_provider.yaml");

/// A refusal must be short enough to read: it does not repeat a megabyte back.
const LONGEST_REFUSAL: usize = 8 * 1024;

async fn kind(plural: &str) -> Raw {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("tables").await;
    Raw::new(server.client(), &namespace, plural)
}

/// What is wrong with an answer, if anything.
fn surprise(row: &Row, accepted: bool, answer: &Answer) -> Option<String> {
    let wrong = match (accepted, answer) {
        (true, Ok(_)) => return None,
        (true, Err(message)) => format!("refused: {message}"),
        (false, Ok(_)) => "accepted".to_owned(),
        (false, Err(message)) if message.len() > LONGEST_REFUSAL => format!("a refusal of {} bytes", message.len()),
        (false, Err(message)) => {
            let says = row.says.as_deref().unwrap_or_default();
            if message.contains(&row.field) && message.contains(says) {
                return None;
            }
            format!("refused without {:?} and {says:?}: {message}", row.field)
        }
    };
    Some(format!("{}: {wrong}", row.name))
}

async fn creations(plural: &str, yaml: &str) {
    let (raw, table) = (kind(plural).await, Table::read(yaml));
    let mut surprises = Vec::new();
    for (rows, accepted) in [(&table.good, true), (&table.bad, false)] {
        for row in rows {
            surprises.extend(surprise(row, accepted, &raw.try_create(&table.object(row)).await));
        }
    }
    assert!(surprises.is_empty(), "{} surprises in {plural}:\n{}", surprises.len(), surprises.join("\n"));
}

/// Write the part of the wanted object that differs from the live one, as one request.
async fn write(raw: &Raw, name: &str, live: &Value, wanted: &Value) -> Answer {
    let mut object = live.clone();
    // The API server fills in the status of a run that nobody has looked at.
    let unobserved = live.get("status").filter(|status| **status == json!({"observedGeneration": -1}));
    let wanted_status = wanted.get("status").or(unobserved);
    let status = wanted_status != live.get("status");
    if status {
        let map = object.as_object_mut().expect("an object");
        match wanted_status {
            Some(value) => map.insert("status".into(), value.clone()),
            None => map.remove("status"),
        };
    } else {
        object["spec"] = wanted["spec"].clone();
        object["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
    }
    raw.replace(name, &object, status).await
}

/// Create an object and lead it through the steps; each must be accepted.
async fn lead(raw: &Raw, name: &str, steps: &[Value]) -> Value {
    let mut first = steps[0].clone();
    first["metadata"]["name"] = name.into();
    let mut live = raw.create(&first).await.unwrap_or_else(|message| unreachable!("{name}: {message}"));
    for (number, step) in steps.iter().enumerate().skip(1) {
        let before = live.clone();
        live = write(raw, name, &before, step).await.unwrap_or_else(|message| unreachable!("{name}, step {number}: {message}"));
    }
    live
}

#[tokio::test]
async fn agent_runs_are_accepted_and_refused_as_told() {
    creations("agentruns", RUN).await;
}

#[tokio::test]
async fn agent_policies_are_accepted_and_refused_as_told() {
    creations("agentpolicies", POLICY).await;
}

#[tokio::test]
async fn model_providers_are_accepted_and_refused_as_told() {
    creations("modelproviders", PROVIDER).await;
}

#[tokio::test]
async fn agent_templates_are_accepted_and_refused_as_told() {
    creations("agenttemplates", TEMPLATE).await;
}

#[tokio::test]
async fn agent_run_records_are_accepted_and_refused_as_told() {
    creations("agentrunrecords", RECORD).await;
}

#[tokio::test]
async fn policies_and_providers_change_freely() {
    for (plural, yaml, name) in
        [("agentpolicies", POLICY, "default"), ("modelproviders", PROVIDER, "provider"), ("agentrunrecords", RECORD, "record")]
    {
        let table = Table::read(yaml);
        for row in &table.accepted {
            // A namespace of its own: a policy has one name.
            let raw = kind(plural).await;
            let (steps, last) = table.update(row);
            let live = lead(&raw, name, &steps).await;
            assert_eq!(surprise(row, true, &write(&raw, name, &live, &last).await), None);
        }
    }
}

#[tokio::test]
async fn a_run_changes_along_its_rules() {
    let (raw, table) = (kind("agentruns").await, Table::read(RUN));
    let mut surprises = Vec::new();
    for (number, row) in table.accepted.iter().enumerate() {
        let (steps, last) = table.update(row);
        let name = format!("run-{number}");
        let live = lead(&raw, &name, &steps).await;
        surprises.extend(surprise(row, true, &write(&raw, &name, &live, &last).await));
    }
    assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
}

/// A refused write changes nothing, so one object serves all the rows of a state.
async fn changes_along_nothing_else(plural: &str, yaml: &str, name: &str) {
    let table = Table::read(yaml);
    let mut surprises = Vec::new();
    for state in table.states.keys() {
        let raw = kind(plural).await;
        let live = lead(&raw, name, &table.steps(state)).await;
        for row in table.refused.iter().filter(|row| row.state.as_ref() == Some(state)) {
            let (_, last) = table.update(row);
            surprises.extend(surprise(row, false, &write(&raw, name, &live, &last).await));
        }
        let after = raw.get(name).await.expect("it is there");
        assert_eq!((&after["spec"], &after["status"]), (&live["spec"], &live["status"]), "a refused write changed one in state {state}");
    }
    assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
}

#[tokio::test]
async fn a_run_changes_along_nothing_else() {
    changes_along_nothing_else("agentruns", RUN, "run").await;
}

#[tokio::test]
async fn a_policys_status_changes_along_nothing_else() {
    changes_along_nothing_else("agentpolicies", POLICY, "default").await;
}

/// Whoever writes a status without a guarded field is refused, and the object stays as it was.
#[tokio::test]
async fn no_guarded_field_can_be_dropped() {
    let (raw, table) = (kind("agentruns").await, Table::read(RUN));
    let live = lead(&raw, "ended", &table.steps("ended")).await;
    let mut surprises = Vec::new();
    for path in &table.guarded {
        let mut object = without(&live, path);
        object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        match raw.replace("ended", &object, true).await {
            Ok(_) => surprises.push(format!("{path} was dropped")),
            // The refusal names the field or the parent that keeps it: an item of a list is named by its list.
            Err(message) => {
                let named = path.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
                let (parent, _) = named.rsplit_once('.').unwrap_or((named, ""));
                if !message.contains(named) && !message.contains(&parent.replace(".0", "[0]").replace(".1", "[1]")) {
                    surprises.push(format!("{path}: {message}"));
                }
            }
        }
    }
    assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
    assert_eq!(raw.get("ended").await.expect("the run is there")["status"], live["status"]);
}
