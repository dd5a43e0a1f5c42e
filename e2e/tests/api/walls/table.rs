//! Rows of the tables beside this file: a change to a good object, who sends it, and what refuses it with which words.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::bed::Sender;

/// Read a table, whose rows may build on one another by YAML's anchors and merge keys.
pub fn read<T: DeserializeOwned>(yaml: &str) -> T {
    let mut table: serde_yaml::Value = serde_yaml::from_str(yaml).expect("a table is YAML");
    table.apply_merge().expect("what is merged is a mapping");
    serde_yaml::from_value(table).expect("a table is well-formed")
}

/// One row. `set` has JSON pointers; `null` takes a field away, `-` adds to a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Row {
    pub name: String,
    #[serde(default)]
    pub sender: Sender,
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// A merge patch of a status.
    #[serde(default)]
    pub status: Value,
    /// The subresource that is written or connected to; of a status, the step that it follows.
    #[serde(default)]
    pub at: String,
    /// The policy that refuses; none: it is accepted.
    #[serde(default)]
    pub by: String,
    /// A part of its message.
    #[serde(default)]
    pub says: String,
}

impl Row {
    /// The good object with this row's changes.
    pub fn change(&self, good: &Value) -> Value {
        let mut object = good.clone();
        for (pointer, value) in &self.set {
            put(&mut object, pointer, value);
        }
        object
    }

    /// What is wrong with the answers from behind the walls and from where there are none. `unwalled`: what is said there instead
    /// of accepting, for requests that nobody can serve without a node.
    pub fn surprise(&self, walled: &Result<Value, String>, open: &Result<Value, String>, unwalled: Option<&str>) -> Option<String> {
        let passed = |answer: &Result<Value, String>| match (answer, unwalled) {
            (Ok(_), None) => true,
            (Err(message), Some(other)) => message.contains(other),
            _ => false,
        };
        let refused = format!("ValidatingAdmissionPolicy '{}'", self.by);
        let wrong = match walled {
            _ if !passed(open) => format!("without the walls: {open:?}"),
            answer if self.by.is_empty() => return (!passed(answer)).then(|| format!("{}: {answer:?}", self.name)),
            Err(message) if message.contains(&refused) && message.contains(&self.says) && !self.says.is_empty() => return None,
            Err(message) => format!("refused, but not by {} with {:?}: {message}", self.by, self.says),
            Ok(_) => "accepted".to_owned(),
        };
        Some(format!("{}: {wrong}", self.name))
    }
}

fn put(object: &mut Value, pointer: &str, value: &Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap_or_else(|| unreachable!("{pointer} is no JSON pointer"));
    let last = last.replace("~1", "/").replace("~0", "~");
    let parent = place(object, parent);
    match parent {
        Value::Array(items) if last == "-" => items.push(value.clone()),
        Value::Array(items) => items[last.parse::<usize>().expect("a list is indexed")] = value.clone(),
        Value::Object(map) if value.is_null() => assert!(map.remove(&last).is_some(), "nothing to take away at {pointer}"),
        Value::Object(map) => drop(map.insert(last, value.clone())),
        _ => unreachable!("{pointer} leads nowhere"),
    }
}

/// What a pointer leads to; objects that are missing on the way are made.
fn place<'a>(object: &'a mut Value, pointer: &str) -> &'a mut Value {
    pointer.split('/').skip(1).fold(object, |here, step| match here {
        Value::Array(items) => &mut items[step.parse::<usize>().expect("a list is indexed")],
        Value::Object(map) => map.entry(step.replace("~1", "/").replace("~0", "~")).or_insert_with(|| json!({})),
        _ => unreachable!("{pointer} leads nowhere"),
    })
}
