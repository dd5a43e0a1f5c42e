//! OpenAI's wire format: the JSON answer, the chunks of a stream, error bodies. Pure.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::request::{BadRequest, ChatRequest};
use crate::script::{Turn, Usage};

/// Bytes of text in one chunk of a stream.
const PIECE: usize = 24;
const BYTES_PER_TOKEN: u64 = 4;

/// A part of a body. `reports` are the prompt and completion tokens that it tells the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub bytes: Bytes,
    pub reports: Option<(i64, i64)>,
}

impl Part {
    /// A part that reports nothing.
    pub fn plain(bytes: impl Into<Bytes>) -> Part {
        Part { bytes: bytes.into(), reports: None }
    }
}

/// A turn as it is said in answer to one request: cut to the tokens allowed, with its usage.
pub struct Answer {
    id: String,
    created: u64,
    model: String,
    text: Option<String>,
    tool_calls: Vec<(String, String, String)>,
    finish_reason: &'static str,
    usage: Option<Value>,
}

impl Answer {
    /// Say the turn. `created` is in Unix seconds.
    pub fn new(turn: &Turn, request: &ChatRequest, created: u64) -> Answer {
        let mut text = turn.text.clone();
        let mut tool_calls: Vec<_> = turn
            .tool_calls
            .iter()
            .enumerate()
            .map(|(at, call)| {
                let arguments = call.arguments.as_str().map_or_else(|| call.arguments.to_string(), str::to_owned);
                (format!("call_{:x}_{}_{at}", request.conversation, request.turn), call.name.clone(), arguments)
            })
            .collect();
        let mut finish_reason = if tool_calls.is_empty() { "stop" } else { "tool_calls" };
        let length = |text: &Option<String>, calls: &[(String, String, String)]| {
            let calls: usize = calls.iter().map(|(_, name, arguments)| name.len() + arguments.len()).sum();
            (text.as_ref().map_or(0, String::len) + calls) as u64
        };
        let tokens = |bytes: u64| bytes.div_ceil(BYTES_PER_TOKEN).max(1);
        let mut completion = tokens(length(&text, &tool_calls));
        if let Some(most) = request.max_tokens.filter(|most| *most < completion) {
            tool_calls.clear();
            if let Some(text) = &mut text {
                text.truncate(text.floor_char_boundary((most * BYTES_PER_TOKEN) as usize));
            }
            (finish_reason, completion) = ("length", most);
        }
        let prompt = tokens(request.prompt_bytes);
        let usage = match &turn.usage {
            Usage::Missing => None,
            Usage::Raw(value) => Some(value.clone()),
            Usage::Computed => Some(json!({
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
            })),
        };
        let id = format!("chatcmpl-{:016x}{}", request.conversation, request.turn);
        Answer { id, created, model: request.model.clone(), text, tool_calls, finish_reason, usage }
    }

    fn reports(&self) -> Option<(i64, i64)> {
        let usage = self.usage.as_ref()?;
        Some((usage["prompt_tokens"].as_i64()?, usage["completion_tokens"].as_i64()?))
    }

    /// The JSON form.
    pub fn json(&self) -> Part {
        let mut message = json!({"role": "assistant", "content": self.text, "refusal": null, "annotations": []});
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter();
            message["tool_calls"] = calls
                .map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
                .collect();
        }
        let mut body = json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": self.finish_reason}],
            "service_tier": "default", "system_fingerprint": "fp_scripted",
        });
        if let Some(usage) = &self.usage {
            body["usage"] = usage.clone();
        }
        Part { bytes: body.to_string().into(), reports: self.reports() }
    }

    /// The streamed form: role, text and tool calls in pieces, the end, the usage if asked for, and `[DONE]` unless `done` is false.
    pub fn stream(&self, include_usage: bool, done: bool) -> Vec<Part> {
        let mut parts =
            vec![self.chunk(json!({"role": "assistant", "content": self.text.as_ref().map(|_| ""), "refusal": null}), None, include_usage)];
        for piece in pieces(self.text.as_deref().unwrap_or_default()) {
            parts.push(self.chunk(json!({"content": piece}), None, include_usage));
        }
        for (at, (id, name, arguments)) in self.tool_calls.iter().enumerate() {
            let head = json!({"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            parts.push(self.chunk(json!({"tool_calls": [head]}), None, include_usage));
            for piece in pieces(arguments) {
                parts.push(self.chunk(json!({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}), None, include_usage));
            }
        }
        parts.push(self.chunk(json!({}), Some(self.finish_reason), include_usage));
        if let Some(usage) = self.usage.as_ref().filter(|_| include_usage) {
            let mut value = self.frame(json!([]));
            value["usage"] = usage.clone();
            parts.push(Part { bytes: event(&value), reports: self.reports() });
        }
        if done {
            parts.push(Part::plain("data: [DONE]\n\n"));
        }
        parts
    }

    /// One more piece of text, for a stream that has no end.
    pub fn endless_chunk(&self, include_usage: bool) -> Part {
        self.chunk(json!({"content": "and so on "}), None, include_usage)
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>, include_usage: bool) -> Part {
        let mut value = self.frame(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason}]));
        if include_usage {
            value["usage"] = Value::Null;
        }
        Part::plain(event(&value))
    }

    fn frame(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "service_tier": "default", "system_fingerprint": "fp_scripted", "choices": choices,
        })
    }
}

