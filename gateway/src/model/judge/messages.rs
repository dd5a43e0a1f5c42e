//! Anthropic Messages, and the counting of their tokens.

use super::super::call::{Edit, Text};
use super::super::json::{Document, Kind, Member, Node};
use super::super::operation::Operation;
use super::{BodyError, Judged, Place, distinct, field, flag, kind_of, known, list, none_of, one_of, positive};

/// Members that are looked into.
const KNOWN: &[&str] = &[
    "model",
    "messages",
    "system",
    "tools",
    "max_tokens",
    "stream",
    "thinking",
    "context_management",
    "service_tier",
    "speed",
    "inference_geo",
];

/// Servers and containers that the provider would use, and what it stores.
const HIDDEN: &[&str] = &["mcp_servers", "container", "cached_content", "previous_response_id", "fallbacks", "fallback_models", "n"];

/// The system prompt that tools add, at most, and what a tool with a schema of Anthropic's own adds.
const TOOL_TOKENS: i64 = 1024;
/// Tools whose schema is Anthropic's and which the client runs.
const CLIENT_TOOLS: &[&str] = &["bash_", "text_editor_", "memory_"];

pub fn judge(document: &Document<'_>, members: &[Member<'_>], model: &str, operation: Operation) -> Result<Judged, BodyError> {
    let mut judged = Judged::default();
    let (mut named, mut messages, mut offered, mut references) = (None, None, 0, 0);
    let bounded = operation == Operation::Messages;
    for Member { key, value } in members {
        let (value, place) = (*value, &Place::Root(key));
        match known(key, KNOWN)? {
            Some("model") => named = Some(value),
            Some("messages") => messages = Some(value),
            Some("system") => references += judge_content(document, value, place)?,
            Some("tools") => {
                offered = i64::try_from(document.raw(value).len()).unwrap_or(i64::MAX);
                tools(document, &mut judged, value)?;
            }
            Some("max_tokens") if bounded => judged.limit(document, place, value)?,
            Some("stream") => judged.stream = flag(document, place, value)? && bounded,
            Some("thinking") if bounded => thinking(document, &mut judged, value)?,
            Some("context_management") => context_management(document, value)?,
            Some("service_tier") => one_of(document, place, value, &["auto", "standard_only"])?,
            Some("speed") => one_of(document, place, value, &["standard"])?,
            Some("inference_geo") => one_of(document, place, value, &["global"])?,
            Some(_) => {}
            None => none_of(document, key, value, place, HIDDEN)?,
        }
    }
    judged.model(document, named, model)?;
    for (index, message) in list(document, "messages", messages)?.into_iter().enumerate() {
        let place = Place::Root("messages");
        let place = place.element(index);
        if document.kind(message) != Kind::Object {
            return Err(field("invalid_field", place, "it must be an object"));
        }
        for Member { key, value } in distinct(document, message, &place)? {
            if known(&key, &["content"])?.is_some() {
                references += judge_content(document, value, &place.member("content"))?;
            }
        }
        judged.items += 1;
    }
    // Each stands for the definition of a tool, which the provider puts in its place.
    judged.extra_tokens = judged.extra_tokens.saturating_add(references.saturating_mul(offered));
    if bounded && !judged.bounds_output() {
        judged.insert(document, document.root(), Text::OutputMember("\"max_tokens\":", ","));
    }
    Ok(judged)
}

