#![allow(dead_code, reason = "each of the two test binaries that include this file uses a part of it")]
//! The tables of good and bad objects, one YAML file a kind beside this file. The same rows are judged by client-side CEL
//! (`crds/tests/validation.rs`) and by a real API server (`e2e/tests/api/`, which includes this file by its path).
//!
//! `base` is an object; a row changes it by `set` (path: value) and `drop` (paths) and is then created. `states` are
//! statuses reached by a chain of writes, each of which must be accepted; a row of `accepted` or `refused` begins at its
//! `state` and is one more write. A refusal names `field`; `says` is a part of a CEL rule's message, so a row without it is
//! the plain schema's business. `server: true`: only the API server can judge it.
//!
//! Values: `{$repeat: [text, n]}` is a string, `{$list: [n, item]}` a list in which `#` in a string is the index and the
//! string `$index` the index itself, `{$nest: n}` an object n levels deep.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// One kind's rows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub base: Value,
    #[serde(default)]
    pub states: BTreeMap<String, State>,
    pub good: Vec<Row>,
    pub bad: Vec<Row>,
    #[serde(default)]
    pub accepted: Vec<Row>,
    #[serde(default)]
    pub refused: Vec<Row>,
    /// Status fields that must not go once they are there, and the rest of the status.
    #[serde(default)]
    pub guarded: Vec<String>,
    #[serde(default)]
    pub free: Vec<String>,
}

/// One write of a chain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    after: Option<String>,
    #[serde(default)]
    set: Map<String, Value>,
    #[serde(default)]
    drop: Vec<String>,
}

/// One row.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub name: String,
    pub state: Option<String>,
    #[serde(default)]
    set: Map<String, Value>,
    #[serde(default)]
    drop: Vec<String>,
    #[serde(default)]
    pub field: String,
    pub says: Option<String>,
    #[serde(default)]
    pub server: bool,
}

impl Table {
    /// Read a table.
    pub fn read(yaml: &str) -> Table {
        serde_yaml::from_str(yaml).expect("a table is well-formed")
    }

    /// The object that a row of `good` or `bad` creates.
    pub fn object(&self, row: &Row) -> Value {
        changed(&self.base, &row.set, &row.drop)
    }

    /// Every object on the way to a row's state (the first is created), and the last write, which the row is about.
    pub fn update(&self, row: &Row) -> (Vec<Value>, Value) {
        let steps = self.steps(row.state.as_deref().expect("an update begins at a state"));
        let last = changed(steps.last().expect("there is a base"), &row.set, &row.drop);
        (steps, last)
    }

    /// Every object on the way to a state.
    pub fn steps(&self, state: &str) -> Vec<Value> {
        let found = self.states.get(state).unwrap_or_else(|| unreachable!("no state {state}"));
        let mut steps = found.after.as_deref().map_or_else(|| vec![self.base.clone()], |before| self.steps(before));
        if !found.set.is_empty() || !found.drop.is_empty() {
            steps.push(changed(steps.last().expect("there is a base"), &found.set, &found.drop));
        }
        steps
    }
}

/// The object without the field at a path.
pub fn without(object: &Value, path: &str) -> Value {
    changed(object, &Map::new(), &[path.to_owned()])
}

fn changed(object: &Value, set: &Map<String, Value>, drop: &[String]) -> Value {
    let mut object = object.clone();
    for (path, value) in set {
        *place(&mut object, path) = expanded(value, None);
    }
    for path in drop {
        let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
        let parent = if parent.is_empty() { &mut object } else { place(&mut object, parent) };
        match parent {
            Value::Object(map) => assert!(map.remove(last).is_some(), "nothing to drop at {path}"),
            Value::Array(items) => drop_at(items, last, path),
            _ => unreachable!("nothing to drop at {path}"),
        }
    }
    object
}

fn drop_at(items: &mut Vec<Value>, index: &str, path: &str) {
    let index: usize = index.parse().expect("a list is indexed");
    assert!(index < items.len(), "nothing to drop at {path}");
    items.remove(index);
}

fn place<'a>(object: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(object, |here, step| match step.parse::<usize>() {
        Ok(index) => {
            if here.is_null() {
                *here = json!([]);
            }
            let items = here.as_array_mut().unwrap_or_else(|| unreachable!("{path} indexes no list"));
            if items.len() == index {
                items.push(Value::Null);
            }
            &mut items[index]
        }
        Err(_) => {
            if here.is_null() {
                *here = json!({});
            }
            here.as_object_mut().unwrap_or_else(|| unreachable!("{path} enters no object")).entry(step).or_insert(Value::Null)
        }
    })
}

fn expanded(value: &Value, index: Option<usize>) -> Value {
    match value {
        Value::Object(map) if map.contains_key("$repeat") => {
            let (text, times): (String, usize) = serde_json::from_value(map["$repeat"].clone()).expect("$repeat: [text, n]");
            text.repeat(times).into()
        }
        Value::Object(map) if map.contains_key("$list") => {
            let (length, item): (usize, Value) = serde_json::from_value(map["$list"].clone()).expect("$list: [n, item]");
            (0..length).map(|index| expanded(&item, Some(index))).collect()
        }
        Value::Object(map) if map.contains_key("$nest") => {
            let depth = map["$nest"].as_u64().expect("$nest: n");
            (0..depth).fold(json!({}), |inner, _| json!({ "a": inner }))
        }
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), expanded(value, index))).collect(),
        Value::Array(items) => items.iter().map(|item| expanded(item, index)).collect(),
        Value::String(text) => match index {
            Some(index) if text == "$index" => index.into(),
            Some(index) => text.replace('#', &index.to_string()).into(),
            None => value.clone(),
        },
        other => other.clone(),
    }
}
