//! The OpenAPI 3.1 document of the listener for people, made from the list of operations and the types that they carry. The
//! same is committed as `docs/reference/openapi.json`.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{OPERATIONS, Operation, PEOPLE_ONLY, RUN_PREFIXES};

/// What a body holds.
pub(super) enum Content {
    Nothing,
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// Of this media type.
    Bytes(&'static str),
    /// A run's events, as NDJSON or as server-sent events.
    Events,
}

/// A body of this type.
pub(super) const fn json<T: JsonSchema>() -> Content {
    Content::Json(SchemaGenerator::subschema_for::<T>)
}

/// The document.
pub(super) fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let error = schemas.subschema_for::<agentrun_protocol::error::ErrorBody>();
    let mut paths: Map<String, Value> = Map::new();
    let beneath = RUN_PREFIXES.iter().flat_map(|prefix| OPERATIONS.iter().map(move |one| (format!("{prefix}{}", one.path), one)));
    for (path, operation) in PEOPLE_ONLY.iter().map(|one| (one.path.to_owned(), one)).chain(beneath) {
        let described = described(&path, operation, &mut schemas);
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[operation.method.to_ascii_lowercase()] = described;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "AgentRun",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs, their events, approvals and results. The operations on one run are also served behind the cluster's API server, beneath /apis/run.agentrun.dev/v1alpha1/namespaces/{ns}/agentruns/{name}.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "A token that the cluster's TokenReview accepts, for the audience agentrun-gateway or the API server's own." },
            },
            "responses": { "Refused": { "description": "A refusal; the code is a stable word.", "content": { "application/json": { "schema": error } } } },
            "schemas": schemas.take_definitions(true),
        },
    })
}

fn described(path: &str, operation: &Operation, schemas: &mut SchemaGenerator) -> Value {
    let (status, gives) = &operation.gives;
    let mut answer = json!({ "description": "Done." });
    if let Some(content) = content(gives, schemas) {
        answer["content"] = content;
    }
    let mut described = json!({
        "operationId": operation_id(path, operation),
        "summary": operation.summary,
        "description": format!("Needs the RBAC verb `{}` on `agentruns.agentrun.dev`.", operation.right),
        "parameters": parameters(path, operation),
        "responses": { status.to_string(): answer, "default": { "$ref": "#/components/responses/Refused" } },
    });
    if let Some(content) = content(&operation.takes, schemas) {
        described["requestBody"] = json!({ "required": true, "content": content });
    }
    described
}

fn content(content: &Content, schemas: &mut SchemaGenerator) -> Option<Value> {
    Some(match content {
        Content::Nothing => return None,
        Content::Json(schema) => json!({ "application/json": { "schema": schema(schemas) } }),
        Content::Bytes(kind) => json!({ *kind: {} }),
        Content::Events => {
            let event = schemas.subschema_for::<agentrun_protocol::event::Event>();
            json!({ "application/x-ndjson": { "schema": event }, "text/event-stream": {} })
        }
    })
}

/// Unique: the method and the words of the path.
fn operation_id(path: &str, operation: &Operation) -> String {
    let words = path.split('/').map(|word| word.trim_matches(['{', '}'])).filter(|word| !word.is_empty() && *word != "v1");
    words.fold(operation.method.to_ascii_lowercase(), |id, word| {
        let (first, rest) = word.split_at(1);
        id + &first.to_ascii_uppercase() + rest
    })
}

fn parameters(path: &str, operation: &Operation) -> Vec<Value> {
    let text = json!({ "type": "string" });
    let in_path = path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": text })).collect();
    let mut optional = |name: &str, place: &str, schema: &Value, description: &str| {
        parameters.push(json!({ "name": name, "in": place, "schema": schema, "description": description }));
    };
    if matches!(operation.gives.1, Content::Events) {
        let (flag, number) = (json!({ "type": "boolean" }), json!({ "type": "integer", "minimum": 0 }));
        optional("after", "query", &number, "Only events after this number.");
        optional("follow", "query", &flag, "Wait for more, to the log's end.");
        optional("stream", "query", &flag, "As server-sent events.");
        optional("Last-Event-ID", "header", &text, "As `after`, from a reader of server-sent events that comes back.");
    }
    match (operation.method, path) {
        ("GET", "/v1/runs") => optional("namespace", "query", &text, "Only runs of this namespace."),
        ("POST", "/v1/runs") => optional("Idempotency-Key", "header", &text, "The same request again gives the same run."),
        _ => {}
    }
    parameters
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_committed_document_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/openapi.json");
        let current = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("AGENTRUN_REGENERATE").is_some() {
            std::fs::write(&path, &current).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == current, "{} is not what the code says; AGENTRUN_REGENERATE=1 writes it", path.display());
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_id_is_used_once() {
        let document = document();
        let (mut references, mut ids) = (BTreeSet::new(), Vec::new());
        collect(&document, &mut references, &mut ids);
        assert!(references.len() > 5, "{references:?}");
        for reference in references {
            let pointer = reference.strip_prefix('#').unwrap_or_default();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        let unique: BTreeSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{ids:?}");
        assert_eq!(ids.len(), PEOPLE_ONLY.len() + OPERATIONS.len() * RUN_PREFIXES.len());
    }

    fn collect(value: &Value, references: &mut BTreeSet<String>, ids: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                references.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                ids.extend(map.get("operationId").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| collect(value, references, ids));
            }
            Value::Array(items) => items.iter().for_each(|value| collect(value, references, ids)),
            _ => {}
        }
    }
}
