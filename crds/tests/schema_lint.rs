//! What every schema must keep to: strings, lists and maps have bounds, lists say how they merge, numbers are integers of
//! known formats, nothing unknown is kept, nothing is null, and each rule says in words what is allowed.

use serde_json::Value;

/// One complaint about one place.
fn lint(path: &str, schema: &Value, complaints: &mut Vec<String>) {
    let mut complain = |what: &str| complaints.push(format!("{path}: {what}"));
    let has = |keyword: &str| schema.get(keyword).is_some();
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => {
            let known_length = schema.get("format").and_then(Value::as_str) == Some("date-time");
            if !has("maxLength") && !has("enum") && !known_length {
                complain("a string without maxLength");
            }
        }
        Some("array") => {
            if !has("maxItems") {
                complain("a list without maxItems");
            }
            match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("map") if !has("x-kubernetes-list-map-keys") => complain("a list-map without keys"),
                Some("map" | "set" | "atomic") => {}
                _ => complain("a list without list type"),
            }
            if !has("items") {
                complain("a list without items");
            }
        }
        Some("object") => {
            if has("additionalProperties") && !has("maxProperties") {
                complain("a map without maxProperties");
            }
            if !has("properties") && !has("additionalProperties") {
                complain("an object of unknown content");
            }
        }
        Some("integer") => match schema.get("format").and_then(Value::as_str) {
            Some("int32" | "int64") => {}
            format => complain(&format!("an integer of format {format:?}")),
        },
        Some("boolean") => {}
        other => complain(&format!("type {other:?}")),
    }
    for forbidden in ["nullable", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"] {
        if has(forbidden) {
            complain(forbidden);
        }
    }
    for rule in schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
        let message = rule.get("message").and_then(Value::as_str).unwrap_or_default();
        if message.len() < 8 || message.contains('\n') {
            complain(&format!("a rule without a message of one line: {rule}"));
        }
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        lint(&format!("{path}.{name}"), property, complaints);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(keyword) {
            lint(&format!("{path}[]"), inner, complaints);
        }
    }
}

/// Each definition's name and schema.
fn schemas() -> Vec<(String, Value)> {
    let schema = |crd: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
        let props = crd.spec.versions[0].schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
        (crd.metadata.name.clone().expect("a name"), serde_json::to_value(props).expect("JSON"))
    };
    agentrun_crds::all().iter().map(schema).collect()
}

#[test]
fn every_schema_is_bounded() {
    let mut complaints = Vec::new();
    for (name, mut schema) in schemas() {
        // The API server knows `metadata` better than any schema of ours.
        schema["properties"].as_object_mut().expect("properties").remove("metadata");
        lint(&name, &schema, &mut complaints);
    }
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn the_lint_sees_what_it_is_for() {
    for (schema, complaint) in [
        (serde_json::json!({"type": "string"}), "without maxLength"),
        (serde_json::json!({"type": "number"}), "type Some(\"number\")"),
        (serde_json::json!({"type": "integer", "format": "uint32"}), "uint32"),
        (serde_json::json!({"type": "array", "maxItems": 1, "items": {"type": "boolean"}}), "without list type"),
        (serde_json::json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "boolean"}}), "without maxItems"),
        (serde_json::json!({"type": "object"}), "unknown content"),
        (serde_json::json!({"type": "object", "additionalProperties": {"type": "boolean"}}), "without maxProperties"),
        (serde_json::json!({"type": "boolean", "nullable": true}), "nullable"),
        (serde_json::json!({"type": "object", "properties": {"a": {"type": "string"}}}), "x.a: a string"),
        (serde_json::json!({"type": "boolean", "x-kubernetes-validations": [{"rule": "self"}]}), "without a message"),
    ] {
        let mut complaints = Vec::new();
        lint("x", &schema, &mut complaints);
        assert!(complaints.len() == 1 && complaints[0].contains(complaint), "{schema}: {complaints:?}");
    }
}

#[test]
fn columns_and_short_names_stay() {
    let crd = agentrun_crds::all().pop().expect("AgentRun is last");
    let version = &crd.spec.versions[0];
    let columns: Vec<_> = version.additional_printer_columns.iter().flatten().map(|c| (c.name.as_str(), c.priority.unwrap_or(0))).collect();
    let wanted = [("Phase", 0), ("Model", 0), ("Requests", 0), ("Approvals", 0), ("Age", 0), ("Pod", 1), ("Reason", 1), ("Cost", 1)];
    assert_eq!(columns, wanted);
    assert_eq!(crd.spec.names.short_names.as_deref(), Some(&["ar".to_owned()][..]));
    assert_eq!(crd.spec.names.categories.as_deref(), Some(&["agents".to_owned()][..]));
}
