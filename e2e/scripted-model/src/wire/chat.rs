//! OpenAI chat/completions.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Answer, Finish, Part, data, pieces};

impl Answer {
    fn chat_usage(&self) -> Option<Value> {
        self.usage(|prompt, completion| {
            json!({
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
            })
        })
    }

    fn chat_finish(&self) -> &'static str {
        match self.finish {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length => "length",
        }
    }

    pub(super) fn chat_json(&self) -> Part {
        let mut message = json!({"role": "assistant", "content": self.text, "refusal": null, "annotations": []});
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter();
            message["tool_calls"] = calls
                .map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
                .collect();
        }
        let mut body = json!({
            "id": format!("chatcmpl-{}", self.id), "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": self.chat_finish()}],
            "service_tier": "default", "system_fingerprint": "fp_scripted",
        });
        let usage = self.chat_usage();
        if let Some(usage) = &usage {
            body["usage"] = usage.clone();
        }
        self.reporting(body.to_string().into(), usage.as_ref())
    }

    /// Role, text and tool calls in pieces, the end, the usage if asked for, and `[DONE]` if `done`.
    pub(super) fn chat_stream(&self, done: bool) -> Vec<Part> {
        let mut parts = vec![self.chunk(json!({"role": "assistant", "content": self.text.as_ref().map(|_| ""), "refusal": null}), None)];
        for piece in pieces(self.text.as_deref().unwrap_or_default()) {
            parts.push(self.chat_text(piece));
        }
        for (at, (id, name, arguments)) in self.tool_calls.iter().enumerate() {
            let head = json!({"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            parts.push(self.chunk(json!({"tool_calls": [head]}), None));
            for piece in pieces(arguments) {
                parts.push(self.chunk(json!({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}), None));
            }
        }
        parts.push(self.chunk(json!({}), Some(self.chat_finish())));
        if let Some(usage) = self.chat_usage().filter(|_| self.include_usage) {
            let mut value = self.frame(json!([]));
            value["usage"] = usage.clone();
            parts.push(self.reporting(data(&value), Some(&usage)));
        }
        if done {
            parts.push(Part::plain(Bytes::from_static(b"data: [DONE]\n\n")));
        }
        parts
    }

    pub(super) fn chat_text(&self, text: &str) -> Part {
        self.chunk(json!({"content": text}), None)
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Part {
        let mut value = self.frame(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason}]));
        if self.include_usage {
            value["usage"] = Value::Null;
        }
        Part::plain(data(&value))
    }

    fn frame(&self, choices: Value) -> Value {
        json!({
            "id": format!("chatcmpl-{}", self.id), "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "service_tier": "default", "system_fingerprint": "fp_scripted", "choices": choices,
        })
    }
}
