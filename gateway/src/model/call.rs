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
mod tests;
