//! What a provider says a call took, from each dialect's own fields and wherever they arrive. Anything odd counts as unknown, and
//! unknown is charged at the reservation.

use agentrun_crds::model_provider::Dialect;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::operation::Operation;

/// More than any model takes or makes in a call: such a report cannot be true, and must not end a namespace's budget.
const MOST_TOKENS: i64 = 1_000_000_000;

/// Tokens of one call as billed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input, also what was read from a cache or written to it.
    pub input_tokens: i64,
    /// Of the input, what was read from a cache.
    pub cached_tokens: i64,
    /// Of the input, what was written to one.
    pub written_tokens: i64,
    /// All output, hidden reasoning included.
    pub output_tokens: i64,
}

/// A dialect's `usage` object. Unknown members pass; a doubled one or a wrong type fails the parse, as does what is no 64-bit integer.
#[derive(Deserialize, Debug, Default, PartialEq, Eq)]
pub struct WireUsage {
    #[serde(alias = "prompt_tokens")]
    input_tokens: Option<i64>,
    #[serde(alias = "completion_tokens")]
    output_tokens: Option<i64>,
    total_tokens: Option<i64>,
    cache_creation_input_tokens: Option<i64>,
    cache_read_input_tokens: Option<i64>,
    #[serde(alias = "prompt_tokens_details")]
    input_tokens_details: Option<Details>,
}

/// Gemini's `usageMetadata`.
#[derive(Deserialize, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UsageMetadata {
    prompt_token_count: Option<i64>,
    /// What the provider's tools brought in.
    tool_use_prompt_token_count: Option<i64>,
    candidates_token_count: Option<i64>,
    thoughts_token_count: Option<i64>,
    total_token_count: Option<i64>,
    cached_content_token_count: Option<i64>,
}

impl WireUsage {
    /// As it is said at the beginning of an answer, when its output is still to come.
    pub fn at_the_beginning(self) -> Self {
        WireUsage { output_tokens: None, ..self }
    }
}

impl From<UsageMetadata> for WireUsage {
    /// Numbers that do not add up become one that cannot be true.
    fn from(usage: UsageMetadata) -> Self {
        let sum = |one: Option<i64>, other: Option<i64>| match (one, other) {
            (Some(one), Some(other)) if one >= 0 && other >= 0 => Some(one.checked_add(other).unwrap_or(-1)),
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        WireUsage {
            // Tools may bring something in, but do not stand for a prompt that was not counted.
            input_tokens: usage.prompt_token_count.and_then(|prompt| sum(Some(prompt), usage.tool_use_prompt_token_count)),
            output_tokens: sum(usage.candidates_token_count, usage.thoughts_token_count),
            total_tokens: usage.total_token_count,
            cache_read_input_tokens: usage.cached_content_token_count,
            ..WireUsage::default()
        }
    }
}

#[derive(Deserialize, Debug, Default, PartialEq, Eq)]
struct Details {
    cached_tokens: Option<i64>,
    cache_write_tokens: Option<i64>,
}

/// Gathers the reports of one call.
#[derive(Debug, Default)]
pub struct Meter {
    /// The largest of each number: reports may come in parts, and may grow.
    input: Option<i64>,
    output: Option<i64>,
    total: i64,
    cached: i64,
    written: i64,
    odd: bool,
}

impl Meter {
    /// A report; `None` is one that could not be read.
    pub fn report(&mut self, usage: Option<WireUsage>) {
        let Some(usage) = usage else {
            self.odd = true;
            return;
        };
        let details = usage.input_tokens_details.unwrap_or_default();
        let cached = usage.cache_read_input_tokens.or(details.cached_tokens);
        let written = usage.cache_creation_input_tokens.or(details.cache_write_tokens);
        for number in [usage.input_tokens, usage.output_tokens, usage.total_tokens, cached, written] {
            self.odd |= number.is_some_and(|number| !(0..=MOST_TOKENS).contains(&number));
        }
        self.input = self.input.max(usage.input_tokens);
        self.output = self.output.max(usage.output_tokens);
        self.total = self.total.max(usage.total_tokens.unwrap_or(0));
        self.cached = self.cached.max(cached.unwrap_or(0));
        self.written = self.written.max(written.unwrap_or(0));
    }

    /// A report in place of all before it.
    pub fn report_anew(&mut self, usage: Option<WireUsage>) {
        *self = Meter { odd: self.odd, ..Meter::default() };
        self.report(usage);
    }

