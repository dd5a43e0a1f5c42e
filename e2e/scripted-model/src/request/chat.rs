//! OpenAI chat/completions.

use serde_json::Value;

use super::{BadRequest, Dialect, Request, bad, limit, list, marker, model, texts};

pub fn parse(value: &Value) -> Result<Request, BadRequest> {
    let model = model(value)?;
    let messages = list(value, "messages")?;
    check_order(messages)?;
    let max_tokens = match limit("max_completion_tokens", &value["max_completion_tokens"])? {
        None => limit("max_tokens", &value["max_tokens"])?,
        given => given,
    };
    let first = |roles: &[&str]| messages.iter().find(|message| message["role"].as_str().is_some_and(|role| roles.contains(&role)));
    let read = [first(&["system", "developer"]), first(&["user"])];
    Ok(Request {
        stream: value["stream"] == true,
        include_usage: value["stream_options"]["include_usage"] == true,
        max_tokens,
        marker: marker(read.into_iter().flatten().flat_map(|message| texts(&message["content"]))),
        turn: messages.iter().filter(|message| message["role"] == "assistant").count(),
        ..Request::of(Dialect::Chat, model, &value["messages"])
    })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
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
            let turn = parse(&json!({"model": "m", "messages": messages})).map(|request| request.turn);
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
            let request = parse(&json!({"model": "m", "messages": messages})).unwrap();
            assert_eq!(request.marker.as_deref(), expected, "{messages}");
        }
    }
}
