//! OpenAI Responses.

use serde_json::{Value, json};

use super::{Answer, Finish, Part, named, pieces};

impl Answer {
    fn responses_usage(&self) -> Option<Value> {
        self.usage(|prompt, completion| {
            json!({
                "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": completion, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + completion,
            })
        })
    }

    /// The items that are said.
    fn items(&self) -> Vec<Value> {
        let text = self.text.iter().filter(|text| !text.is_empty()).map(|text| {
            json!({
                "id": format!("msg_{}", self.id), "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
            })
        });
        let calls = self.tool_calls.iter().map(|(id, name, arguments)| {
            json!({"id": format!("fc_{id}"), "type": "function_call", "status": "completed", "arguments": arguments, "call_id": id, "name": name})
        });
        text.chain(calls).collect()
    }

    fn response(&self, status: &str, output: Vec<Value>, usage: Option<&Value>) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut response = json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.created, "status": status, "background": false,
            "error": null, "incomplete_details": incomplete, "model": self.model, "output": output, "parallel_tool_calls": true,
            "previous_response_id": null, "store": false, "service_tier": "default", "usage": null,
        });
        if let Some(usage) = usage {
            response["usage"] = usage.clone();
        }
        response
    }

    fn status(&self) -> &'static str {
        if self.finish == Finish::Length { "incomplete" } else { "completed" }
    }

    pub(super) fn responses_json(&self) -> Part {
        let usage = self.responses_usage();
        self.reporting(self.response(self.status(), self.items(), usage.as_ref()).to_string().into(), usage.as_ref())
    }

    pub(super) fn responses_stream(&self, done: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut number = 0;
        let mut say = |parts: &mut Vec<Part>, mut event: Value| {
            event["sequence_number"] = number.into();
            number += 1;
            parts.push(Part::plain(named(&event)));
        };
        for event in ["response.created", "response.in_progress"] {
            say(&mut parts, json!({"type": event, "response": self.response("in_progress", Vec::new(), None)}));
        }
        for (index, item) in self.items().into_iter().enumerate() {
            let id = item["id"].clone();
            let mut begun = item.clone();
            begun["status"] = "in_progress".into();
            if item["type"] == "message" {
                let text = self.text.as_deref().unwrap_or_default();
                let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
                begun["content"] = json!([]);
                let place = |event: &str| json!({"type": event, "item_id": id, "output_index": index, "content_index": 0});
                let with = |event: &str, key: &str, value: Value| {
                    let mut event = place(event);
                    event[key] = value;
                    event
                };
                say(&mut parts, json!({"type": "response.output_item.added", "output_index": index, "item": begun}));
                say(&mut parts, with("response.content_part.added", "part", part("")));
                for piece in pieces(text) {
                    say(&mut parts, with("response.output_text.delta", "delta", piece.into()));
                }
                say(&mut parts, with("response.output_text.done", "text", text.into()));
                say(&mut parts, with("response.content_part.done", "part", part(text)));
            } else {
                begun["arguments"] = "".into();
                say(&mut parts, json!({"type": "response.output_item.added", "output_index": index, "item": begun}));
                let arguments = item["arguments"].as_str().unwrap_or_default();
                for piece in pieces(arguments) {
                    let event = "response.function_call_arguments.delta";
                    say(&mut parts, json!({"type": event, "item_id": id, "output_index": index, "delta": piece}));
                }
                let event = "response.function_call_arguments.done";
                say(&mut parts, json!({"type": event, "item_id": id, "output_index": index, "arguments": arguments}));
            }
            say(&mut parts, json!({"type": "response.output_item.done", "output_index": index, "item": item}));
        }
        if done {
            let usage = self.responses_usage();
            let event = format!("response.{}", self.status());
            let end =
                json!({"type": event, "response": self.response(self.status(), self.items(), usage.as_ref()), "sequence_number": number});
            parts.push(self.reporting(named(&end), usage.as_ref()));
        }
        parts
    }
}

pub fn text_delta(id: &str, index: usize, text: &str) -> Part {
    let delta = json!({
        "type": "response.output_text.delta", "item_id": format!("msg_{id}"), "output_index": index, "content_index": 0, "delta": text,
    });
    Part::plain(named(&delta))
}
