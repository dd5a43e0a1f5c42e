//! The models that a run may use, as each dialect lists them. The list costs nothing and asks no provider.

use agentrun_crds::AgentRun;
use agentrun_protocol::routes::{GEMINI_MODELS, MODELS};
use axum::Json;
use axum::body::Body;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::operation::Operation;
use super::{Caller, envelope, refusal};
use crate::error::ApiError;

struct Listed {
    name: String,
    /// Unix seconds.
    created: i64,
    most_output: i64,
    embeds: bool,
}

fn listed(run: &AgentRun) -> Vec<Listed> {
    let created = run.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let Some(resolved) = run.status.as_ref().and_then(|status| status.resolved.as_ref()) else { return Vec::new() };
    let models = [(Some(&resolved.model), false), (resolved.embeddings.as_ref(), true)];
    let listed = |(model, embeds): (Option<&agentrun_crds::agent_run_status::ResolvedModel>, bool)| {
        model.map(|model| Listed { name: model.name.clone(), created, most_output: model.max_output_tokens, embeds })
    };
    models.into_iter().filter_map(listed).collect()
}

/// One form that OpenAI's clients read as well as Anthropic's.
fn openai(model: &Listed) -> Value {
    let created_at = jiff::Timestamp::from_second(model.created).unwrap_or_default().to_string();
    json!({
        "id": model.name, "object": "model", "created": model.created, "owned_by": "agentrun",
        "type": "model", "display_name": model.name, "created_at": created_at,
    })
}

fn google(model: &Listed) -> Value {
    let calls: &[&str] = if model.embeds { &[] } else { &["generateContent", "countTokens"] };
    json!({
        "name": format!("models/{}", model.name), "displayName": model.name, "version": "1", "outputTokenLimit": model.most_output,
        "supportedGenerationMethods": calls,
    })
}

/// `GET /v1/models`.
pub async fn models(caller: Caller, request: Request<Body>) -> Response {
    answer(caller, plain(&request), |models| {
        let data: Vec<Value> = models.iter().map(openai).collect();
        let id = |model: Option<&Listed>| model.map(|model| model.name.clone());
        Ok(json!({ "object": "list", "data": data, "has_more": false, "first_id": id(models.first()), "last_id": id(models.last()) }))
    })
}

/// `GET /v1/models/{name}`.
pub async fn model(caller: Caller, request: Request<Body>) -> Response {
    let name = name(&request, MODELS);
    answer(caller, plain(&request), |models| models.iter().find(|model| model.name == name).map(openai).ok_or_else(refusal::no_such_model))
}

/// `GET /v1beta/models`.
pub async fn gemini_models(caller: Caller) -> Response {
    answer(caller, Operation::Generate, |models| Ok(json!({ "models": models.iter().map(google).collect::<Vec<_>>() })))
}

/// `GET /v1beta/models/{name}`.
pub async fn gemini_model(caller: Caller, request: Request<Body>) -> Response {
    let name = name(&request, GEMINI_MODELS);
    answer(caller, Operation::Generate, |models| {
        models.iter().find(|model| model.name == name).map(google).ok_or_else(refusal::no_such_model)
    })
}

fn answer(caller: Caller, operation: Operation, list: impl FnOnce(&[Listed]) -> Result<Value, ApiError>) -> Response {
    match caller.and_then(|caller| list(&listed(&caller.run))) {
        Ok(value) => Json(value).into_response(),
        Err(error) => envelope::respond(operation, error),
    }
}

/// In whose words an error is said.
fn plain(request: &Request<Body>) -> Operation {
    if request.headers().contains_key("anthropic-version") { Operation::Messages } else { Operation::Chat }
}

fn name(request: &Request<Body>, below: &str) -> String {
    unescaped(request.uri().path().strip_prefix(below).unwrap_or_default().trim_start_matches('/'))
}

/// A part of a path as it was meant; what is no UTF-8 fits no name.
pub fn unescaped(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped = match behind {
            [high, low, ..] if *first == b'%' => {
                char::from(*high).to_digit(16).zip(char::from(*low).to_digit(16)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = &behind[if escaped.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_were_meant() {
        for (path, expected) in [("demo", "demo"), ("a%2Fb", "a/b"), ("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("%c3%bc", "ü"), ("%ff", "")]
        {
            assert_eq!(unescaped(path), expected, "{path}");
        }
    }
}
