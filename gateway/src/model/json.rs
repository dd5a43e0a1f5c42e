//! A JSON scanner that says where values stand, so that a body can be judged and edited without being rebuilt. It accepts
//! exactly the JSON grammar, to a bounded depth and number of values, in one pass; walking it reads no text again.

use std::borrow::Cow;
use std::ops::Range;

/// Deepest nesting.
const MAX_DEPTH: u32 = 100;

/// What is wrong, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    #[error("it is not JSON: unexpected byte at offset {0}")]
    Unexpected(usize),
    #[error("it is not JSON: it ends too early")]
    Truncated,
    #[error("it is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("it holds more than {MAX_VALUES} values")]
    TooMany,
    #[error("it is not UTF-8")]
    NotUtf8,
}

/// Most values in a document: what stands in the tape is several times what stands in the text.
const MAX_VALUES: usize = 1 << 18;

/// A whole document that has been scanned once: its text, and where each value stands, parents before children.
pub struct Document<'a> {
    text: &'a str,
    tape: Vec<Entry>,
}

/// One value or key on the tape.
#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    end: u32,
    /// The entry behind the last one within this value.
    next: u32,
}

/// One value of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(u32);

/// One member of an object.
pub struct Member<'a> {
    pub key: Cow<'a, str>,
    pub value: Node,
}

/// What kind of value a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

impl<'a> Document<'a> {
    /// Check the grammar of the whole text; the root is `root()`.
    pub fn scan(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes).map_err(|_| JsonError::NotUtf8)?;
        if u32::try_from(bytes.len()).is_err() {
            return Err(JsonError::TooMany);
        }
        let mut scanner = Scanner { bytes, at: 0, tape: Vec::with_capacity(bytes.len() / 32 + 8) };
        scanner.space();
        scanner.value(0)?;
        scanner.space();
        if scanner.at != bytes.len() { Err(JsonError::Unexpected(scanner.at)) } else { Ok(Document { text, tape: scanner.tape }) }
    }

    /// The value that is the whole document.
    pub fn root(&self) -> Node {
        Node(0)
    }

    /// Where the value stands in the text.
    pub fn range(&self, node: Node) -> Range<usize> {
        let Entry { start, end, .. } = self.tape[node.0 as usize];
        start as usize..end as usize
    }

    /// The value's text as it stands.
    pub fn raw(&self, node: Node) -> &'a str {
        &self.text[self.range(node)]
    }

    pub fn kind(&self, node: Node) -> Kind {
        match self.text.as_bytes()[self.range(node).start] {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' => Kind::True,
            b'f' => Kind::False,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    pub fn is_null(&self, node: Node) -> bool {
        self.kind(node) == Kind::Null
    }

    /// A string's content, escapes resolved; `None` if it is no string (or one with a lone surrogate).
    pub fn string(&self, node: Node) -> Option<Cow<'a, str>> {
        let raw = self.raw(node);
        let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
        if inner.contains('\\') { serde_json::from_str::<String>(raw).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inner)) }
    }

    /// An object's members, in order; empty for anything else. A key that is no Unicode text keeps its escapes.
    pub fn members(&self, node: Node) -> impl Iterator<Item = Member<'a>> {
        let mut nodes = self.children(node, Kind::Object);
        std::iter::from_fn(move || {
            let key = nodes.next()?;
            Some(Member { key: self.string(key).unwrap_or(Cow::Borrowed(self.raw(key))), value: nodes.next()? })
        })
    }

    /// An array's elements, in order; empty for anything else.
    pub fn elements(&self, node: Node) -> impl Iterator<Item = Node> {
        self.children(node, Kind::Array)
    }

    fn children(&self, node: Node, kind: Kind) -> impl Iterator<Item = Node> {
        let end = if self.kind(node) == kind { self.tape[node.0 as usize].next } else { 0 };
        let mut at = node.0 + 1;
        std::iter::from_fn(move || {
            let child = (at < end).then_some(Node(at))?;
            at = self.tape[at as usize].next;
            Some(child)
        })
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    tape: Vec<Entry>,
}

