//! JSON merge patches: what turns one value into another, and nothing if they are equal. Pure.

use serde_json::{Map, Value};

/// The merge patch (RFC 7396) that turns `from` into `to`; `None` if nothing differs.
pub fn diff(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return Some(to.clone()) };
    let mut patch = Map::new();
    for (key, value) in to {
        match from.get(key) {
            None => {
                patch.insert(key.clone(), value.clone());
            }
            Some(old) => {
                if let Some(changed) = diff(old, value) {
                    patch.insert(key.clone(), changed);
                }
            }
        }
    }
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table() {
        for (from, to, expected) in [
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({"a": 2}), Some(json!({"a": 2}))),
            (json!({"a": 1, "b": 2}), json!({"a": 1}), Some(json!({"b": null}))),
            (json!({"a": {"x": 1, "y": [1]}}), json!({"a": {"x": 1, "y": [2]}}), Some(json!({"a": {"y": [2]}}))),
            (json!({"a": [1, 2]}), json!({"a": []}), Some(json!({"a": []}))),
            (json!({}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
        ] {
            assert_eq!(diff(&from, &to), expected, "{from} to {to}");
        }
    }
}
