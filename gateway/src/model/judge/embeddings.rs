//! OpenAI embeddings: texts in, vectors out, no output tokens.

use super::super::json::{Document, Kind, Member};
use super::{BodyError, Judged, Place, field, known, none_of};

/// Most texts of one call.
const MAX_INPUTS: usize = 2048;

pub fn judge(document: &Document<'_>, members: &[Member<'_>], model: &str) -> Result<Judged, BodyError> {
    let mut judged = Judged::default();
    let (mut named, mut input) = (None, None);
    for Member { key, value } in members {
        match known(key, &["model", "input"])? {
            Some("model") => named = Some(*value),
            Some(_) => input = Some(*value),
            None => none_of(
                document,
                key,
                *value,
                &Place::Root(key),
                &["service_tier", "models", "fallbacks", "file_ids", "messages", "images", "extra_body"],
            )?,
        }
    }
    judged.model(document, named, model)?;
    let wrong = || field("invalid_field", "input", "it must be a text, or an array of 1 to 2048 texts or arrays of tokens");
    let input =
        input.ok_or_else(|| field("missing_field", "input", "it must be a text, or an array of 1 to 2048 texts or arrays of tokens"))?;
    match document.kind(input) {
        Kind::String => judged.items = 1,
        Kind::Array => {
            let mut elements = document.elements(input).peekable();
            // Tokens cost no more than their digits and commas count.
            let numbers = elements.peek().is_some_and(|first| document.kind(*first) == Kind::Number);
            let kinds: &[Kind] = if numbers { &[Kind::Number] } else { &[Kind::String, Kind::Array] };
            for element in elements {
                let deep =
                    document.kind(element) == Kind::Array && !document.elements(element).all(|token| document.kind(token) == Kind::Number);
                if !kinds.contains(&document.kind(element)) || deep {
                    return Err(wrong());
                }
                judged.items += usize::from(!numbers);
            }
            if judged.items > MAX_INPUTS || (judged.items == 0 && !numbers) {
                return Err(wrong());
            }
        }
        _ => return Err(wrong()),
    }
    Ok(judged)
}
