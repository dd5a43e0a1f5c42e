//! A chat/completions body, judged: refused where it costs what it does not show, else ready to be sent with the upstream's
//! model name and a clamped output. The body is never rebuilt; edits are byte splices. Pure.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::json::{Document, JsonError, Kind, Member, Node};

/// Tokens that a chat template adds around a message or a tool, at most.
const TOKENS_PER_ITEM: i64 = 64;
/// Most messages of one call.
const MAX_MESSAGES: usize = 4096;

/// Members that cost nothing that the body and the clamped output do not show.
const ALLOWED: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "store",
    "modalities",
];

/// Why a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body cannot be read: {0}")]
    Malformed(#[from] JsonError),
    #[error("{field}: {message}")]
    Field { code: &'static str, field: String, message: String },
    /// The run's token is good for another model.
    #[error("the model is not the run's own")]
    WrongModel,
}

/// A judged body.
#[derive(Clone, Debug)]
pub struct Call {
    body: Bytes,
    stream: bool,
    usage_wanted: bool,
    input_tokens: i64,
    wanted_output: Option<i64>,
    model: Range<usize>,
    /// `max_tokens` and `max_completion_tokens` where they stand.
    limits: Vec<Range<usize>>,
    usage: Option<Edit>,
    /// Just behind the opening brace.
    inside: usize,
}

#[derive(Clone, Debug)]
struct Edit {
    at: Range<usize>,
    text: &'static str,
}

impl Call {
    /// Judge a body; `model` is the only one that the run may name.
    pub fn parse(body: Bytes, model: &str) -> Result<Call, BodyError> {
        let (document, root) = Document::scan(&body)?;
        if document.kind(root) != Kind::Object {
            return Err(field("invalid_body", "body", "it must be a JSON object"));
        }
        let members = distinct(document, root, "body")?;
        let mut call =
            Judging { document, model: None, messages: None, tools: 0, stream: false, options: None, limits: Vec::new(), wanted: None };
        for member in &members {
            call.member(member)?;
        }
        let Some(named) = call.model else { return Err(field("missing_field", "model", "it must name the run's model")) };
        if document.string(named).as_deref() != Some(model) {
            return Err(BodyError::WrongModel);
        }
        let Some(messages) = call.messages else {
            return Err(field("missing_field", "messages", "it must be an array of 1 to 4096 messages"));
        };
        let (usage, usage_wanted) = call.usage_edit(root)?;
        let items = i64::try_from(messages + call.tools).unwrap_or(i64::MAX);
        let bytes = i64::try_from(document.raw(root).len()).unwrap_or(i64::MAX);
        Ok(Call {
            stream: call.stream,
            usage_wanted,
            input_tokens: bytes.saturating_add(items.saturating_add(1).saturating_mul(TOKENS_PER_ITEM)),
            wanted_output: call.wanted,
            model: named.range(),
            limits: call.limits,
            usage,
            inside: root.start + 1,
            body: body.clone(),
        })
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
    pub fn render(&self, upstream_model: &str, output_tokens: i64) -> Bytes {
        let output = output_tokens.to_string();
        let mut edits: Vec<(Range<usize>, String)> = vec![(self.model.clone(), serde_json::Value::from(upstream_model).to_string())];
        if self.limits.is_empty() {
            edits.push((self.inside..self.inside, format!("\"max_tokens\":{output},")));
        }
        edits.extend(self.limits.iter().map(|at| (at.clone(), output.clone())));
        edits.extend(self.usage.iter().map(|edit| (edit.at.clone(), edit.text.to_owned())));
        edits.sort_by_key(|(at, _)| (at.start, at.end));
        let mut rendered = BytesMut::with_capacity(self.body.len() + 128);
        let mut done = 0;
        for (at, text) in edits {
            rendered.extend_from_slice(&self.body[done..at.start]);
            rendered.extend_from_slice(text.as_bytes());
            done = at.end;
        }
        rendered.extend_from_slice(&self.body[done..]);
        rendered.freeze()
    }
}

struct Judging<'a> {
    document: Document<'a>,
    model: Option<Node>,
    messages: Option<usize>,
    tools: usize,
    stream: bool,
    options: Option<Node>,
    limits: Vec<Range<usize>>,
    wanted: Option<i64>,
}

impl Judging<'_> {
    fn member(&mut self, member: &Member<'_>) -> Result<(), BodyError> {
        let (document, value) = (self.document, member.value);
        let kind = document.kind(value);
        let key: &str = &member.key;
        if !ALLOWED.contains(&key) {
            if kind == Kind::Null {
                return Ok(());
            }
            let message =
                format!("this field is not supported, since it may cost what the body does not show; supported: {}", ALLOWED.join(", "));
            return Err(field("unsupported_field", key, message));
        }
        match key {
            "model" => self.model = Some(value),
            "messages" => self.messages = Some(judge_messages(document, value)?),
            "tools" => self.tools = judge_tools(document, value)?,
            "functions" => self.tools += document.elements(value).len(),
            "stream" => match kind {
                Kind::True => self.stream = true,
                Kind::False | Kind::Null => {}
                _ => return Err(field("invalid_field", key, "it must be true or false")),
            },
            "stream_options" => self.options = Some(value),
            "max_tokens" | "max_completion_tokens" => {
                self.limits.push(value.range());
                if kind != Kind::Null {
                    let wanted = document.raw(value).parse::<i64>().ok().filter(|n| *n >= 1);
                    let wanted = wanted.ok_or_else(|| field("invalid_field", key, "it must be an integer from 1"))?;
                    self.wanted = Some(self.wanted.map_or(wanted, |other| other.min(wanted)));
                }
            }
            "n" if kind != Kind::Null && document.raw(value) != "1" => {
                return Err(field("unsupported_value", key, "only 1 is supported: each further answer multiplies the output"));
            }
            "store" if !matches!(kind, Kind::False | Kind::Null) => {
                return Err(field("unsupported_value", key, "only false is supported: nothing of a run is stored at the provider"));
            }
            "modalities" if kind != Kind::Null => {
                let text_only =
                    kind == Kind::Array && document.elements(value).iter().all(|node| document.string(*node).as_deref() == Some("text"));
                if !text_only {
                    return Err(field("unsupported_value", key, "only [\"text\"] is supported: other media are not priced"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How to make a stream report its usage, and whether the caller wanted that itself.
    fn usage_edit(&self, root: Node) -> Result<(Option<Edit>, bool), BodyError> {
        let document = self.document;
        let options = self.options.filter(|node| document.kind(*node) != Kind::Null);
        if !self.stream {
            if options.is_some() {
                return Err(field("invalid_field", "stream_options", "it is allowed with \"stream\": true only"));
            }
            return Ok((None, false));
        }
        let Some(options) = options else {
            // Null or absent.
            return Ok(match self.options {
                Some(null) => (Some(Edit { at: null.range(), text: r#"{"include_usage":true}"# }), false),
                None => {
                    let at = root.start + 1;
                    (Some(Edit { at: at..at, text: r#""stream_options":{"include_usage":true},"# }), false)
                }
            });
        };
        if document.kind(options) != Kind::Object {
            return Err(field("invalid_field", "stream_options", "it must be an object"));
        }
        let mut edit = None;
        let mut wanted = false;
        let members = distinct(document, options, "stream_options")?;
        for member in &members {
            match (&*member.key, document.kind(member.value)) {
                ("include_usage", Kind::True) => wanted = true,
                ("include_usage", Kind::False | Kind::Null) => edit = Some(Edit { at: member.value.range(), text: "true" }),
                ("include_obfuscation", Kind::True | Kind::False | Kind::Null) => {}
                ("include_usage" | "include_obfuscation", _) => {
                    return Err(field("invalid_field", format!("stream_options.{}", member.key), "it must be true or false"));
                }
                (key, _) => {
                    let message = "supported members: include_usage, include_obfuscation";
                    return Err(field("unsupported_field", format!("stream_options.{key}"), message));
                }
            }
        }
        if !wanted && edit.is_none() {
            let at = options.start + 1;
            let text = if members.is_empty() { r#""include_usage":true"# } else { r#""include_usage":true,"# };
            edit = Some(Edit { at: at..at, text });
        }
        Ok((edit, wanted))
    }
}

/// Returns the number of messages.
fn judge_messages(document: Document<'_>, messages: Node) -> Result<usize, BodyError> {
    let elements = document.elements(messages);
    if elements.is_empty() || elements.len() > MAX_MESSAGES {
        return Err(field("invalid_field", "messages", "it must be an array of 1 to 4096 messages"));
    }
    for (index, message) in elements.iter().enumerate() {
        let place = format!("messages[{index}]");
        if document.kind(*message) != Kind::Object {
            return Err(field("invalid_field", place, "it must be an object"));
        }
        for member in distinct(document, *message, &place)? {
            let place = format!("{place}.{}", member.key);
            match &*member.key.to_ascii_lowercase() {
                "content" => judge_content(document, member.value, &place)?,
                "audio" | "cache_control" | "file_id" | "file_ids" | "attachments" if document.kind(member.value) != Kind::Null => {
                    return Err(field(
                        "unsupported_field",
                        place,
                        "references and media are not supported: their cost does not show in the body",
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(elements.len())
}

fn judge_content(document: Document<'_>, content: Node, place: &str) -> Result<(), BodyError> {
    match document.kind(content) {
        Kind::String | Kind::Null => return Ok(()),
        Kind::Array => {}
        _ => return Err(field("invalid_field", place, "it must be a string or an array of text parts")),
    }
    for (index, part) in document.elements(content).into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        let members = distinct(document, part, &place)?;
        let kind = members.iter().find(|m| m.key == "type").and_then(|m| document.string(m.value));
        if !matches!(kind.as_deref(), Some("text" | "refusal")) {
            return Err(field(
                "unsupported_content",
                place,
                "only parts of type text and refusal are supported: images, audio and files are not priced",
            ));
        }
        if let Some(other) = members.iter().find(|m| !matches!(&*m.key, "type" | "text" | "refusal")) {
            return Err(field("unsupported_field", format!("{place}.{}", other.key), "members of a part are type, text and refusal"));
        }
    }
    Ok(())
}

/// Returns the number of tools.
fn judge_tools(document: Document<'_>, tools: Node) -> Result<usize, BodyError> {
    if !matches!(document.kind(tools), Kind::Array | Kind::Null) {
        return Err(field("invalid_field", "tools", "it must be an array"));
    }
    let elements = document.elements(tools);
    for (index, tool) in elements.iter().enumerate() {
        let place = format!("tools[{index}]");
        let kind = distinct(document, *tool, &place)?.iter().find(|m| m.key == "type").and_then(|m| document.string(m.value));
        if !matches!(kind.as_deref(), Some("function" | "custom")) {
            return Err(field(
                "unsupported_tool",
                format!("{place}.type"),
                "only function and custom are supported: the provider's own tools are not priced",
            ));
        }
    }
    Ok(elements.len())
}

/// An object's members; refused if two keys differ by nothing but case, since readers differ in which one they take.
fn distinct<'a>(document: Document<'a>, object: Node, place: &str) -> Result<Vec<Member<'a>>, BodyError> {
    let members = document.members(object);
    let mut seen = std::collections::HashSet::with_capacity(members.len());
    for member in &members {
        if !seen.insert(member.key.to_ascii_lowercase()) {
            return Err(field("duplicate_field", format!("{place}.{}", member.key), "a field may be given once only"));
        }
    }
    Ok(members)
}

fn field(code: &'static str, field: impl Into<String>, message: impl Into<String>) -> BodyError {
    let field: String = field.into();
    BodyError::Field { code, field: field.chars().take(128).collect(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn parse(text: &str) -> Result<Call, BodyError> {
        Call::parse(Bytes::copy_from_slice(text.as_bytes()), "demo")
    }

    #[test]
    fn only_model_output_and_usage_are_spliced() {
        for (body, expected) in [
            (r#"{"model":"demo","messages":[{}]}"#, r#"{"max_tokens":7,"model":"up/\"x\"","messages":[{}]}"#),
            (
                r#" { "max_tokens" : 99 , "model":"demo","messages":[{}] } "#,
                r#" { "max_tokens" : 7 , "model":"up/\"x\"","messages":[{}] } "#,
            ),
            (
                r#"{"max_completion_tokens":null,"max_tokens":5,"messages":[{}],"model":"\u0064emo"}"#,
                r#"{"max_completion_tokens":7,"max_tokens":7,"messages":[{}],"model":"up/\"x\""}"#,
            ),
            (
                r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1}"#,
                r#"{"stream_options":{"include_usage":true},"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7}"#,
            ),
            (
                r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":null}"#,
                r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":{}}"#,
                r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":{"include_usage":false}}"#,
                r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":{"include_obfuscation":false}}"#,
                r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true,"include_obfuscation":false}}"#,
            ),
        ] {
            assert_eq!(parse(body).unwrap().render("up/\"x\"", 7), expected.as_bytes(), "{body}");
        }
    }

    #[test]
    fn what_the_body_does_not_show_is_refused_with_its_field() {
        let with = |extra: &str| format!(r#"{{"model":"demo","messages":[{{"role":"user","content":"x"}}],{extra}}}"#);
        let message = |content: &str| format!(r#"{{"model":"demo","messages":[{{"role":"user","content":{content}}}]}}"#);
        for (body, code, name) in [
            (with(r#""n":2"#), "unsupported_value", "n"),
            (with(r#""n":1.0"#), "unsupported_value", "n"),
            (with(r#""store":true"#), "unsupported_value", "store"),
            (with(r#""modalities":["text","audio"]"#), "unsupported_value", "modalities"),
            (with(r#""audio":{"voice":"x"}"#), "unsupported_field", "audio"),
            (with(r#""previous_response_id":"r""#), "unsupported_field", "previous_response_id"),
            (with(r#""web_search_options":{}"#), "unsupported_field", "web_search_options"),
            (with(r#""models":["a","b"]"#), "unsupported_field", "models"),
            (with(r#""plugins":[]"#), "unsupported_field", "plugins"),
            (with(r#""service_tier":"priority""#), "unsupported_field", "service_tier"),
            (with(r#""prediction":{}"#), "unsupported_field", "prediction"),
            (with(r#""tools":[{"type":"web_search"}]"#), "unsupported_tool", "tools[0].type"),
            (with(r#""tools":[{"type":"function"},{}]"#), "unsupported_tool", "tools[1].type"),
            (with(r#""tools":[{"type":"function","type":"web_search"}]"#), "duplicate_field", "tools[0].type"),
            (with(r#""tools":{}"#), "invalid_field", "tools"),
            (with(r#""max_tokens":0"#), "invalid_field", "max_tokens"),
            (with(r#""max_tokens":-1"#), "invalid_field", "max_tokens"),
            (with(r#""max_tokens":1e9"#), "invalid_field", "max_tokens"),
            (with(r#""max_completion_tokens":"9""#), "invalid_field", "max_completion_tokens"),
            (with(r#""stream":1"#), "invalid_field", "stream"),
            (with(r#""stream_options":{}"#), "invalid_field", "stream_options"),
            (with(r#""stream":true,"stream_options":[]"#), "invalid_field", "stream_options"),
            (with(r#""stream":true,"stream_options":{"include_usage":1}"#), "invalid_field", "stream_options.include_usage"),
            (with(r#""stream":true,"stream_options":{"x":1}"#), "unsupported_field", "stream_options.x"),
            (with(r#""model":"demo""#), "duplicate_field", "body.model"),
            (with(r#""Model":"demo""#), "duplicate_field", "body.Model"),
            (with(r#""\u006dodel":"demo""#), "duplicate_field", "body.model"),
            (with(r#""MAX_TOKENS":1"#), "unsupported_field", "MAX_TOKENS"),
            (message(r#"[{"type":"image_url","image_url":{"url":"https://x"}}]"#), "unsupported_content", "messages[0].content[0]"),
            (
                message(r#"[{"type":"text","text":"x"},{"type":"file","file":{"file_id":"f"}}]"#),
                "unsupported_content",
                "messages[0].content[1]",
            ),
            (message(r#"[{"type":"text","type":"image_url"}]"#), "duplicate_field", "messages[0].content[0].type"),
            (message(r#"[{"type":"text","text":"x","image_url":{}}]"#), "unsupported_field", "messages[0].content[0].image_url"),
            (message(r#"[7]"#), "unsupported_content", "messages[0].content[0]"),
            (message(r#"{"type":"image_url"}"#), "invalid_field", "messages[0].content"),
            (message(r#""x","Content":[{"type":"image_url"}]"#), "duplicate_field", "messages[0].Content"),
            (message(r#""x","audio":{"id":"a"}"#), "unsupported_field", "messages[0].audio"),
            (r#"{"model":"demo"}"#.into(), "missing_field", "messages"),
            (r#"{"model":"demo","messages":[]}"#.into(), "invalid_field", "messages"),
            (r#"{"model":"demo","messages":{}}"#.into(), "invalid_field", "messages"),
            (r#"{"model":"demo","messages":["x"]}"#.into(), "invalid_field", "messages[0]"),
            (r#"{"messages":[{}]}"#.into(), "missing_field", "model"),
            ("[]".into(), "invalid_body", "body"),
        ] {
            match parse(&body) {
                Err(BodyError::Field { code: got, field, .. }) => assert_eq!((got, &*field), (code, name), "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        assert!(matches!(parse("{"), Err(BodyError::Malformed(JsonError::Truncated))));
        for body in [r#"{"model":"other","messages":[{}]}"#, r#"{"model":null,"messages":[{}]}"#, r#"{"model":["demo"],"messages":[{}]}"#] {
            assert_eq!(parse(body).err(), Some(BodyError::WrongModel), "{body}");
        }
        for good in
            [with(r#""web_search_options":null"#), with(r#""n":1,"store":false,"modalities":["text"],"tools":null"#), message("null")]
        {
            assert!(parse(&good).is_ok(), "{good}");
        }
    }

    fn body() -> impl Strategy<Value = (Value, bool)> {
        let text = ".{0,40}";
        let messages = prop::collection::vec((text, prop::option::of(prop::collection::vec(text, 0..3))), 1..5).prop_map(|rows| {
            rows.into_iter()
                .map(|(plain, parts)| match parts {
                    None => json!({"role": "user", "content": plain}),
                    Some(parts) => json!({"role": "user", "content": parts.into_iter().map(|t| json!({"type": "text", "text": t})).collect::<Vec<_>>()}),
                })
                .collect::<Value>()
        });
        let limit = prop::option::of(prop_oneof![Just(Value::Null), (1i64..100_000).prop_map(Value::from)]);
        let options = prop::option::of(prop_oneof![
            Just(json!(null)),
            Just(json!({})),
            Just(json!({"include_usage": true})),
            Just(json!({"include_usage": false}))
        ]);
        (messages, limit.clone(), limit, any::<bool>(), options, text, any::<bool>()).prop_map(
            |(messages, max, completion, stream, options, stop, pretty)| {
                let mut body = json!({"model": "demo", "messages": messages, "stream": stream, "stop": stop, "temperature": 0.5});
                for (name, value) in
                    [("max_tokens", max), ("max_completion_tokens", completion), ("stream_options", options.filter(|_| stream))]
                {
                    if let Some(value) = value {
                        body[name] = value;
                    }
                }
                (body, pretty)
            },
        )
    }

    proptest! {
        #[test]
        fn a_spliced_body_parses_equal_but_for_the_spliced_fields((body, pretty) in body(), output in 1i64..1_000_000) {
            let text = if pretty { serde_json::to_vec_pretty(&body) } else { serde_json::to_vec(&body) }.unwrap();
            let call = Call::parse(Bytes::from(text), "demo").unwrap();
            let mut sent: Value = serde_json::from_slice(&call.render("upstream", output)).unwrap();
            let mut expected = body.clone();
            expected["model"] = json!("upstream");
            let limited = |name: &str| body.get(name).is_some();
            for name in ["max_tokens", "max_completion_tokens"] {
                if limited(name) {
                    expected[name] = json!(output);
                }
            }
            if !limited("max_tokens") && !limited("max_completion_tokens") {
                expected["max_tokens"] = json!(output);
            }
            if call.stream() {
                prop_assert_eq!(&sent["stream_options"]["include_usage"], &json!(true));
                sent.as_object_mut().unwrap().remove("stream_options");
                expected.as_object_mut().unwrap().remove("stream_options");
            }
            prop_assert_eq!(sent, expected);
        }

        #[test]
        fn no_bytes_crash_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Call::parse(Bytes::from(bytes), "demo");
        }
    }
}
