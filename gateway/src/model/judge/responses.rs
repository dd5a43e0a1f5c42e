//! OpenAI Responses. Its default is to store; we never do.

use super::super::call::Text;
use super::super::json::{Document, Kind, Member, Node};
use super::{BodyError, Judged, Place, distinct, field, flag, hidden, kind_of, known, list, none_of, one_of};

/// Members that are looked into.
const KNOWN: &[&str] =
    &["model", "input", "tools", "stream", "max_output_tokens", "store", "background", "service_tier", "context_management"];

/// References to what the provider stores, its summaries, other bounds of the output, other models.
const HIDDEN: &[&str] = &[
    "previous_response_id",
    "conversation",
    "prompt",
    "file_ids",
    "cached_content",
    "container",
    "mcp_servers",
    "modalities",
    "audio",
    "models",
    "fallbacks",
    "route",
    "provider",
    "plugins",
    "preset",
    "prediction",
    "extra_body",
    "speed",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "web_search_options",
];

/// Items that are text, as it is said or as it was reasoned.
const ITEMS: &[&str] = &[
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
];

/// Parts that are text.
const PARTS: &[&str] = &["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"];

/// Tools that the client runs. `namespace` holds others of them.
const TOOLS: &[&str] = &["function", "custom", "local_shell", "apply_patch"];

/// Tools that the provider runs and that agents offer without being asked. They are left out rather than refused: what the model is
/// not offered it does not use, and the agent works on.
const LEFT_OUT: &[&str] = &["web_search", "web_search_preview"];

/// The definitions that `local_shell` and `apply_patch` stand for, at most.
const TOOL_TOKENS: i64 = 2048;

pub fn judge(document: &Document<'_>, members: &[Member<'_>], model: &str) -> Result<Judged, BodyError> {
    let mut judged = Judged::default();
    let (mut named, mut input, mut stored) = (None, None, false);
    for Member { key, value } in members {
        let (value, place) = (*value, &Place::Root(key));
        match known(key, KNOWN)? {
            Some("model") => named = Some(value),
            Some("input") => input = Some(value),
            Some("tools") => tools(document, &mut judged, value, place)?,
            Some("stream") => judged.stream = flag(document, place, value)?,
            Some("max_output_tokens") => judged.limit(document, place, value)?,
            Some("store") => {
                if flag(document, place, value)? {
                    return Err(field("unsupported_value", place, "only false is supported: nothing of a run is stored at the provider"));
                }
                stored = true;
                judged.replace(document, value, Text::As("false")); // null would mean true
            }
            Some("background") if flag(document, place, value)? => {
                return Err(field("unsupported_value", place, "only false is supported: a call must end with its answer"));
            }
            Some("service_tier") => one_of(document, place, value, &["auto", "default", "flex"])?,
            Some("context_management") if document.kind(value) == Kind::Array && document.elements(value).next().is_none() => {}
            Some("context_management") => hidden(document, place, value)?,
            Some(_) => {}
            None => none_of(document, key, value, place, HIDDEN)?,
        }
    }
    judged.model(document, named, model)?;
    match input {
        Some(text) if document.kind(text) == Kind::String => judged.items += 1,
        items => {
            for (index, item) in list(document, "input", items)?.into_iter().enumerate() {
                judge_item(document, item, &Place::Root("input").element(index))?;
                judged.items += 1;
            }
        }
    }
    if !stored {
        judged.insert(document, document.root(), Text::As("\"store\":false,"));
    }
    if !judged.bounds_output() {
        judged.insert(document, document.root(), Text::OutputMember("\"max_output_tokens\":", ","));
    }
    Ok(judged)
}

