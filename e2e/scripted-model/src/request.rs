//! A chat/completions request as far as the scripted model reads it: which script, which turn, and whether the
//! conversation is one that a real provider would take. Pure.

use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A request that was understood.
#[derive(Debug, PartialEq)]
pub struct ChatRequest {
    pub model: String,
    pub stream: bool,
    pub include_usage: bool,
    /// Tokens that the answer may have.
    pub max_tokens: Option<u64>,
    /// NAME of `[script:NAME]` in the first system or user message.
    pub marker: Option<String>,
    /// How many messages of the assistant there are.
    pub turn: usize,
    /// Bytes of the messages.
    pub prompt_bytes: u64,
    /// The same for a repeat of the same request.
    pub conversation: u64,
}

/// What is wrong with a request: OpenAI's `param`, and a message.
#[derive(Debug, PartialEq)]
pub struct BadRequest {
    pub param: Option<String>,
    pub message: String,
}

fn bad(param: impl Into<String>, message: impl Into<String>) -> BadRequest {
    BadRequest { param: Some(param.into()), message: message.into() }
}

impl ChatRequest {
    /// Read a body, as strictly as providers do about the order of tool calls and their results.
    pub fn parse(body: &[u8]) -> Result<ChatRequest, BadRequest> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| BadRequest { param: None, message: format!("We could not parse the JSON body of your request: {error}") })?;
        let model = value["model"].as_str().ok_or_else(|| bad("model", "you must provide a model parameter"))?.to_owned();
        let messages = value["messages"].as_array().filter(|list| !list.is_empty());
        let messages = messages.ok_or_else(|| bad("messages", "expected an array with at least one message"))?;
        check_order(messages)?;
        let max_tokens = match (&value["max_completion_tokens"], &value["max_tokens"]) {
            (Value::Null, Value::Null) => None,
            (Value::Null, limit) | (limit, _) => {
                Some(limit.as_u64().filter(|n| *n > 0).ok_or_else(|| bad("max_tokens", "expected a positive integer"))?)
            }
        };
        let text = value["messages"].to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Ok(ChatRequest {
            model,
            stream: value["stream"] == true,
            include_usage: value["stream_options"]["include_usage"] == true,
            max_tokens,
            marker: marker(messages),
            turn: messages.iter().filter(|message| message["role"] == "assistant").count(),
            prompt_bytes: text.len() as u64,
            conversation: hasher.finish(),
        })
    }
}

/// Roles are known, and each tool call of the assistant is answered before anybody else speaks.
fn check_order(messages: &[Value]) -> Result<(), BadRequest> {
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let answered = open.iter().position(|open| *open == id);
            let answered = answered.ok_or_else(|| {
                bad(
                    format!("messages.[{at}].role"),
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'",
                )
            })?;
            open.remove(answered);
            continue;
        }
        if !open.is_empty() {
            return Err(bad(
                format!("messages.[{at}].role"),
                format!("an assistant message with 'tool_calls' must be followed by tool messages; no answer to: {}", open.join(", ")),
            ));
        }
        match role {
            "system" | "developer" | "user" => {}
            "assistant" => open = message["tool_calls"].as_array().into_iter().flatten().filter_map(|call| call["id"].as_str()).collect(),
            other => return Err(bad(format!("messages[{at}].role"), format!("invalid value: {other:?}"))),
        }
    }
    if open.is_empty() { Ok(()) } else { Err(bad("messages", format!("no tool message answers: {}", open.join(", ")))) }
}

fn marker(messages: &[Value]) -> Option<String> {
    let first = |roles: &[&str]| messages.iter().find(|message| message["role"].as_str().is_some_and(|role| roles.contains(&role)));
    [first(&["system", "developer"]), first(&["user"])].into_iter().flatten().find_map(|message| {
        let content = &message["content"];
        let parts = content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
        content.as_str().into_iter().chain(parts).find_map(|text| {
            let (_, rest) = text.split_once("[script:")?;
            rest.split_once(']').map(|(name, _)| name.to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: Value) -> Result<ChatRequest, BadRequest> {
        ChatRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn the_turn_counts_the_assistants_messages() {
        let user = json!({"role": "user", "content": "hello"});
        let call = json!({"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]});
        let tool = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "x"});
        for (messages, expected) in [
            (json!([user]), Ok(0)),
            (json!([user, call, tool("a"), tool("b")]), Ok(1)),
            (json!([user, call, tool("b"), tool("a"), user, {"role": "assistant", "content": "y"}, user]), Ok(2)),
            (json!([user, call, tool("a")]), Err("messages")),
            (json!([user, call, tool("a"), user]), Err("messages.[3].role")),
            (json!([user, tool("a")]), Err("messages.[1].role")),
            (json!([{"role": "robot"}]), Err("messages[0].role")),
            (json!([]), Err("messages")),
        ] {
            let turn = parse(json!({"model": "m", "messages": messages})).map(|request| request.turn);
            assert_eq!(turn.map_err(|error| error.param.unwrap_or_default()), expected.map_err(str::to_owned), "{messages}");
        }
    }

    #[test]
    fn the_marker_stands_in_the_first_messages_only() {
        for (messages, expected) in [
            (json!([{"role": "system", "content": "be [script:one] good"}]), Some("one")),
            (
                json!([{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "[script:two]"}]}]),
                Some("two"),
            ),
            (json!([{"role": "user", "content": "x"}, {"role": "user", "content": "[script:three]"}]), None),
            (json!([{"role": "user", "content": "[script:open"}]), None),
        ] {
            let request = parse(json!({"model": "m", "messages": messages})).unwrap();
            assert_eq!(request.marker.as_deref(), expected, "{messages}");
        }
    }
}
