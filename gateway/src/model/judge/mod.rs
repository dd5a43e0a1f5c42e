//! What a body may ask for. Members that nobody here knows pass, so that agents of tomorrow work; refused is a closed list of
//! what costs more than body and clamped output show: references to what the provider stores, the provider's own tools, media,
//! several answers, dearer tiers. Where a kind of thing is chosen by a word (a content part's or a tool's `type`), unknown words
//! are refused, since a provider's next kind may be billed in any way. Each dialect's list is a file of its own. Pure.

mod chat;
mod embeddings;
mod gemini;
mod messages;
mod responses;

use std::borrow::Cow;
use std::fmt;

use super::call::{Edit, Text};
use super::json::{Document, JsonError, Kind, Member, Node};
use super::operation::Operation;

/// Most messages of one call.
const MAX_MESSAGES: usize = 4096;
/// Up to so many members are compared without a set.
const FEW: usize = 24;

/// Why a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body cannot be read: {0}")]
    Malformed(#[from] JsonError),
    #[error("{field}: {message}")]
    Field { code: &'static str, field: String, message: String },
    /// A run has one model.
    #[error("the model is not the run's own, which is {0:?}")]
    WrongModel(String),
}

/// What a body asks for, and what must change in it.
#[derive(Debug, Default)]
pub struct Judged {
    pub stream: bool,
    pub usage_wanted: bool,
    /// Messages, items and tools: the provider adds some tokens around each.
    pub items: usize,
    /// Further input tokens that the provider adds, at most.
    pub extra_tokens: i64,
    pub wanted_output: Option<i64>,
    pub edits: Vec<Edit>,
}

/// Where something stands in a body; written out only for an error.
#[derive(Clone, Copy)]
enum Place<'p> {
    Root(&'p str),
    Member(&'p Place<'p>, &'p str),
    Element(&'p Place<'p>, usize),
}

impl<'p> Place<'p> {
    fn member(&'p self, key: &'p str) -> Place<'p> {
        Place::Member(self, key)
    }

    fn element(&'p self, index: usize) -> Place<'p> {
        Place::Element(self, index)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root(name) => f.write_str(name),
            Place::Member(parent, key) => write!(f, "{parent}.{key}"),
            Place::Element(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Judge a body; `model` is the only one that the run may name. Gemini's stands in the path, where the caller has looked.
pub fn judge(operation: Operation, body: &[u8], model: &str) -> Result<Judged, BodyError> {
    let document = Document::scan(body)?;
    let root = document.root();
    if document.kind(root) != Kind::Object {
        return Err(field("invalid_body", "body", "it must be a JSON object"));
    }
    let members = distinct(&document, root, &Place::Root("body"))?;
    match operation {
        Operation::Chat => chat::judge(&document, &members, model),
        Operation::Responses => responses::judge(&document, &members, model),
        Operation::Embeddings => embeddings::judge(&document, &members, model),
        Operation::Messages | Operation::CountTokens => messages::judge(&document, &members, model, operation),
        Operation::Generate | Operation::GenerateEvents | Operation::GenerateArray | Operation::CountContents => {
            gemini::judge(&document, &members, operation)
        }
    }
}

impl Judged {
    /// The member `model` of a body.
    fn model(&mut self, document: &Document<'_>, named: Option<Node>, model: &str) -> Result<(), BodyError> {
        let Some(named) = named else { return Err(field("missing_field", "model", "it must name the run's model")) };
        if document.string(named).as_deref() != Some(model) {
            return Err(BodyError::WrongModel(model.to_owned()));
        }
        self.edits.push(Edit { at: document.range(named), text: Text::Model });
        Ok(())
    }

    /// A member that bounds the output.
    fn limit(&mut self, document: &Document<'_>, place: &Place<'_>, value: Node) -> Result<(), BodyError> {
        self.edits.push(Edit { at: document.range(value), text: Text::Output });
        if !document.is_null(value) {
            let wanted = positive(document, place, value)?;
            self.wanted_output = Some(self.wanted_output.map_or(wanted, |other| other.min(wanted)));
        }
        Ok(())
    }

    /// Whether the body bounds the output itself.
    fn bounds_output(&self) -> bool {
        self.edits.iter().any(|edit| edit.text == Text::Output)
    }

    /// Put something else in a value's place.
    fn replace(&mut self, document: &Document<'_>, value: Node, text: Text) {
        self.edits.push(Edit { at: document.range(value), text });
    }

    /// Take one element out of a list, with one of the commas beside it; `behind` if one before it stays.
    fn leave_out(&mut self, document: &Document<'_>, list: &[Node], index: usize, behind: bool) {
        let own = document.range(list[index]);
        let at = if behind {
            document.range(list[index - 1]).end..own.end
        } else {
            own.start..list.get(index + 1).map_or(own.end, |next| document.range(*next).start)
        };
        self.edits.push(Edit { at, text: Text::As("") });
    }

    /// Put a member at the front of an object that holds others.
    fn insert(&mut self, document: &Document<'_>, object: Node, text: Text) {
        let at = document.range(object).start + 1;
        self.edits.push(Edit { at: at..at, text });
    }
}

/// An integer from 1.
fn positive(document: &Document<'_>, place: &Place<'_>, value: Node) -> Result<i64, BodyError> {
    let number = document.raw(value).parse::<i64>().ok().filter(|n| *n >= 1);
    number.ok_or_else(|| field("invalid_field", place, "it must be an integer from 1"))
}

/// True, false, or null for the default.
fn flag(document: &Document<'_>, place: &Place<'_>, value: Node) -> Result<bool, BodyError> {
    match document.kind(value) {
        Kind::True => Ok(true),
        Kind::False | Kind::Null => Ok(false),
        _ => Err(field("invalid_field", place, "it must be true or false")),
    }
}

/// A list of 1 to 4096 messages or items; returns its elements.
fn list(document: &Document<'_>, key: &str, list: Option<Node>) -> Result<Vec<Node>, BodyError> {
    let wrong = |code| field(code, key, "it must be an array of 1 to 4096 elements");
    let list = list.ok_or_else(|| wrong("missing_field"))?;
    let elements: Vec<Node> = document.elements(list).take(MAX_MESSAGES + 1).collect();
    if elements.is_empty() || elements.len() > MAX_MESSAGES { Err(wrong("invalid_field")) } else { Ok(elements) }
}

/// The `type` of a part or tool.
fn kind_of<'a>(document: &Document<'a>, members: &[Member<'a>]) -> Option<Cow<'a, str>> {
    members.iter().find(|member| member.key == "type").and_then(|member| document.string(member.value))
}

/// A member that asks for what the body does not show; fine when null.
fn hidden(document: &Document<'_>, place: &Place<'_>, value: Node) -> Result<(), BodyError> {
    if document.is_null(value) {
        return Ok(());
    }
    Err(field("unsupported_field", place, "this field is not supported, since it costs what the body does not show"))
}

/// A member that may have some values only.
fn one_of(document: &Document<'_>, place: &Place<'_>, value: Node, admitted: &[&str]) -> Result<(), BodyError> {
    if document.is_null(value) || document.string(value).is_some_and(|word| admitted.contains(&&*word)) {
        return Ok(());
    }
    Err(field("unsupported_value", place, format!("other values change the price; supported: {}", admitted.join(", "))))
}

/// An object's members; refused if two keys differ by nothing but case, `_` and `-`, since readers differ in which one they take.
fn distinct<'a>(document: &Document<'a>, object: Node, place: &Place<'_>) -> Result<Vec<Member<'a>>, BodyError> {
    let members: Vec<Member<'a>> = document.members(object).collect();
    let twice =
        |member: &Member<'_>| Err(field("duplicate_field", place.member(&member.key), "a field may be given once only, whatever its case"));
    if members.len() <= FEW {
        for (at, member) in members.iter().enumerate() {
            if members[..at].iter().any(|other| same(&other.key, &member.key)) {
                return twice(member);
            }
        }
    } else {
        let mut seen = std::collections::HashSet::with_capacity(members.len());
        for member in &members {
            if !seen.insert(plain(&member.key).collect::<Vec<u8>>()) {
                return twice(member);
            }
        }
    }
    Ok(members)
}

fn field(code: &'static str, place: impl fmt::Display, message: impl Into<String>) -> BodyError {
    BodyError::Field { code, field: place.to_string().chars().take(128).collect(), message: message.into() }
}

/// Whether two keys are one to a reader that is lax about case, `_` and `-`.
fn same(key: &str, name: &str) -> bool {
    key == name || plain(key).eq(plain(name))
}

/// A key as such a reader reads it.
fn plain(key: &str) -> impl Iterator<Item = u8> {
    key.bytes().filter(|byte| !matches!(byte, b'_' | b'-')).map(|byte| byte.to_ascii_lowercase())
}

/// The one of `names` that a key is; refused if it is another spelling of one, which some providers take for it.
fn known(key: &str, names: &'static [&'static str]) -> Result<Option<&'static str>, BodyError> {
    match names.iter().find(|name| same(key, name)) {
        Some(name) if *name == key => Ok(Some(name)),
        Some(name) => Err(field("unsupported_field", key, format!("it must be spelled {name}"))),
        None => Ok(None),
    }
}

/// Refused if a key, at `place`, is a spelling of one of `names` and holds anything.
fn none_of(document: &Document<'_>, key: &str, value: Node, place: &Place<'_>, names: &[&str]) -> Result<(), BodyError> {
    if names.iter().any(|name| same(key, name)) { hidden(document, place, value) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
