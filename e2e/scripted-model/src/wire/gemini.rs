//! Gemini generateContent and streamGenerateContent. A stream has no terminal event: its last chunk says why it ends.

use serde_json::{Value, json};

use super::{Answer, Finish, Part, data, object, pieces};

impl Answer {
    fn gemini_usage(&self) -> Option<Value> {
        self.usage(|prompt, completion| {
            json!({
                "promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": prompt + completion,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
            })
        })
    }

    fn finish_reason(&self) -> &'static str {
        match self.finish {
            Finish::Stop | Finish::ToolCalls => "STOP",
            Finish::Length => "MAX_TOKENS",
        }
    }

    fn parts(&self) -> Vec<Value> {
        let text = self.text.iter().filter(|text| !text.is_empty()).map(|text| json!({"text": text}));
        text.chain(self.calls()).collect()
    }

    fn calls(&self) -> impl Iterator<Item = Value> {
        self.tool_calls.iter().map(|(id, name, arguments)| json!({"functionCall": {"id": id, "name": name, "args": object(arguments)}}))
    }

    pub(super) fn gemini_chunk(&self, parts: &Value, finish: Option<&str>, usage: Option<&Value>) -> Value {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        if let Some(finish) = finish {
            candidate["finishReason"] = finish.into();
        }
        let mut chunk = json!({"candidates": [candidate], "modelVersion": self.model, "responseId": self.id});
        if let Some(usage) = usage {
            chunk["usageMetadata"] = usage.clone();
        }
        chunk
    }

    pub(super) fn gemini_json(&self) -> Part {
        let usage = self.gemini_usage();
        let body = self.gemini_chunk(&self.parts().into(), Some(self.finish_reason()), usage.as_ref());
        self.reporting(body.to_string().into(), usage.as_ref())
    }

    pub(super) fn gemini_stream(&self, done: bool) -> Vec<Part> {
        let mut parts: Vec<Part> = pieces(self.text.as_deref().unwrap_or_default())
            .map(|piece| Part::plain(data(&self.gemini_chunk(&json!([{"text": piece}]), None, None))))
            .collect();
        let calls: Vec<Value> = self.calls().collect();
        if !calls.is_empty() {
            parts.push(Part::plain(data(&self.gemini_chunk(&calls.into(), None, None))));
        }
        let usage = self.gemini_usage();
        let last = self.gemini_chunk(&json!([{"text": ""}]), done.then(|| self.finish_reason()), usage.as_ref());
        parts.push(self.reporting(data(&last), usage.as_ref()));
        parts
    }
}
