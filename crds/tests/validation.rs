//! The tables, judged by client-side CEL in milliseconds. The same rows meet a real API server in `e2e/tests/api/`, which
//! also judges what is not CEL.

#[path = "tables/loader.rs"]
mod loader;

use std::collections::BTreeSet;

use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use loader::{Row, Table, without};
use serde_json::Value;

const TABLES: [(&str, &str); 5] = [
    ("ModelProvider", include_str!("tables/model_provider.yaml")),
    ("AgentTemplate", include_str!("tables/agent_template.yaml")),
    ("AgentPolicy", include_str!("tables/agent_policy.yaml")),
    ("AgentRunRecord", include_str!("tables/agent_run_record.yaml")),
    ("AgentRun", include_str!("tables/agent_run.yaml")),
];

/// A kind's schema, its rows, and what broke so far.
struct Kind {
    name: &'static str,
    schema: Value,
    rules: CompiledSchema,
    validator: Validator,
    table: Table,
    broken_rules: BTreeSet<String>,
    surprises: Vec<String>,
}

impl Kind {
    fn all() -> Vec<Kind> {
        let crds = agentrun_crds::all();
        let kind = |(name, yaml): (&'static str, &str)| {
            let crd = crds.iter().find(|crd| crd.spec.names.kind == name).expect("the kind exists");
            let props = crd.spec.versions[0].schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
            // Client-side CEL binds an absent old value to null, where the API server has an empty optional.
            let text = serde_json::to_string(props).expect("JSON").replace("oldSelf.hasValue()", "oldSelf != null");
            let schema: Value = serde_json::from_str(&text).expect("JSON");
            let rules = compile_schema(&schema);
            Kind {
                name,
                schema,
                rules,
                validator: Validator::new(),
                table: Table::read(yaml),
                broken_rules: BTreeSet::new(),
                surprises: Vec::new(),
            }
        };
        TABLES.into_iter().map(kind).collect()
    }

    /// Each broken rule's place and message.
    fn judge(&mut self, object: &Value, old: Option<&Value>) -> Vec<(String, String)> {
        let Err(errors) = self.validator.validate_compiled(&self.rules, object, old) else { return Vec::new() };
        self.broken_rules.extend(errors.iter().map(|error| error.rule.clone()));
        errors.iter().map(|error| (error.field_path.clone(), error.message.clone())).collect()
    }

    /// A rule may stand on a parent of the field that the API server names; a map's entry is not named the same by both.
    fn expect(&mut self, row: &Row, accepted: bool, broken: &[(String, String)]) {
        let as_told = match &row.says {
            Some(says) => broken
                .iter()
                .any(|(place, message)| (row.field.starts_with(place.as_str()) || place.starts_with(&row.field)) && message.contains(says)),
            None => broken.is_empty(),
        };
        if !as_told || accepted != broken.is_empty() {
            self.surprises.push(format!("{}: {}: wanted {:?}, got {broken:?}", self.name, row.name, row.says));
        }
    }
}

/// Rows that CEL can judge: the rest is the plain schema's, or needs what only the API server has.
fn judgeable<'t>(good: &'t [Row], bad: &'t [Row]) -> impl Iterator<Item = (&'t Row, bool)> {
    let bad = bad.iter().filter(|row| row.says.is_some()).map(|row| (row, false));
    good.iter().map(|row| (row, true)).chain(bad).filter(|(row, _)| !row.server)
}

/// Every row of every table.
fn judged() -> Vec<Kind> {
    let mut kinds = Kind::all();
    for kind in &mut kinds {
        let table = std::mem::replace(&mut kind.table, Table::read("{base: {}, good: [], bad: []}"));
        for (row, accepted) in judgeable(&table.good, &table.bad) {
            let broken = kind.judge(&table.object(row), None);
            kind.expect(row, accepted, &broken);
        }
        for state in table.states.keys() {
            let steps = table.steps(state);
            for (index, step) in steps.iter().enumerate() {
                let broken = kind.judge(step, index.checked_sub(1).map(|before| &steps[before]));
                if !broken.is_empty() {
                    kind.surprises.push(format!("{}: state {state}, step {index}: {broken:?}", kind.name));
                }
            }
        }
        for (row, accepted) in judgeable(&table.accepted, &table.refused) {
            let (steps, last) = table.update(row);
            let broken = kind.judge(&last, steps.last());
            kind.expect(row, accepted, &broken);
        }
        for path in &table.guarded {
            let ended = table.steps("ended").pop().expect("a state");
            kind.judge(&without(&ended, path), Some(&ended));
        }
        kind.table = table;
    }
    kinds
}

