//! Anthropic Messages.

use serde_json::Value;

use super::{BadRequest, Dialect, Request, bad, limit, list, marker, model, texts};

pub fn parse(value: &Value) -> Result<Request, BadRequest> {
    let model = model(value)?;
    let messages = list(value, "messages")?;
    check_order(messages)?;
    let user = messages.iter().filter(|message| message["role"] == "user").flat_map(|message| texts(&message["content"]));
    Ok(Request {
        stream: value["stream"] == true,
        max_tokens: limit("max_tokens", &value["max_tokens"])?,
        marker: marker(texts(&value["system"]).chain(user)),
        turn: messages.iter().filter(|message| message["role"] == "assistant").count(),
        ..Request::of(Dialect::Messages, model, &value["messages"])
    })
}

/// Each `tool_use` is answered by a `tool_result` of the next message.
fn check_order(messages: &[Value]) -> Result<(), BadRequest> {
    let blocks = |message: &Value, kind: &str, id: &str| -> Vec<String> {
        let blocks = message["content"].as_array().into_iter().flatten().filter(|block| block["type"] == kind);
        blocks.filter_map(|block| block[id].as_str().map(str::to_owned)).collect()
    };
    let mut open: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let answered = blocks(message, "tool_result", "tool_use_id");
        if let Some(id) = open.iter().find(|id| !answered.contains(id)) {
            return Err(bad(
                format!("messages.{at}"),
                format!("`tool_use` ids were found without `tool_result` blocks immediately after: {id}"),
            ));
        }
        if let Some(id) = answered.iter().find(|id| !open.contains(id)) {
            return Err(bad(format!("messages.{at}.content"), format!("unexpected `tool_use_id` found in `tool_result` blocks: {id}")));
        }
        open = match message["role"].as_str() {
            Some("assistant") => blocks(message, "tool_use", "id"),
            Some("user" | "system") => Vec::new(),
            other => return Err(bad(format!("messages.{at}.role"), format!("unexpected role {other:?}"))),
        };
    }
    if open.is_empty() { Ok(()) } else { Err(bad("messages", format!("no `tool_result` answers: {}", open.join(", ")))) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_is_checked_and_the_turn_counted() {
        let user = json!({"role": "user", "content": "hello"});
        let call = json!({"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "a", "name": "n", "input": {}}]});
        let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]});
        for (messages, expected) in [
            (json!([user]), Ok(0)),
            (json!([user, call, result]), Ok(1)),
            (json!([user, call, result, call, result]), Ok(2)),
            (json!([user, call]), Err("messages")),
            (json!([user, call, user]), Err("messages.2")),
            (json!([user, result]), Err("messages.1.content")),
            (json!([{"role": "robot"}]), Err("messages.0.role")),
            (json!([]), Err("messages")),
        ] {
            let turn = parse(&json!({"model": "m", "max_tokens": 5, "messages": messages})).map(|request| request.turn);
            assert_eq!(turn.map_err(|error| error.param.unwrap_or_default()), expected.map_err(str::to_owned), "{messages}");
        }
    }
}
