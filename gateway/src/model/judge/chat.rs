//! OpenAI chat/completions, as OpenAI and the many servers that speak it read it.

use super::super::call::{Edit, Text};
use super::super::json::{Document, Kind, Member, Node};
use super::{BodyError, Judged, Place, distinct, field, flag, kind_of, known, list, none_of, one_of};

/// Members that are looked into.
const KNOWN: &[&str] = &[
    "model",
    "messages",
    "tools",
    "functions",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "store",
    "modalities",
    "service_tier",
];

/// What costs more than the body shows: searches and other tools of the provider, references to what it stores, other models and
/// routes, predictions (refused tokens are billed), further answers and beams, and names by which servers bound the output with
/// precedence over `max_tokens`.
const HIDDEN: &[&str] = &[
    "audio",
    "prediction",
    "web_search_options",
    "search_parameters",
    "search_settings",
    "enable_search",
    "search_options",
    "plugins",
    "mcp_servers",
    "container",
    "previous_response_id",
    "conversation",
    "conversation_id",
    "thread_id",
    "prompt",
    "cached_content",
    "file_ids",
    "background",
    "deferred",
    "models",
    "fallbacks",
    "route",
    "provider",
    "preset",
    "extra_body",
    "speed",
    "inference_geo",
    "best_of",
    "n_cmpl",
    "use_beam_search",
    "max_output_tokens",
    "max_new_tokens",
    "max_length",
    "max_gen_len",
    "n_predict",
    "num_predict",
    "options",
];

/// Members of a message that are references or media.
const HIDDEN_IN_MESSAGE: &[&str] = &["audio", "file_id", "file_ids", "attachments", "images", "image_url", "videos", "container"];

/// Members of a part that are media, whatever its type says.
const HIDDEN_IN_PART: &[&str] = &[
    "image_url",
    "image",
    "image_embeds",
    "image_pil",
    "input_image",
    "input_audio",
    "audio",
    "audio_url",
    "audio_embeds",
    "video",
    "video_url",
    "file",
    "file_id",
    "input_file",
    "source",
    "uuid",
];

pub fn judge(document: &Document<'_>, members: &[Member<'_>], model: &str) -> Result<Judged, BodyError> {
    let mut judged = Judged::default();
    let (mut named, mut messages, mut options) = (None, None, None);
    for Member { key, value } in members {
        let (value, place) = (*value, &Place::Root(key));
        match known(key, KNOWN)? {
            Some("model") => named = Some(value),
            Some("messages") => messages = Some(value),
            Some("tools") => judged.items += tools(document, value)?,
            Some("functions") => judged.items += document.elements(value).count(),
            Some("stream") => judged.stream = flag(document, place, value)?,
            Some("stream_options") => options = Some(value),
            Some("max_tokens" | "max_completion_tokens") => judged.limit(document, place, value)?,
            Some("n") if !document.is_null(value) && document.raw(value) != "1" => {
                return Err(field("unsupported_value", place, "only 1 is supported: each further answer multiplies the output"));
            }
            Some("store") if flag(document, place, value)? => {
                return Err(field("unsupported_value", place, "only false is supported: nothing of a run is stored at the provider"));
            }
            Some("modalities") if !document.is_null(value) => {
                let text = |node| document.string(node).as_deref() == Some("text");
                if document.kind(value) != Kind::Array || !document.elements(value).all(text) {
                    return Err(field("unsupported_value", place, "only [\"text\"] is supported: other media are not priced"));
                }
            }
            Some("service_tier") => one_of(document, place, value, &["auto", "default", "flex"])?,
            Some(_) => {}
            None => none_of(document, key, value, place, HIDDEN)?,
        }
    }
    judged.model(document, named, model)?;
    for (index, message) in list(document, "messages", messages)?.into_iter().enumerate() {
        judge_message(document, message, &Place::Root("messages").element(index))?;
        judged.items += 1;
    }
    if !judged.bounds_output() {
        judged.insert(document, document.root(), Text::ChatOutput);
    }
    usage(document, &mut judged, options)?;
    Ok(judged)
}

/// Make a stream report its usage, and learn whether the caller wanted that itself.
fn usage(document: &Document<'_>, judged: &mut Judged, given: Option<Node>) -> Result<(), BodyError> {
    let Some(options) = given.filter(|node| !document.is_null(*node)) else {
        if judged.stream {
            match given {
                Some(null) => judged.edits.push(Edit { at: document.range(null), text: Text::As(r#"{"include_usage":true}"#) }),
                None => judged.insert(document, document.root(), Text::As(r#""stream_options":{"include_usage":true},"#)),
            }
        }
        return Ok(());
    };
    if !judged.stream {
        return Err(field("invalid_field", "stream_options", "it is allowed with \"stream\": true only"));
    }
    if document.kind(options) != Kind::Object {
        return Err(field("invalid_field", "stream_options", "it must be an object"));
    }
    let members = distinct(document, options, &Place::Root("stream_options"))?;
    for Member { key, value } in &members {
        if known(key, &["include_usage"])?.is_none() {
            continue;
        }
        judged.usage_wanted = flag(document, &Place::Root("stream_options.include_usage"), *value)?;
        if !judged.usage_wanted {
            judged.edits.push(Edit { at: document.range(*value), text: Text::As("true") });
        }
        return Ok(());
    }
    let text = if members.is_empty() { r#""include_usage":true"# } else { r#""include_usage":true,"# };
    judged.insert(document, options, Text::As(text));
    Ok(())
}

fn judge_message(document: &Document<'_>, message: Node, place: &Place<'_>) -> Result<(), BodyError> {
    if document.kind(message) != Kind::Object {
        return Err(field("invalid_field", place, "it must be an object"));
    }
    for Member { key, value } in distinct(document, message, place)? {
        match known(&key, &["content"])? {
            Some(_) => judge_content(document, value, &place.member("content"))?,
            None => none_of(document, &key, value, &place.member(&key), HIDDEN_IN_MESSAGE)?,
        }
    }
    Ok(())
}

fn judge_content(document: &Document<'_>, content: Node, place: &Place<'_>) -> Result<(), BodyError> {
    match document.kind(content) {
        Kind::String | Kind::Null => return Ok(()),
        Kind::Array => {}
        _ => return Err(field("invalid_field", place, "it must be a string or an array of text parts")),
    }
    for (index, part) in document.elements(content).enumerate() {
        let place = place.element(index);
        let members = distinct(document, part, &place)?;
        if !matches!(kind_of(document, &members).as_deref(), Some("text" | "refusal" | "thinking" | "reasoning")) {
            return Err(field("unsupported_content", place, "only text is supported: images, audio and files are not priced"));
        }
        for Member { key, value } in &members {
            none_of(document, key, *value, &place.member(key), HIDDEN_IN_PART)?;
        }
    }
    Ok(())
}

/// Returns the number of tools.
fn tools(document: &Document<'_>, tools: Node) -> Result<usize, BodyError> {
    if !matches!(document.kind(tools), Kind::Array | Kind::Null) {
        return Err(field("invalid_field", "tools", "it must be an array"));
    }
    let mut count = 0;
    for (index, tool) in document.elements(tools).enumerate() {
        let place = Place::Root("tools");
        let place = place.element(index);
        let members = distinct(document, tool, &place)?;
        if !matches!(kind_of(document, &members).as_deref(), Some("function" | "custom")) {
            let message = "only function and custom are supported: the provider's own tools are not priced";
            return Err(field("unsupported_tool", place.member("type"), message));
        }
        count += 1;
    }
    Ok(count)
}
