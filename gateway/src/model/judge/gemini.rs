//! Gemini generateContent, streamGenerateContent and countTokens. Google reads each name in camelCase and in snake_case.

use super::super::call::{Edit, Text};
use super::super::json::{Document, Kind, Member, Node};
use super::super::operation::Operation;
use super::{BodyError, Judged, Place, distinct, field, hidden, list, positive, same};

/// Members that are looked into, in both spellings.
const CONTENTS: [&str; 2] = ["contents", "contents"];
const SYSTEM: [&str; 2] = ["systemInstruction", "system_instruction"];
const TOOLS: [&str; 2] = ["tools", "tools"];
const CONFIG: [&str; 2] = ["generationConfig", "generation_config"];
const OUTPUT: [&str; 2] = ["maxOutputTokens", "max_output_tokens"];
const CANDIDATES: [&str; 2] = ["candidateCount", "candidate_count"];
const MODALITIES: [&str; 2] = ["responseModalities", "response_modalities"];
const TIER: [&str; 2] = ["serviceTier", "service_tier"];
const FUNCTIONS: [&str; 2] = ["functionDeclarations", "function_declarations"];
const RESPONSE: [&str; 2] = ["functionResponse", "function_response"];

/// What is stored at the provider, and other models.
const HIDDEN: &[&str] = &["cachedContent", "model", "generateContentRequest", "store", "previousInteractionId", "background"];
/// Media.
const HIDDEN_IN_CONFIG: &[&str] = &["speechConfig", "imageConfig", "videoConfig", "audioConfig", "mediaResolution"];
/// What is text, or a call of the client's own function.
const PARTS: &[&str] = &["text", "thought", "thoughtSignature", "functionCall", "functionResponse", "partMetadata"];

pub fn judge(document: &Document<'_>, members: &[Member<'_>], operation: Operation) -> Result<Judged, BodyError> {
    let mut judged = Judged::default();
    let (mut contents, mut config) = (None, None);
    for Member { key, value } in members {
        let (value, place) = (*value, &Place::Root(key));
        if is(key, CONTENTS)? {
            contents = Some(value);
        } else if is(key, SYSTEM)? {
            judge_content(document, value, place)?;
        } else if is(key, TOOLS)? {
            tools(document, &mut judged, value, place)?;
        } else if is(key, CONFIG)? {
            config = Some(value);
        } else if is(key, TIER)? {
            let tier = document.string(value).map(|tier| tier.to_ascii_lowercase());
            if !document.is_null(value)
                && !tier.is_some_and(|tier| matches!(tier.as_str(), "standard" | "flex" | "unspecified" | "service_tier_unspecified"))
            {
                return Err(field("unsupported_value", place, "other tiers change the price; supported: standard, flex"));
            }
        } else if HIDDEN.iter().any(|name| same(key, name)) {
            hidden(document, place, value)?;
        }
    }
    for (index, content) in list(document, "contents", contents)?.into_iter().enumerate() {
        judge_content(document, content, &Place::Root("contents").element(index))?;
        judged.items += 1;
    }
    judged.stream = matches!(operation, Operation::GenerateEvents | Operation::GenerateArray);
    if operation != Operation::CountContents {
        generation(document, &mut judged, config)?;
    }
    Ok(judged)
}

