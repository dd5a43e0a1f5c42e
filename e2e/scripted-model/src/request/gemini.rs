//! Gemini generateContent and streamGenerateContent. The model and the call stand in the path.

use serde_json::Value;

use super::{BadRequest, Dialect, Request, bad, limit, list, marker};

pub fn parse(value: &Value, path: &str) -> Result<Request, BadRequest> {
    let (model, call) = path.rsplit_once(':').ok_or_else(|| bad("path", "expected models/{model}:{call}"))?;
    let contents = list(value, "contents")?;
    check_order(contents)?;
    let said = contents.iter().filter(|content| content["role"] != "model").chain([&value["systemInstruction"]]);
    let model_spoke = |content: &Value| content["role"] == "model";
    let runs = contents.iter().map(model_spoke).fold((0, false), |(runs, before), now| (runs + usize::from(now && !before), now));
    Ok(Request {
        stream: call == "streamGenerateContent",
        max_tokens: limit("generationConfig.maxOutputTokens", &value["generationConfig"]["maxOutputTokens"])?,
        marker: marker(said.flat_map(parts).filter_map(|part| part["text"].as_str())),
        turn: runs.0,
        ..Request::of(Dialect::Gemini, model.to_owned(), &value["contents"])
    })
}

fn parts(content: &Value) -> impl Iterator<Item = &Value> {
    content["parts"].as_array().into_iter().flatten()
}

/// As many function responses as there were calls, right behind them.
fn check_order(contents: &[Value]) -> Result<(), BadRequest> {
    let count = |content: &Value, kind: &str| parts(content).filter(|part| part[kind].is_object()).count();
    let mut open = 0;
    for content in contents {
        let answered = count(content, "functionResponse");
        if answered != open {
            let message = "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.";
            return Err(bad("contents", message));
        }
        open = count(content, "functionCall");
    }
    if open == 0 { Ok(()) } else { Err(bad("contents", "a function call turn has no function response turn")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_is_checked_and_the_turn_counted() {
        let user = json!({"role": "user", "parts": [{"text": "[script:x]"}]});
        let call = json!({"role": "model", "parts": [{"functionCall": {"name": "n", "args": {}}}]});
        let response = json!({"role": "user", "parts": [{"functionResponse": {"name": "n", "response": {}}}]});
        for (contents, expected) in [
            (json!([user]), Ok(0)),
            (json!([user, call, response]), Ok(1)),
            (json!([user, call]), Err("contents")),
            (json!([user, call, user]), Err("contents")),
            (json!([user, response]), Err("contents")),
            (json!([]), Err("contents")),
        ] {
            let turn = parse(&json!({"contents": contents}), "m:generateContent").map(|request| request.turn);
            assert_eq!(turn.map_err(|error| error.param.unwrap_or_default()), expected.map_err(str::to_owned), "{contents}");
        }
        let request = parse(&json!({"contents": [user]}), "a/m:streamGenerateContent").unwrap();
        assert_eq!((request.model.as_str(), request.stream, request.marker.as_deref()), ("a/m", true, Some("x")));
    }
}
