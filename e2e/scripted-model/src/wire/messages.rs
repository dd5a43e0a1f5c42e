//! Anthropic Messages.

use serde_json::{Value, json};

use super::{Answer, Finish, Part, named, object, pieces};

impl Answer {
    fn messages_usage(&self) -> Option<Value> {
        self.usage(|prompt, completion| {
            json!({
                "input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
                "output_tokens": completion, "service_tier": "standard",
            })
        })
    }

    fn stop_reason(&self) -> &'static str {
        match self.finish {
            Finish::Stop => "end_turn",
            Finish::ToolCalls => "tool_use",
            Finish::Length => "max_tokens",
        }
    }

    fn message(&self, content: Value, stop_reason: Option<&str>, usage: Option<&Value>) -> Value {
        let mut message = json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": stop_reason, "stop_sequence": null,
        });
        if let Some(usage) = usage {
            message["usage"] = usage.clone();
        }
        message
    }

    pub(super) fn messages_json(&self) -> Part {
        let text = self.text.iter().filter(|text| !text.is_empty()).map(|text| json!({"type": "text", "text": text}));
        let calls = self.tool_calls.iter();
        let calls = calls.map(|(id, name, arguments)| json!({"type": "tool_use", "id": id, "name": name, "input": object(arguments)}));
        let usage = self.messages_usage();
        let body = self.message(text.chain(calls).collect(), Some(self.stop_reason()), usage.as_ref());
        self.reporting(body.to_string().into(), usage.as_ref())
    }

    pub(super) fn messages_stream(&self, done: bool) -> Vec<Part> {
        let usage = self.messages_usage();
        let mut first = usage.clone();
        if let Some(first) = first.as_mut().and_then(Value::as_object_mut)
            && self.usage == crate::script::Usage::Computed
        {
            first.insert("output_tokens".into(), 1.into()); // the rest is told at the end
        }
        let start = json!({"type": "message_start", "message": self.message(json!([]), None, first.as_ref())});
        let mut parts = vec![Part::plain(named(&start))];
        let mut index = 0;
        let mut block = |parts: &mut Vec<Part>, head: Value, deltas: Vec<Part>| {
            parts.push(Part::plain(named(&json!({"type": "content_block_start", "index": index, "content_block": head}))));
            if index == 0 {
                parts.push(Part::plain(named(&json!({"type": "ping"}))));
            }
            parts.extend(deltas);
            parts.push(Part::plain(named(&json!({"type": "content_block_stop", "index": index}))));
            index += 1;
        };
        let mut at = 0;
        if let Some(text) = self.text.as_ref().filter(|text| !text.is_empty()) {
            block(&mut parts, json!({"type": "text", "text": ""}), pieces(text).map(|piece| text_delta(at, piece)).collect());
            at += 1;
        }
        for (id, name, arguments) in &self.tool_calls {
            let delta =
                |piece| json!({"type": "content_block_delta", "index": at, "delta": {"type": "input_json_delta", "partial_json": piece}});
            let deltas = pieces(arguments).map(|piece| Part::plain(named(&delta(piece)))).collect();
            block(&mut parts, json!({"type": "tool_use", "id": id, "name": name, "input": {}}), deltas);
            at += 1;
        }
        let mut delta = json!({"type": "message_delta", "delta": {"stop_reason": self.stop_reason(), "stop_sequence": null}});
        if let Some(usage) = &usage {
            delta["usage"] = usage.clone();
        }
        parts.push(self.reporting(named(&delta), usage.as_ref()));
        if done {
            parts.push(Part::plain(named(&json!({"type": "message_stop"}))));
        }
        parts
    }
}

pub fn text_delta(index: usize, text: &str) -> Part {
    Part::plain(named(&json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}})))
}
