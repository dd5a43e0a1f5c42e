//! A request as far as the scripted model reads it: which script, which turn, and whether the conversation is one that a real
//! provider would take. A file for each dialect. Pure.

mod chat;
mod gemini;
mod messages;
mod responses;

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

/// The wire format of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Chat,
    Messages,
    Responses,
    Gemini,
}

/// A request that was understood.
#[derive(Debug, PartialEq)]
pub struct Request {
    pub dialect: Dialect,
    pub model: String,
    pub stream: bool,
    /// Chat: a stream reports its usage. The other dialects' always do.
    pub include_usage: bool,
    /// Tokens that the answer may have.
    pub max_tokens: Option<u64>,
    /// NAME of `[script:NAME]` in what the system or the user said.
    pub marker: Option<String>,
    /// How often the assistant has spoken.
    pub turn: usize,
    /// Bytes of the conversation.
    pub prompt_bytes: u64,
    /// The same for a repeat of the same request.
    pub conversation: u64,
}

/// What is wrong with a request: the field, and a message.
#[derive(Debug, PartialEq)]
pub struct BadRequest {
    pub param: Option<String>,
    pub message: String,
}

fn bad(param: impl Into<String>, message: impl Into<String>) -> BadRequest {
    BadRequest { param: Some(param.into()), message: message.into() }
}

impl Request {
    /// Read a body, as strictly as providers do about the order of tool calls and their results. For Gemini, `path` is what
    /// stands behind `models/`.
    pub fn parse(dialect: Dialect, path: &str, body: &[u8]) -> Result<Request, BadRequest> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| BadRequest { param: None, message: format!("We could not parse the JSON body of your request: {error}") })?;
        match dialect {
            Dialect::Chat => chat::parse(&value),
            Dialect::Messages => messages::parse(&value),
            Dialect::Responses => responses::parse(&value),
            Dialect::Gemini => gemini::parse(&value, path),
        }
    }

    /// What all dialects have in common; `said` is the conversation.
    fn of(dialect: Dialect, model: String, said: &Value) -> Request {
        let text = said.to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Request {
            dialect,
            model,
            stream: false,
            include_usage: true,
            max_tokens: None,
            marker: None,
            turn: 0,
            prompt_bytes: text.len() as u64,
            conversation: hasher.finish(),
        }
    }
}

fn model(value: &Value) -> Result<String, BadRequest> {
    value["model"].as_str().map(str::to_owned).ok_or_else(|| bad("model", "you must provide a model parameter"))
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a [Value], BadRequest> {
    let list = value[name].as_array().filter(|list| !list.is_empty());
    list.map(Vec::as_slice).ok_or_else(|| bad(name, "expected an array with at least one element"))
}

fn limit(name: &str, value: &Value) -> Result<Option<u64>, BadRequest> {
    if value.is_null() {
        return Ok(None);
    }
    value.as_u64().filter(|n| *n > 0).map(Some).ok_or_else(|| bad(name, "expected a positive integer"))
}

/// A content's texts: it is a string, or parts with a `text`.
fn texts(content: &Value) -> impl Iterator<Item = &str> {
    let parts = content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    content.as_str().into_iter().chain(parts)
}

fn marker<'a>(mut texts: impl Iterator<Item = &'a str>) -> Option<String> {
    texts.find_map(|text| {
        let (_, rest) = text.split_once("[script:")?;
        rest.split_once(']').map(|(name, _)| name.to_owned())
    })
}