#[test]
fn rows_are_judged_as_told_and_every_rule_is_broken_by_one() {
    let mut complaints = Vec::new();
    for kind in judged() {
        complaints.extend(kind.surprises.iter().cloned());
        let mut rules = BTreeSet::new();
        collect_rules(&kind.schema, &mut rules);
        complaints.extend(rules.difference(&kind.broken_rules).map(|rule| format!("{}: no row breaks {rule}", kind.name)));
    }
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

fn collect_rules(schema: &Value, rules: &mut BTreeSet<String>) {
    if let Some(list) = schema.get("x-kubernetes-validations").and_then(Value::as_array) {
        rules.extend(list.iter().filter_map(|rule| rule["rule"].as_str()).map(str::to_owned));
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(keyword) {
            collect_rules(inner, rules);
        }
    }
    for property in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.values()) {
        collect_rules(property, rules);
    }
}

/// A new status field must be put into one of the two lists.
#[test]
fn every_status_field_is_guarded_or_said_to_be_free() {
    let kind = Kind::all().pop().expect("AgentRun is last");
    let listed: BTreeSet<_> = kind.table.guarded.iter().chain(&kind.table.free).cloned().collect();
    let status = &kind.schema["properties"]["status"];
    for (schema, prefix) in
        [(status, "status"), (&status["properties"]["budget"], "status.budget"), (&status["properties"]["exchange"], "status.exchange")]
    {
        for field in schema["properties"].as_object().expect("an object").keys() {
            let path = format!("{prefix}.{field}");
            assert!(listed.contains(&path), "{path} is neither guarded nor free in crds/tests/tables/agent_run.yaml");
        }
    }
}

/// Whether client-side CEL or `required` refuses it; which of the two, the API server's test does not care about either.
#[test]
fn each_guarded_field_stays() {
    let mut kind = Kind::all().pop().expect("AgentRun is last");
    let ended = kind.table.steps("ended").pop().expect("a state");
    for path in kind.table.guarded.clone() {
        let dropped = without(&ended, &path);
        let refused = !kind.judge(&dropped, Some(&ended)).is_empty() || !missing(&kind.schema, &dropped).is_empty();
        assert!(refused, "{path} may be dropped");
    }
}

/// Required fields without a default that an object lacks.
fn missing(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(map) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) && schema["properties"][name].get("default").is_none() {
                found.push(name.to_owned());
            }
        }
        for (name, inner) in map {
            found.extend(missing(&schema["properties"][name], inner));
        }
    }
    found.extend(value.as_array().into_iter().flatten().flat_map(|item| missing(&schema["items"], item)));
    found
}

/// What people may write is what the Rust types read, and what they write back is accepted again.
#[test]
fn good_objects_survive_the_types() {
    for mut kind in Kind::all() {
        let table = std::mem::replace(&mut kind.table, Table::read("{base: {}, good: [], bad: []}"));
        let states = table.states.keys().flat_map(|state| table.steps(state));
        let objects: Vec<Value> = table.good.iter().map(|row| table.object(row)).chain(states).collect();
        for object in objects {
            let written = match kind.name {
                "AgentRun" => round_trip::<agentrun_crds::AgentRun>(&object),
                "AgentRunRecord" => round_trip::<agentrun_crds::AgentRunRecord>(&object),
                "AgentPolicy" => round_trip::<agentrun_crds::AgentPolicy>(&object),
                "AgentTemplate" => round_trip::<agentrun_crds::AgentTemplate>(&object),
                _ => round_trip::<agentrun_crds::ModelProvider>(&object),
            };
            let broken = kind.judge(&written, Some(&written));
            assert!(broken.is_empty(), "{}: {object}: {broken:?}", kind.name);
        }
    }
}

/// Read and write, without the nulls that the API server drops.
fn round_trip<K: serde::Serialize + serde::de::DeserializeOwned>(object: &Value) -> Value {
    fn drop_nulls(value: &mut Value) {
        if let Some(map) = value.as_object_mut() {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        value.as_array_mut().into_iter().flatten().for_each(drop_nulls);
    }
    let typed: K = serde_json::from_value(object.clone()).expect("the type reads what the schema accepts");
    let mut written = serde_json::to_value(typed).expect("JSON");
    drop_nulls(&mut written);
    written
}
