//! OpenAI Responses.

use serde_json::{Value, json};

use super::{BadRequest, Dialect, Request, bad, limit, list, marker, model, texts};

pub fn parse(value: &Value) -> Result<Request, BadRequest> {
    let model = model(value)?;
    let as_items = json!({"input": [{"role": "user", "content": value["input"]}]});
    let items = if value["input"].is_string() { list(&as_items, "input")? } else { list(value, "input")? };
    check_order(items)?;
    let said = items.iter().filter(|item| item["role"].is_string() && item["role"] != "assistant");
    let said = said.flat_map(|item| texts(&item["content"]));
    // What the assistant says at once may be several items.
    let assistant = |item: &Value| item["role"] == "assistant" || item["type"] == "reasoning" || is_call(item);
    let runs = items.iter().map(assistant).fold((0, false), |(runs, before), now| (runs + usize::from(now && !before), now));
    Ok(Request {
        stream: value["stream"] == true,
        max_tokens: limit("max_output_tokens", &value["max_output_tokens"])?,
        marker: marker(texts(&value["instructions"]).chain(said)),
        turn: runs.0,
        ..Request::of(Dialect::Responses, model, &value["input"])
    })
}

fn is_call(item: &Value) -> bool {
    item["type"].as_str().is_some_and(|kind| kind.ends_with("_call"))
}

/// Calls and their outputs come in pairs.
fn check_order(items: &[Value]) -> Result<(), BadRequest> {
    let ids = |wanted: &dyn Fn(&Value) -> bool| -> Vec<&str> {
        items.iter().filter(|item| wanted(item)).filter_map(|item| item["call_id"].as_str()).collect()
    };
    let calls = ids(&is_call);
    let outputs = ids(&|item| item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output")));
    if let Some(id) = calls.iter().find(|id| !outputs.contains(id)) {
        return Err(bad("input", format!("No tool output found for function call {id}.")));
    }
    match outputs.iter().find(|id| !calls.contains(id)) {
        Some(id) => Err(bad("input", format!("No tool call found for function call output with call_id {id}."))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_checked_and_the_turn_counted() {
        let user = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "[script:x]"}]});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "n", "arguments": "{}"});
        let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "x"});
        for (input, expected) in [
            (json!("hello"), Ok(0)),
            (json!([user]), Ok(0)),
            (json!([user, call("a"), call("b"), output("a"), output("b")]), Ok(1)),
            (json!([user, {"type": "reasoning"}, call("a"), output("a"), {"role": "assistant", "content": "y"}, user]), Ok(2)),
            (json!([user, call("a")]), Err("input")),
            (json!([user, output("a")]), Err("input")),
            (json!([]), Err("input")),
        ] {
            let turn = parse(&json!({"model": "m", "input": input})).map(|request| request.turn);
            assert_eq!(turn.map_err(|error| error.param.unwrap_or_default()), expected.map_err(str::to_owned), "{input}");
        }
        assert_eq!(parse(&json!({"model": "m", "input": [user]})).unwrap().marker.as_deref(), Some("x"));
    }
}