/// A string, or blocks of text. Returns how many of them refer to tools of the body.
fn judge_content(document: &Document<'_>, content: Node, place: &Place<'_>) -> Result<i64, BodyError> {
    let mut references = 0;
    match document.kind(content) {
        Kind::String | Kind::Null => return Ok(0),
        Kind::Array => {}
        _ => return Err(field("invalid_field", place, "it must be a string or an array of blocks")),
    }
    for (index, block) in document.elements(content).enumerate() {
        let place = place.element(index);
        let members = distinct(document, block, &place)?;
        match kind_of(document, &members).as_deref() {
            Some("text" | "thinking" | "redacted_thinking" | "tool_use") => {}
            Some("tool_result" | "search_result") => {
                for member in members.iter().filter(|member| member.key == "content") {
                    references += judge_content(document, member.value, &place.member("content"))?;
                }
            }
            Some("tool_reference") => references += 1,
            Some("document") => {
                for member in members.iter().filter(|member| member.key == "source") {
                    judge_source(document, member.value, &place.member("source"))?;
                }
            }
            _ => {
                return Err(field(
                    "unsupported_content",
                    place,
                    "only text is supported: images, files and results of the provider's own tools are not priced",
                ));
            }
        }
        for Member { key, value } in &members {
            none_of(document, key, *value, &place.member(key), &["file_id", "image", "image_url"])?;
        }
    }
    Ok(references)
}

/// A document's source: its text, or blocks of it.
fn judge_source(document: &Document<'_>, source: Node, place: &Place<'_>) -> Result<(), BodyError> {
    let members = distinct(document, source, place)?;
    match kind_of(document, &members).as_deref() {
        Some("text") => Ok(()),
        Some("content") => {
            let content = members.iter().find(|member| member.key == "content");
            content.map_or(Ok(()), |member| judge_content(document, member.value, &place.member("content")).map(drop))
        }
        _ => Err(field("unsupported_content", place, "only sources of type text and content are supported: others are not priced")),
    }
}

fn tools(document: &Document<'_>, judged: &mut Judged, tools: Node) -> Result<(), BodyError> {
    if !matches!(document.kind(tools), Kind::Array | Kind::Null) {
        return Err(field("invalid_field", "tools", "it must be an array"));
    }
    for (index, tool) in document.elements(tools).enumerate() {
        let place = Place::Root("tools");
        let place = place.element(index);
        let members = distinct(document, tool, &place)?;
        let given = members.iter().find(|member| member.key == "type").filter(|member| !document.is_null(member.value));
        let kind = kind_of(document, &members);
        match kind.as_deref() {
            Some("custom") => {}
            None if given.is_none() => {}
            Some(kind) if CLIENT_TOOLS.iter().any(|prefix| kind.starts_with(prefix)) => judged.extra_tokens += TOOL_TOKENS,
            _ => {
                let message = "only the client's own tools (custom, bash_*, text_editor_*, memory_*) are supported: those that the provider runs are not priced";
                return Err(field("unsupported_tool", place.member("type"), message));
            }
        }
        if judged.items == 0 {
            judged.extra_tokens += TOOL_TOKENS;
        }
        judged.items += 1;
    }
    Ok(())
}

/// `budget_tokens` must stay below a clamped output.
fn thinking(document: &Document<'_>, judged: &mut Judged, thinking: Node) -> Result<(), BodyError> {
    for Member { key, value } in distinct(document, thinking, &Place::Root("thinking"))? {
        if known(&key, &["budget_tokens"])?.is_some() && !document.is_null(value) {
            let wanted = positive(document, &Place::Root("thinking.budget_tokens"), value)?;
            judged.edits.push(Edit { at: document.range(value), text: Text::Thinking(wanted) });
        }
    }
    Ok(())
}

/// Clearing old content makes a call cheaper; a summary is a call of its own, billed beyond the output that was asked for.
fn context_management(document: &Document<'_>, management: Node) -> Result<(), BodyError> {
    let members = distinct(document, management, &Place::Root("context_management"))?;
    for Member { key, value } in &members {
        if known(key, &["edits"])?.is_none() {
            continue;
        }
        for (index, edit) in document.elements(*value).enumerate() {
            let place = Place::Root("context_management.edits");
            let place = place.element(index);
            let members = distinct(document, edit, &place)?;
            if !kind_of(document, &members).is_some_and(|kind| kind.starts_with("clear_")) {
                return Err(field(
                    "unsupported_value",
                    place.member("type"),
                    "only edits of type clear_* are supported: others are billed beyond what the body shows",
                ));
            }
        }
    }
    Ok(())
}