fn judge_item(document: &Document<'_>, item: Node, place: &Place<'_>) -> Result<(), BodyError> {
    let unsupported = "only messages, reasoning, and calls of the client's own tools with their outputs are supported: references, media and the provider's own tools are not priced";
    if document.kind(item) != Kind::Object {
        return Err(field("invalid_field", place, "it must be an object"));
    }
    let members = distinct(document, item, place)?;
    let member = |name: &str| members.iter().find(|member| member.key == name).map(|member| member.value);
    let kind = kind_of(document, &members);
    match kind.as_deref() {
        // A message may leave its type out.
        None if member("type").is_none_or(|kind| document.is_null(kind)) && member("role").is_some() => {}
        Some(kind) if ITEMS.contains(&kind) => {}
        _ => return Err(field("unsupported_content", place, unsupported)),
    }
    // One that holds nothing but its id is looked up at the provider.
    let holds = |name: &str| member(name).is_some_and(|value| !document.is_null(value));
    if kind.as_deref() == Some("reasoning")
        && holds("id")
        && !holds("encrypted_content")
        && !holds("content")
        && !has_summary(document, member("summary"))
    {
        return Err(field(
            "unsupported_content",
            place,
            "reasoning must be sent with its encrypted_content: nothing of a run is stored at the provider",
        ));
    }
    for Member { key, value } in &members {
        match known(key, &["content", "output", "summary"])? {
            Some(name) => judge_content(document, *value, &place.member(name))?,
            None => none_of(document, key, *value, &place.member(key), &["file_id", "file_ids", "image_url", "audio", "container_id"])?,
        }
    }
    Ok(())
}

fn has_summary(document: &Document<'_>, summary: Option<Node>) -> bool {
    summary.is_some_and(|summary| document.elements(summary).next().is_some())
}

/// A string, or parts of text.
fn judge_content(document: &Document<'_>, content: Node, place: &Place<'_>) -> Result<(), BodyError> {
    for (index, part) in document.elements(content).enumerate() {
        let place = place.element(index);
        if document.kind(part) == Kind::String {
            continue;
        }
        let members = distinct(document, part, &place)?;
        // What a shell put out has no type.
        let kind = members.iter().find(|member| member.key == "type");
        if let Some(kind) = kind
            && !document.string(kind.value).is_some_and(|kind| PARTS.contains(&&*kind))
        {
            return Err(field("unsupported_content", place, "only text is supported: images, audio and files are not priced"));
        }
        for Member { key, value } in &members {
            none_of(document, key, *value, &place.member(key), &["image_url", "file_id", "file_url", "file_data", "input_audio", "audio"])?;
        }
    }
    if document.kind(content) == Kind::Object {
        let members = distinct(document, content, place)?;
        if let Some(kind) = kind_of(document, &members).filter(|kind| !PARTS.contains(&&**kind)) {
            return Err(field("unsupported_content", place.member("type"), format!("{kind:.32} is not supported: only text is priced")));
        }
        for Member { key, value } in &members {
            none_of(document, key, *value, &place.member(key), &["image_url", "file_id", "file_url", "file_data", "input_audio", "audio"])?;
        }
    }
    Ok(())
}

fn tools(document: &Document<'_>, judged: &mut Judged, tools: Node, place: &Place<'_>) -> Result<(), BodyError> {
    if !matches!(document.kind(tools), Kind::Array | Kind::Null) {
        return Err(field("invalid_field", place, "it must be an array"));
    }
    let all: Vec<Node> = document.elements(tools).collect();
    let mut kept = 0;
    for (index, tool) in all.iter().enumerate() {
        let place = place.element(index);
        let members = distinct(document, *tool, &place)?;
        let kind = kind_of(document, &members);
        match kind.as_deref() {
            Some("namespace") => {
                for member in members.iter().filter(|member| member.key == "tools") {
                    self::tools(document, judged, member.value, &place.member("tools"))?;
                }
            }
            Some(kind) if TOOLS.contains(&kind) => {
                if !matches!(kind, "function" | "custom") {
                    judged.extra_tokens += TOOL_TOKENS;
                }
            }
            Some(kind) if LEFT_OUT.iter().any(|name| kind.starts_with(name)) => {
                judged.leave_out(document, &all, index, kept > 0);
                continue;
            }
            _ => {
                let message = "only the client's own tools (function, custom, namespace, local_shell, apply_patch) are supported: those that the provider runs are not priced";
                return Err(field("unsupported_tool", place.member("type"), message));
            }
        }
        kept += 1;
        judged.items += 1;
    }
    Ok(())
}