    /// What it comes to; nothing if a report was missing or cannot be true: no prompt is without a token.
    pub fn usage(&self, dialect: Dialect) -> Option<Usage> {
        let input = self.input?;
        // Output that was not counted is unknown, unless there is a total that has it. An embedding has none.
        let output = match self.output {
            None if self.total == 0 && dialect != Dialect::OpenAIEmbeddings => return None,
            output => output.unwrap_or(0),
        };
        let beside = self.cached.checked_add(self.written)?;
        let input_tokens = match dialect {
            // Its input is what was neither read from a cache nor written to one.
            Dialect::AnthropicMessages => input.checked_add(beside)?,
            _ if beside > input => return None,
            _ => input,
        };
        // Output that shows in the total only is hidden reasoning.
        let output_tokens = output.max(self.total.saturating_sub(input_tokens));
        let usage = Usage { input_tokens, cached_tokens: self.cached, written_tokens: self.written, output_tokens };
        Some(usage).filter(|_| !self.odd && input_tokens > 0)
    }
}

/// A reply with its usage, and one whose usage cannot be read: `$member` is what makes it a reply of the dialect.
macro_rules! replies {
    ($($(#[$meta:meta])? $full:ident $shape:ident $member:ident: $type:ty, $usage:literal $wire:ty;)*) => {$(
        #[derive(Deserialize)]
        $(#[$meta])?
        struct $full {
            #[expect(dead_code, reason = "its presence is what counts")]
            $member: $type,
            #[serde(rename = $usage)]
            usage: Option<$wire>,
        }
        #[derive(Deserialize)]
        $(#[$meta])?
        struct $shape {
            #[expect(dead_code, reason = "its presence is what counts")]
            $member: $type,
        }
        impl Reply for $full {
            type Shape = $shape;
            fn usage(self) -> Option<WireUsage> {
                self.usage.map(Into::into)
            }
        }
    )*};
}

trait Reply: DeserializeOwned {
    type Shape: DeserializeOwned;
    fn usage(self) -> Option<WireUsage>;
}

replies! {
    ChatReply ChatShape choices: Vec<IgnoredAny>, "usage" WireUsage;
    ResponsesReply ResponsesShape output: Vec<IgnoredAny>, "usage" WireUsage;
    EmbeddingsReply EmbeddingsShape data: Vec<IgnoredAny>, "usage" WireUsage;
    MessagesReply MessagesShape content: Vec<IgnoredAny>, "usage" WireUsage;
    GeminiReply GeminiShape candidates: Vec<IgnoredAny>, "usageMetadata" UsageMetadata;
    // A prompt that was blocked has no answer.
    #[serde(rename_all = "camelCase")]
    BlockedReply BlockedShape prompt_feedback: IgnoredAny, "usageMetadata" UsageMetadata;
}

/// The usage of a whole JSON reply; `Err` if the reply is none of the operation's.
pub fn of_reply(operation: Operation, body: &[u8]) -> Result<Option<Usage>, ()> {
    match operation {
        Operation::Chat => read::<ChatReply>(operation, body),
        Operation::Responses => read::<ResponsesReply>(operation, body),
        Operation::Embeddings => read::<EmbeddingsReply>(operation, body),
        Operation::Messages => read::<MessagesReply>(operation, body),
        Operation::Generate | Operation::GenerateEvents | Operation::GenerateArray => {
            read::<GeminiReply>(operation, body).or_else(|()| read::<BlockedReply>(operation, body))
        }
        Operation::CountTokens | Operation::CountContents => {
            #[derive(Deserialize)]
            struct Counted {
                #[serde(rename = "input_tokens", alias = "totalTokens")]
                #[expect(dead_code, reason = "its presence is what counts")]
                tokens: i64,
            }
            serde_json::from_slice::<Counted>(body).map(|_| Some(Usage::default())).map_err(|_| ())
        }
    }
}

fn read<R: Reply>(operation: Operation, body: &[u8]) -> Result<Option<Usage>, ()> {
    let mut meter = Meter::default();
    match serde_json::from_slice::<R>(body) {
        Ok(reply) => {
            if let Some(usage) = reply.usage() {
                meter.report(Some(usage));
            }
        }
        Err(_) => {
            serde_json::from_slice::<R::Shape>(body).map_err(|_| ())?;
            meter.report(None);
        }
    }
    Ok(meter.usage(operation.dialect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_says_it_in_its_own_way() {
        let chat = |usage: &str| (Operation::Chat, format!(r#"{{"choices":[],"usage":{usage}}}"#));
        let responses = |usage: &str| (Operation::Responses, format!(r#"{{"object":"response","output":[],"usage":{usage}}}"#));
        let embeddings = |usage: &str| (Operation::Embeddings, format!(r#"{{"data":[],"usage":{usage}}}"#));
        let gemini = |usage: &str| (Operation::Generate, format!(r#"{{"candidates":[],"usageMetadata":{usage}}}"#));
        let blocked =
            |usage: &str| (Operation::Generate, format!(r#"{{"promptFeedback":{{"blockReason":"SAFETY"}},"usageMetadata":{usage}}}"#));
        let messages = |usage: &str| (Operation::Messages, format!(r#"{{"type":"message","content":[],"usage":{usage}}}"#));
        let usage = |input_tokens, cached_tokens, written_tokens, output_tokens| {
            Some(Usage { input_tokens, cached_tokens, written_tokens, output_tokens })
        };
        for ((operation, body), expected) in [
            (chat(r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#), usage(3, 0, 0, 4)),
            (chat(r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":17}"#), usage(3, 0, 0, 14)),
            (chat(r#"{"prompt_tokens":3}"#), None),
            (chat(r#"{"prompt_tokens":3,"total_tokens":3}"#), usage(3, 0, 0, 0)),
            (
                chat(r#"{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5,"audio_tokens":0}}"#),
                usage(9, 5, 0, 4),
            ),
            (chat(r#"{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":null}"#), usage(9, 0, 0, 4)),
            (chat(r#"{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":10}}"#), None),
            (
                messages(r#"{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":4}"#),
                usage(123, 100, 20, 4),
            ),
            (
                messages(r#"{"input_tokens":0,"cache_creation_input_tokens":null,"cache_read_input_tokens":7,"output_tokens":4}"#),
                usage(7, 7, 0, 4),
            ),
            (messages(r#"{"input_tokens":1,"cache_read_input_tokens":9223372036854775807,"output_tokens":4}"#), None),
            (messages(r#"{"output_tokens":4}"#), None),
            (
                responses(
                    r#"{"input_tokens":9,"input_tokens_details":{"cached_tokens":5},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":13}"#,
                ),
                usage(9, 5, 0, 4),
            ),
            (embeddings(r#"{"prompt_tokens":8,"total_tokens":8}"#), usage(8, 0, 0, 0)),
            (
                gemini(
                    r#"{"promptTokenCount":9,"candidatesTokenCount":4,"thoughtsTokenCount":30,"totalTokenCount":43,"cachedContentTokenCount":5}"#,
                ),
                usage(9, 5, 0, 34),
            ),
            (gemini(r#"{"promptTokenCount":9,"totalTokenCount":20}"#), usage(9, 0, 0, 11)),
            (gemini(r#"{"promptTokenCount":9,"toolUsePromptTokenCount":3,"candidatesTokenCount":1}"#), usage(12, 0, 0, 1)),
            (gemini(r#"{"candidatesTokenCount":1,"toolUsePromptTokenCount":3}"#), None),
            (gemini(r#"{"promptTokenCount":9,"thoughtsTokenCount":-5,"candidatesTokenCount":50}"#), None),
            (gemini(r#"{"promptTokenCount":9,"thoughtsTokenCount":9223372036854775807,"candidatesTokenCount":50}"#), None),
            (blocked(r#"{"promptTokenCount":9,"totalTokenCount":9}"#), usage(9, 0, 0, 0)),
        ] {
            assert_eq!(of_reply(operation, body.as_bytes()), Ok(expected), "{body}");
        }
    }

    #[test]
    fn odd_usage_is_unknown() {
        for (operation, shape, name, input, output, total) in [
            (Operation::Chat, r#""choices":[]"#, "usage", "prompt_tokens", "completion_tokens", "total_tokens"),
            (Operation::Responses, r#""output":[]"#, "usage", "input_tokens", "output_tokens", "total_tokens"),
            (Operation::Messages, r#""content":[]"#, "usage", "input_tokens", "output_tokens", "total_tokens"),
            (Operation::Generate, r#""candidates":[]"#, "usageMetadata", "promptTokenCount", "candidatesTokenCount", "totalTokenCount"),
        ] {
            for usage in [
                r#"{"IN":0,"OUT":0}"#,
                r#"{"IN":-3,"OUT":4}"#,
                r#"{"IN":3,"OUT":-4}"#,
                r#"{"IN":3,"OUT":9223372036854775807}"#,
                r#"{"IN":1000000001,"OUT":4}"#,
                r#"{"IN":"3","OUT":4}"#,
                r#"{"IN":3.5,"OUT":4}"#,
                r#"{"IN":9223372036854775808,"OUT":4}"#,
                r#"{"IN":3,"OUT":4,"TOTAL":-1}"#,
                r#"{"IN":3,"IN":1,"OUT":4}"#,
                "{}",
                "null",
                "[]",
                r#""many""#,
            ] {
                let usage = usage.replace("IN", input).replace("OUT", output).replace("TOTAL", total);
                let reply = format!(r#"{{{shape},"{name}":{usage}}}"#);
                assert_eq!(of_reply(operation, reply.as_bytes()), Ok(None), "{reply}");
                let good = format!(r#"{{"{input}":3,"{output}":4}}"#);
                let twice = format!(r#"{{{shape},"{name}":{good},"{name}":{usage}}}"#);
                assert_eq!(of_reply(operation, twice.as_bytes()), Ok(None), "{twice}");
            }
            assert_eq!(of_reply(operation, format!("{{{shape}}}").as_bytes()), Ok(None));
            for bad in ["", "{", "[]", "{}", r#"{"choices":{},"content":"x","output":1,"candidates":{}}"#] {
                assert_eq!(of_reply(operation, bad.as_bytes()), Err(()), "{bad}");
            }
        }
    }
}