fn event(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(PIECE.min(rest.len())));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// An error's status and body, as OpenAI words them.
pub fn error(status: u16, message: &str, param: Option<&str>) -> (u16, Value) {
    let (kind, code) = match status {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        403 => ("invalid_request_error", Some("unsupported_country_region_territory")),
        404 => ("invalid_request_error", Some("model_not_found")),
        429 => ("tokens", Some("rate_limit_exceeded")),
        500.. => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    (status, json!({"error": {"message": message, "type": kind, "param": param, "code": code}}))
}

impl From<BadRequest> for (u16, Value) {
    fn from(bad: BadRequest) -> Self {
        error(400, &bad.message, bad.param.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(max_tokens: Option<u64>) -> ChatRequest {
        let mut request = ChatRequest::parse(br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#).unwrap();
        request.max_tokens = max_tokens;
        request
    }

    type Joined = (String, Vec<(String, String)>, Option<String>, Option<Value>);

    /// What a client puts together from the stream's deltas: text, tool calls, finish reason, usage.
    fn joined(parts: &[Part]) -> Joined {
        let (mut text, mut calls, mut finish, mut usage) = (String::new(), Vec::<(String, String)>::new(), None, None);
        for part in parts {
            let line = std::str::from_utf8(&part.bytes).unwrap().strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
            if line == "[DONE]" {
                continue;
            }
            let value: Value = serde_json::from_str(line).unwrap();
            if value["usage"].is_object() {
                usage = Some(value["usage"].clone());
            }
            let Some(choice) = value["choices"].get(0) else { continue };
            text += choice["delta"]["content"].as_str().unwrap_or_default();
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let at = call["index"].as_u64().unwrap() as usize;
                if calls.len() == at {
                    calls.push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
                }
                calls[at].1 += call["function"]["arguments"].as_str().unwrap();
            }
            finish = choice["finish_reason"].as_str().map(str::to_owned).or(finish);
        }
        (text, calls, finish, usage)
    }

    #[test]
    fn the_stream_and_the_json_say_the_same() {
        let words = "über und über voller Wörter, und das in mehr als einem Stück";
        for turn in [
            Turn::say(words),
            Turn { text: Some(words.into()), ..Turn::call("run_command", json!({"argv": ["python3", "-m", "unittest", "discover"]})) },
            Turn::call("broken", json!("{\"path\": ")),
        ] {
            let answer = Answer::new(&turn, &request(None), 1);
            let json: Value = serde_json::from_slice(&answer.json().bytes).unwrap();
            let message = &json["choices"][0]["message"];
            let (text, calls, finish, usage) = joined(&answer.stream(true, true));
            assert_eq!(message["content"].as_str().unwrap_or_default(), text);
            let whole: Vec<(String, String)> = message["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|call| (call["function"]["name"].as_str().unwrap().into(), call["function"]["arguments"].as_str().unwrap().into()))
                .collect();
            assert_eq!(whole, calls);
            assert_eq!(json["choices"][0]["finish_reason"].as_str().map(str::to_owned), finish);
            assert_eq!(Some(json["usage"].clone()), usage);
        }
    }

    #[test]
    fn usage_is_sent_as_the_script_says() {
        for (usage, expected) in [
            (Usage::Missing, None),
            (Usage::Raw(json!({"prompt_tokens": -5, "completion_tokens": 99})), Some((-5, 99))),
            (Usage::Raw(json!("none")), None),
            (Usage::Computed, Some((8, 1))),
        ] {
            let answer = Answer::new(&Turn::say("hi").with_usage(usage), &request(None), 1);
            assert_eq!(answer.json().reports, expected);
            assert_eq!(answer.stream(true, true).iter().find_map(|part| part.reports), expected);
            assert_eq!(answer.stream(false, true).iter().find_map(|part| part.reports), None);
        }
    }

    #[test]
    fn the_allowed_tokens_cut_the_answer() {
        let turn = Turn { text: Some("0123456789".into()), ..Turn::call("list", json!({"path": "."})) };
        let json: Value = serde_json::from_slice(&Answer::new(&turn, &request(Some(2)), 1).json().bytes).unwrap();
        assert_eq!(json["choices"][0]["message"]["content"], "01234567");
        assert_eq!(json["choices"][0]["finish_reason"], "length");
        assert!(json["choices"][0]["message"]["tool_calls"].is_null());
        assert_eq!(json["usage"]["completion_tokens"], 2);
    }
}
