//! A judged body: refused where it costs what it does not show, else ready to be sent with the upstream's model name and a
//! clamped output. The body is never rebuilt; edits are byte splices. Pure. What each dialect refuses is in `judge`.

use std::ops::Range;

use agentrun_crds::model_provider::OutputLimit;
use bytes::{Bytes, BytesMut};

use super::judge::{self, BodyError, Judged};
use super::operation::Operation;

/// Tokens that a provider adds around a message, an item or a tool, at most.
const TOKENS_PER_ITEM: i64 = 64;

/// A judged body.
#[derive(Clone, Debug)]
pub struct Call {
    body: Bytes,
    operation: Operation,
    stream: bool,
    usage_wanted: bool,
    input_tokens: i64,
    wanted_output: Option<i64>,
    /// In the order in which they stand in the body.
    edits: Vec<Edit>,
}

/// One splice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub at: Range<usize>,
    pub text: Text,
}

/// What is put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    As(&'static str),
    /// The upstream's name of the model, as a JSON string.
    Model,
    /// The output tokens that were granted.
    Output,
    /// The same, as a member: what stands before the number and what behind it.
    OutputMember(&'static str, &'static str),
    /// The same, as the member of a chat that the upstream wants for its model.
    ChatOutput,
    /// So many tokens of thinking were asked for; they must stay below the output.
    Thinking(i64),
}

impl Call {
    /// Judge a body; `model` is the only one that the run may name.
    pub fn parse(operation: Operation, body: Bytes, model: &str) -> Result<Call, BodyError> {
        let Judged { stream, usage_wanted, items, extra_tokens, wanted_output, mut edits } = judge::judge(operation, &body, model)?;
        // Two that are put in at the same place keep their order.
        edits.sort_by_key(|edit| (edit.at.start, edit.at.end));
        let bytes = i64::try_from(body.len()).unwrap_or(i64::MAX);
        let items = i64::try_from(items).unwrap_or(i64::MAX).saturating_add(1).saturating_mul(TOKENS_PER_ITEM);
        let input_tokens = bytes.saturating_add(items).saturating_add(extra_tokens);
        Ok(Call { body, operation, stream, usage_wanted, input_tokens, wanted_output, edits })
    }

    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Whether the answer is to be streamed.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// Whether the caller asked for the usage chunk of a stream.
    pub fn usage_wanted(&self) -> bool {
        self.usage_wanted
    }

    /// A token for each byte, and a constant for each message and tool: no tokenizer makes more.
    pub fn input_tokens(&self) -> i64 {
        self.input_tokens
    }

    /// The caller's own bound, if it gave one.
    pub fn wanted_output(&self) -> Option<i64> {
        self.wanted_output
    }

    /// The body to send: the upstream's model name, output clamped, usage asked for; every other byte as it came.
    pub fn render(&self, upstream_model: &str, limit: OutputLimit, output_tokens: i64) -> Bytes {
        let mut rendered = BytesMut::with_capacity(self.body.len() + 128 + upstream_model.len());
        let mut done = 0;
        let clamped = self.wanted_output.is_none_or(|wanted| output_tokens < wanted);
        for Edit { at, text } in &self.edits {
            rendered.extend_from_slice(&self.body[done..at.start]);
            match text {
                Text::Thinking(_) if !clamped => rendered.extend_from_slice(&self.body[at.clone()]),
                text => text.write(&mut rendered, upstream_model, limit, output_tokens),
            }
            done = at.end;
        }
        rendered.extend_from_slice(&self.body[done..]);
        rendered.freeze()
    }
}

impl Text {
    fn write(&self, into: &mut BytesMut, model: &str, limit: OutputLimit, output: i64) {
        let mut put = |text: &str| into.extend_from_slice(text.as_bytes());
        match self {
            Text::As(text) => put(text),
            Text::Model => put(&serde_json::Value::from(model).to_string()),
            Text::Output => put(&output.to_string()),
            Text::OutputMember(before, behind) => {
                put(before);
                put(&output.to_string());
                put(behind);
            }
            Text::ChatOutput => {
                put(match limit {
                    OutputLimit::MaxTokens => "\"max_tokens\":",
                    OutputLimit::MaxCompletionTokens => "\"max_completion_tokens\":",
                });
                put(&output.to_string());
                put(",");
            }
            Text::Thinking(wanted) => put(&(*wanted).min(output - 1).max(1).to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
