//! The answers in each dialect's true wire format: JSON, the events of a stream, error bodies. Pure.

mod chat;
pub mod embeddings;
mod gemini;
mod messages;
mod responses;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::request::{BadRequest, Dialect, Request};
use crate::script::{Turn, Usage};

/// Bytes of text in one event of a stream.
const PIECE: usize = 24;
const BYTES_PER_TOKEN: u64 = 4;

/// A part of a body. `reports` are the input and output tokens that it tells the client.
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

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Stop,
    ToolCalls,
    Length,
}

/// A turn as it is said in answer to one request: cut to the tokens allowed, with its usage.
pub struct Answer {
    dialect: Dialect,
    /// Hexadecimal, the same for the same request.
    id: String,
    /// Unix seconds.
    created: u64,
    model: String,
    include_usage: bool,
    text: Option<String>,
    /// Id, name, arguments as JSON text.
    tool_calls: Vec<(String, String, String)>,
    finish: Finish,
    usage: Usage,
    prompt: u64,
    completion: u64,
}

/// So many tokens are these bytes.
pub fn tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN).max(1)
}

impl Answer {
    /// Say the turn. `created` is in Unix seconds.
    pub fn new(turn: &Turn, request: &Request, created: u64) -> Answer {
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
        let mut finish = if tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
        let calls: usize = tool_calls.iter().map(|(_, name, arguments)| name.len() + arguments.len()).sum();
        let mut completion = tokens((text.as_ref().map_or(0, String::len) + calls) as u64);
        if let Some(most) = request.max_tokens.filter(|most| *most < completion) {
            tool_calls.clear();
            if let Some(text) = &mut text {
                text.truncate(text.floor_char_boundary((most * BYTES_PER_TOKEN) as usize));
            }
            (finish, completion) = (Finish::Length, most);
        }
        Answer {
            dialect: request.dialect,
            id: format!("{:016x}{}", request.conversation, request.turn),
            created,
            model: request.model.clone(),
            include_usage: request.include_usage,
            text,
            tool_calls,
            finish,
            usage: turn.usage.clone(),
            prompt: tokens(request.prompt_bytes),
            completion,
        }
    }

    /// The usage object, if there is to be one; `computed` is the dialect's own form of the true numbers.
    fn usage(&self, computed: impl FnOnce(u64, u64) -> Value) -> Option<Value> {
        match &self.usage {
            Usage::Missing => None,
            Usage::Raw(value) => Some(value.clone()),
            Usage::Computed => Some(computed(self.prompt, self.completion)),
        }
    }

    /// A part that tells this usage.
    fn reporting(&self, bytes: Bytes, usage: Option<&Value>) -> Part {
        let (input, output) = match self.dialect {
            Dialect::Chat => ("prompt_tokens", "completion_tokens"),
            Dialect::Messages | Dialect::Responses => ("input_tokens", "output_tokens"),
            Dialect::Gemini => ("promptTokenCount", "candidatesTokenCount"),
        };
        let reports = usage.and_then(|usage| Some((usage[input].as_i64()?, usage[output].as_i64()?)));
        Part { bytes, reports }
    }

    /// The JSON form.
    pub fn json(&self) -> Part {
        match self.dialect {
            Dialect::Chat => self.chat_json(),
            Dialect::Messages => self.messages_json(),
            Dialect::Responses => self.responses_json(),
            Dialect::Gemini => self.gemini_json(),
        }
    }

    /// The streamed form, without its terminal event unless `done`.
    pub fn stream(&self, done: bool) -> Vec<Part> {
        match self.dialect {
            Dialect::Chat => self.chat_stream(done),
            Dialect::Messages => self.messages_stream(done),
            Dialect::Responses => self.responses_stream(done),
            Dialect::Gemini => self.gemini_stream(done),
        }
    }

    /// One more piece of text, for a stream that has no end.
    pub fn endless_chunk(&self) -> Part {
        let text = "and so on ";
        match self.dialect {
            Dialect::Chat => self.chat_text(text),
            Dialect::Messages => messages::text_delta(0, text),
            Dialect::Responses => responses::text_delta(&self.id, 0, text),
            Dialect::Gemini => Part::plain(data(&self.gemini_chunk(&json!([{"text": text}]), None, None))),
        }
    }
}

/// An event that holds a long string: what stands before it and behind it.
pub fn padding(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect {
        Dialect::Chat => ("data: {\"choices\":[],\"padding\":\"", "\"}\n\n"),
        Dialect::Messages => ("event: ping\ndata: {\"type\":\"ping\",\"padding\":\"", "\"}\n\n"),
        Dialect::Responses => ("event: response.queued\ndata: {\"type\":\"response.queued\",\"padding\":\"", "\"}\n\n"),
        Dialect::Gemini => ("data: {\"candidates\":[],\"padding\":\"", "\"}\n\n"),
    }
}

/// An event without a name.
fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

/// An event whose name is its `type`.
fn named(value: &Value) -> Bytes {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default()).into()
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(PIECE.min(rest.len())));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Arguments as a JSON value; malformed ones stay a string.
fn object(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments))
}

/// An error's status and body, as each provider words them.
pub fn error(dialect: Dialect, status: u16, message: &str, param: Option<&str>) -> (u16, Value) {
    let body = match dialect {
        Dialect::Chat | Dialect::Responses => {
            let (kind, code) = match status {
                401 => ("invalid_request_error", Some("invalid_api_key")),
                403 => ("invalid_request_error", Some("unsupported_country_region_territory")),
                404 => ("invalid_request_error", Some("model_not_found")),
                429 => ("tokens", Some("rate_limit_exceeded")),
                500.. => ("server_error", None),
                _ => ("invalid_request_error", None),
            };
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
        }
        Dialect::Messages => {
            let kind = match status {
                401 => "authentication_error",
                403 => "permission_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                529 => "overloaded_error",
                500.. => "api_error",
                _ => "invalid_request_error",
            };
            let message = param.map_or_else(|| message.to_owned(), |param| format!("{param}: {message}"));
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"})
        }
        Dialect::Gemini => {
            let word = match status {
                400 => "INVALID_ARGUMENT",
                401 => "UNAUTHENTICATED",
                403 => "PERMISSION_DENIED",
                404 => "NOT_FOUND",
                429 => "RESOURCE_EXHAUSTED",
                503 => "UNAVAILABLE",
                504 => "DEADLINE_EXCEEDED",
                500.. => "INTERNAL",
                _ => "FAILED_PRECONDITION",
            };
            json!({"error": {"code": status, "message": message, "status": word}})
        }
    };
    (status, body)
}

/// A request that was not understood.
pub fn refused(dialect: Dialect, bad: &BadRequest) -> (u16, Value) {
    error(dialect, 400, &bad.message, bad.param.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(max_tokens: Option<u64>) -> Request {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"x"}],"stream_options":{"include_usage":true}}"#;
        Request { max_tokens, ..Request::parse(Dialect::Chat, "", body).unwrap() }
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
            let (text, calls, finish, usage) = joined(&answer.stream(true));
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
            assert_eq!(answer.stream(true).iter().find_map(|part| part.reports), expected);
            let unasked = Request { include_usage: false, ..request(None) };
            let unasked = Answer::new(&Turn::say("hi"), &unasked, 1).stream(true);
            assert_eq!(unasked.iter().find_map(|part| part.reports), None);
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