/// Whether a key is one of the two spellings of a name; any other is refused.
fn is(key: &str, names: [&'static str; 2]) -> Result<bool, BodyError> {
    if names.contains(&key) {
        return Ok(true);
    }
    if same(key, names[0]) { Err(field("unsupported_field", key, format!("it must be spelled {}", names[0]))) } else { Ok(false) }
}

/// The generation's configuration, with its bound of the output.
fn generation(document: &Document<'_>, judged: &mut Judged, config: Option<Node>) -> Result<(), BodyError> {
    let place = &Place::Root("generationConfig");
    let Some(config) = config.filter(|config| !document.is_null(*config)) else {
        match config {
            Some(null) => judged.replace(document, null, Text::OutputMember("{\"maxOutputTokens\":", "}")),
            None => judged.insert(document, document.root(), Text::OutputMember("\"generationConfig\":{\"maxOutputTokens\":", "},")),
        }
        return Ok(());
    };
    if document.kind(config) != Kind::Object {
        return Err(field("invalid_field", place, "it must be an object"));
    }
    let members = distinct(document, config, place)?;
    for Member { key, value } in &members {
        let (value, place) = (*value, &place.member(key));
        if is(key, OUTPUT)? {
            judged.limit(document, place, value)?;
        } else if is(key, CANDIDATES)? {
            if !document.is_null(value) && document.raw(value) != "1" {
                return Err(field("unsupported_value", place, "only 1 is supported: each further answer multiplies the output"));
            }
        } else if is(key, MODALITIES)? {
            let text = |node| document.string(node).is_some_and(|word| word.eq_ignore_ascii_case("text"));
            if !document.is_null(value) && (document.kind(value) != Kind::Array || !document.elements(value).all(text)) {
                return Err(field("unsupported_value", place, "only [\"TEXT\"] is supported: other media are not priced"));
            }
        } else if same(key, "thinkingConfig") {
            for Member { key, value } in distinct(document, value, place)? {
                if same(&key, "thinkingBudget")
                    && let Ok(wanted) = positive(document, place, value)
                {
                    judged.edits.push(Edit { at: document.range(value), text: Text::Thinking(wanted) });
                }
            }
        } else if HIDDEN_IN_CONFIG.iter().any(|name| same(key, name)) {
            hidden(document, place, value)?;
        }
    }
    if !judged.bounds_output() {
        let behind = if members.is_empty() { "" } else { "," };
        judged.insert(document, config, Text::OutputMember("\"maxOutputTokens\":", behind));
    }
    Ok(())
}

/// `{role, parts}`; `systemInstruction` may also be a string.
fn judge_content(document: &Document<'_>, content: Node, place: &Place<'_>) -> Result<(), BodyError> {
    match document.kind(content) {
        Kind::Object => {}
        Kind::String | Kind::Null => return Ok(()),
        _ => return Err(field("invalid_field", place, "it must be an object with parts")),
    }
    for Member { key, value } in distinct(document, content, place)? {
        if !is(&key, ["parts", "parts"])? {
            continue;
        }
        let place = &place.member("parts");
        // Google takes a single part for a list of one.
        if document.kind(value) == Kind::Object {
            judge_part(document, value, place)?;
        }
        for (index, part) in document.elements(value).enumerate() {
            judge_part(document, part, &place.element(index))?;
        }
    }
    Ok(())
}

fn judge_part(document: &Document<'_>, part: Node, place: &Place<'_>) -> Result<(), BodyError> {
    for Member { key, value } in distinct(document, part, place)? {
        if !PARTS.iter().any(|name| same(&key, name)) {
            let message =
                "only text and calls of the client's own functions are supported: media, files and the provider's own tools are not priced";
            return Err(field("unsupported_content", place.member(&key), message));
        }
        if is(&key, RESPONSE)? {
            for Member { key, value } in distinct(document, value, place)? {
                if same(&key, "parts") && document.elements(value).next().is_some() {
                    return Err(field("unsupported_content", place.member("functionResponse.parts"), "media are not priced"));
                }
            }
        }
    }
    Ok(())
}

fn tools(document: &Document<'_>, judged: &mut Judged, tools: Node, place: &Place<'_>) -> Result<(), BodyError> {
    // Google takes a single tool for a list of one.
    let single = (document.kind(tools) == Kind::Object).then_some(tools);
    for (index, tool) in document.elements(tools).chain(single).enumerate() {
        let place = place.element(index);
        for Member { key, value } in distinct(document, tool, &place)? {
            if !is(&key, FUNCTIONS)? {
                let message = "only functionDeclarations are supported: tools that the provider runs, such as googleSearch, are not priced";
                return Err(field("unsupported_tool", place.member(&key), message));
            }
            judged.items += document.elements(value).count();
        }
    }
    Ok(())
}
