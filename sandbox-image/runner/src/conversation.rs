//! What has been said: the messages of the next request, kept within what the gateway takes by dropping old tool output, and
//! the transcript of all of it, within a bound of its own.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{clip::clip, model::Reply, tool_definitions};

/// A request stays below the gateway's limit of 1 MiB.
const MAX_BODY_BYTES: usize = 900_000;
/// Trimming goes on down to this, so that it is not needed at every step.
const TRIMMED_BODY_BYTES: usize = 600_000;
/// Tool outputs and arguments that are shorter are not worth dropping.
const WORTH_BYTES: usize = 256;
/// The model's own text, and the arguments of one call, are kept up to this.
const MAX_TEXT_BYTES: usize = 128 * 1024;
const MAX_TRANSCRIPT_BYTES: usize = 4 * 1024 * 1024;
/// The last messages are never trimmed: the model is about to answer them.
const FRESH: usize = 2;

const LEFT_OUT: &str = "[left out to save space; call the tool again if you need it]";

/// The conversation.
pub struct Conversation {
    model: String,
    messages: Vec<Value>,
    transcript: Vec<u8>,
    transcript_full: bool,
}

impl Conversation {
    pub fn new(model: &str, system: String, instruction: String) -> Self {
        let mut conversation =
            Conversation { model: model.to_owned(), messages: Vec::new(), transcript: Vec::new(), transcript_full: false };
        conversation.push(json!({"role": "system", "content": system}));
        conversation.user(instruction);
        conversation
    }

    pub fn user(&mut self, text: String) {
        self.push(json!({"role": "user", "content": text}));
    }

    /// The model's own words, in a form that any provider takes back.
    pub fn reply(&mut self, reply: &Reply) {
        let mut message = json!({"role": "assistant", "content": clip(&reply.text, MAX_TEXT_BYTES)});
        if let Some(reasoning) = &reply.reasoning {
            message["reasoning_content"] = reasoning.clone();
        }
        if !reply.calls.is_empty() {
            let calls = reply.calls.iter().map(|call| {
                // A provider refuses a history whose arguments are not JSON, though its model wrote them.
                let arguments = match serde_json::from_str::<Value>(&call.arguments) {
                    Ok(Value::Object(_)) if call.arguments.len() > MAX_TEXT_BYTES => json!({"note": LEFT_OUT}).to_string(),
                    Ok(Value::Object(_)) => call.arguments.clone(),
                    _ => "{}".to_owned(),
                };
                json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
            });
            message["tool_calls"] = Value::Array(calls.collect());
        }
        self.push(message);
    }

    pub fn tool_result(&mut self, id: &str, text: String) {
        self.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    }

    /// The next request. Old tool outputs are dropped when it would be too long; `None` when that is not enough.
    pub fn request(&mut self) -> Option<Bytes> {
        let body = self.body();
        if body.len() <= MAX_BODY_BYTES {
            return Some(body);
        }
        self.trim(TRIMMED_BODY_BYTES);
        Some(self.body()).filter(|body| body.len() <= MAX_BODY_BYTES)
    }

    /// Drop half of what can be dropped. False: nothing could.
    pub fn halve(&mut self) -> bool {
        let before = self.body().len();
        self.trim(before / 2);
        self.body().len() < before
    }

    /// NDJSON of every message, and a last line if some are missing.
    pub fn transcript(&self) -> Bytes {
        let mut transcript = self.transcript.clone();
        if self.transcript_full {
            transcript.extend_from_slice(b"{\"note\":\"the transcript is full; later messages are missing\"}\n");
        }
        transcript.into()
    }

    fn push(&mut self, message: Value) {
        let line = format!("{message}\n");
        if self.transcript.len() + line.len() <= MAX_TRANSCRIPT_BYTES && !self.transcript_full {
            self.transcript.extend_from_slice(line.as_bytes());
        } else {
            self.transcript_full = true;
        }
        self.messages.push(message);
    }

    fn body(&self) -> Bytes {
        let body = json!({"model": self.model, "messages": self.messages, "tools": tool_definitions::all()});
        body.to_string().into()
    }

    /// Drop tool outputs and long arguments, oldest first, until the request has at most `target` bytes.
    fn trim(&mut self, target: usize) {
        let mut size = self.body().len();
        let end = self.messages.len().saturating_sub(FRESH);
        for message in &mut self.messages[..end] {
            if size <= target {
                return;
            }
            let before = message.to_string().len();
            if message["role"] == "tool" && message["content"].as_str().is_some_and(|text| text.len() > WORTH_BYTES) {
                message["content"] = json!(LEFT_OUT);
            }
            if let Some(reasoning) = message.as_object_mut().and_then(|message| message.get_mut("reasoning_content")) {
                *reasoning = json!("");
            }
            for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                let arguments = &mut call["function"]["arguments"];
                if arguments.as_str().is_some_and(|text| text.len() > WORTH_BYTES) {
                    *arguments = json!(json!({"note": LEFT_OUT}).to_string());
                }
            }
            size -= before - message.to_string().len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ToolCall;

    fn turn(conversation: &mut Conversation, arguments: &str, output: usize) {
        let call = ToolCall { id: "1".into(), name: "list".into(), arguments: arguments.into() };
        conversation.reply(&Reply { calls: vec![call], ..Reply::default() });
        conversation.tool_result("1", "y".repeat(output));
    }

    #[test]
    fn requests_stay_within_the_bound_and_the_newest_stays_whole() {
        let mut conversation = Conversation::new("m", "s".into(), "do it".into());
        for _ in 0..40 {
            turn(&mut conversation, &json!({"content": "z".repeat(80_000)}).to_string(), 30_000);
            let body = conversation.request().unwrap();
            assert!(body.len() <= MAX_BODY_BYTES);
            let body: Value = serde_json::from_slice(&body).unwrap();
            let messages = body["messages"].as_array().unwrap();
            assert_eq!(messages[1]["content"], "do it");
            assert_eq!(messages.last().unwrap()["content"].as_str().unwrap().len(), 30_000);
            for call in messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten() {
                assert!(serde_json::from_str::<Value>(call["function"]["arguments"].as_str().unwrap()).is_ok());
            }
        }
        let transcript = conversation.transcript();
        assert!(transcript.len() <= MAX_TRANSCRIPT_BYTES + 100 && transcript.ends_with(b"missing\"}\n"));
        assert!(transcript.split(|byte| *byte == b'\n').all(|line| line.is_empty() || serde_json::from_slice::<Value>(line).is_ok()));
    }

    #[test]
    fn what_cannot_be_trimmed_is_refused() {
        let mut conversation = Conversation::new("m", "s".into(), "x".repeat(1_000_000));
        assert!(conversation.request().is_none());
        assert!(!conversation.halve());
    }

    #[test]
    fn arguments_that_are_not_json_are_not_sent_back() {
        let mut conversation = Conversation::new("m", "s".into(), "i".into());
        let long = json!({"content": "x".repeat(5_000_000)}).to_string();
        for bad in ["{\"a\":", "", "[1]", "5"] {
            turn(&mut conversation, bad, 1);
        }
        turn(&mut conversation, &long, 1);
        assert!(conversation.request().unwrap().len() < 20_000);
        conversation.messages.truncate(conversation.messages.len() - 2);
        let body: Value = serde_json::from_slice(&conversation.request().unwrap()).unwrap();
        for call in body["messages"].as_array().unwrap().iter().filter_map(|message| message["tool_calls"].as_array()).flatten() {
            assert_eq!(call["function"]["arguments"], "{}");
        }
    }
}