impl Scanner<'_> {
    fn peek(&self) -> Result<u8, JsonError> {
        self.bytes.get(self.at).copied().ok_or(JsonError::Truncated)
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.peek()? == byte {
            self.at += 1;
            Ok(())
        } else {
            Err(JsonError::Unexpected(self.at))
        }
    }

    /// A value onto the tape.
    fn value(&mut self, depth: u32) -> Result<(), JsonError> {
        if depth > MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.entry(|scanner| match scanner.peek()? {
            b'{' => scanner.sequence(b'}', |scanner| {
                scanner.entry(Self::string)?;
                scanner.space();
                scanner.expect(b':')?;
                scanner.space();
                scanner.value(depth + 1)
            }),
            b'[' => scanner.sequence(b']', |scanner| scanner.value(depth + 1)),
            b'"' => scanner.string(),
            b't' => scanner.word(b"true"),
            b'f' => scanner.word(b"false"),
            b'n' => scanner.word(b"null"),
            b'-' | b'0'..=b'9' => scanner.number(),
            _ => Err(JsonError::Unexpected(scanner.at)),
        })
    }

    fn entry(&mut self, read: impl FnOnce(&mut Self) -> Result<(), JsonError>) -> Result<(), JsonError> {
        let index = self.tape.len();
        if index >= MAX_VALUES {
            return Err(JsonError::TooMany);
        }
        // The text is shorter than 4 GiB.
        let start = self.at as u32;
        self.tape.push(Entry { start, end: start, next: 0 });
        read(self)?;
        let next = self.tape.len() as u32;
        self.tape[index] = Entry { start, end: self.at as u32, next };
        Ok(())
    }

    fn sequence(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Result<(), JsonError>) -> Result<(), JsonError> {
        self.at += 1;
        self.space();
        if self.peek()? == close {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            self.space();
            match self.peek()? {
                b',' => {
                    self.at += 1;
                    self.space();
                }
                byte if byte == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(JsonError::Unexpected(self.at)),
            }
        }
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.expect(b'"')?;
        loop {
            let rest = self.bytes.get(self.at..).ok_or(JsonError::Truncated)?;
            let step = memchr::memchr2(b'"', b'\\', rest);
            // Without a branch for each byte, so that it is done many at a time.
            let plain = &rest[..step.unwrap_or(rest.len())];
            if plain.iter().fold(false, |found, byte| found | (*byte < 0x20)) {
                let control = plain.iter().position(|byte| *byte < 0x20).unwrap_or(0);
                return Err(JsonError::Unexpected(self.at + control));
            }
            self.at += step.ok_or(JsonError::Truncated)?;
            if self.bytes[self.at] == b'"' {
                self.at += 1;
                return Ok(());
            }
            self.at += 1;
            match self.peek()? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
                b'u' => {
                    self.at += 1;
                    for _ in 0..4 {
                        if !self.peek()?.is_ascii_hexdigit() {
                            return Err(JsonError::Unexpected(self.at));
                        }
                        self.at += 1;
                    }
                }
                _ => return Err(JsonError::Unexpected(self.at)),
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        for byte in word {
            self.expect(*byte)?;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Ok(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Ok(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Ok(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !self.peek()?.is_ascii_digit() {
            return Err(JsonError::Unexpected(self.at));
        }
        while self.peek().is_ok_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_grammar_is_json_and_nothing_else() {
        for text in [
            "",
            " ",
            "{",
            "}",
            "{]",
            "[1,]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e",
            "nul",
            "truee",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "{} {}",
            "\u{feff}{}",
            "'a'",
            "[1 2]",
            "NaN",
            "1e+",
            "--1",
            "\"\\",
        ] {
            assert!(Document::scan(text.as_bytes()).is_err(), "{text:?}");
            assert!(serde_json::from_str::<Value>(text).is_err(), "{text:?}");
        }
        for text in ["{}", " [ ] ", "-0.5e+10", "\"\\u00e9\\n\"", "null", "{\"a\":{\"b\":[1,2,{\"c\":null}]}}", "\"\u{7f}ü\""] {
            assert!(Document::scan(text.as_bytes()).is_ok(), "{text:?}");
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text:?}");
        }
        assert_eq!(Document::scan(b"\"\xff\"").err(), Some(JsonError::NotUtf8));
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Document::scan(deep(100).as_bytes()).is_ok());
        assert_eq!(Document::scan(deep(200_000).as_bytes()).err(), Some(JsonError::TooDeep));
        assert_eq!(Document::scan(format!("[{}0]", "0,".repeat(MAX_VALUES)).as_bytes()).err(), Some(JsonError::TooMany));
    }

    /// Any JSON value.
    pub fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,6}", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn walking_finds_what_serde_finds(value in json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let document = Document::scan(text.as_bytes()).unwrap();
            // Through serde once: it does not round-trip every float.
            prop_assert_eq!(rebuild(&document, document.root()), serde_json::from_str::<Value>(&text).unwrap());
        }

        #[test]
        fn bytes_that_serde_refuses_are_refused(mut text in json().prop_map(|v| v.to_string().into_bytes()), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let at = at.index(text.len());
            text[at] = byte;
            // serde refuses lone surrogates and huge exponents, which are within the grammar; we never accept what it cannot lex otherwise.
            if Document::scan(&text).is_err() {
                prop_assert!(serde_json::from_slice::<Value>(&text).is_err());
            }
        }
    }

    fn rebuild(document: &Document<'_>, node: Node) -> Value {
        match document.kind(node) {
            Kind::Object => Value::Object(document.members(node).map(|m| (m.key.into_owned(), rebuild(document, m.value))).collect()),
            Kind::Array => document.elements(node).map(|n| rebuild(document, n)).collect(),
            Kind::String => Value::from(document.string(node).unwrap().into_owned()),
            _ => serde_json::from_str(document.raw(node)).unwrap(),
        }
    }
}
