//! A JSON scanner that says where values stand, so that a body can be judged and edited without being rebuilt. It accepts
//! exactly the JSON grammar, to a bounded depth; callers walk one level at a time.

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
    #[error("it is not UTF-8")]
    NotUtf8,
}

/// A whole document that has been scanned once.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    text: &'a str,
}

/// One value of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub start: usize,
    pub end: usize,
}

impl Node {
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

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
    /// Check the grammar of the whole text.
    pub fn scan(bytes: &'a [u8]) -> Result<(Self, Node), JsonError> {
        let text = std::str::from_utf8(bytes).map_err(|_| JsonError::NotUtf8)?;
        let mut scanner = Scanner { bytes, at: 0 };
        scanner.space();
        let root = scanner.value(0)?;
        scanner.space();
        if scanner.at != bytes.len() { Err(JsonError::Unexpected(scanner.at)) } else { Ok((Document { text }, root)) }
    }

    /// The value's text as it stands.
    pub fn raw(&self, node: Node) -> &'a str {
        &self.text[node.range()]
    }

    pub fn kind(&self, node: Node) -> Kind {
        match self.text.as_bytes()[node.start] {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' => Kind::True,
            b'f' => Kind::False,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// A string's content, escapes resolved; `None` if it is no string (or one with a lone surrogate).
    pub fn string(&self, node: Node) -> Option<Cow<'a, str>> {
        let raw = self.raw(node);
        let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
        if inner.contains('\\') { serde_json::from_str::<String>(raw).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inner)) }
    }

    /// An object's members, in order; empty for anything else. A key that is no Unicode text keeps its escapes.
    pub fn members(&self, node: Node) -> Vec<Member<'a>> {
        let mut members = Vec::new();
        if self.kind(node) == Kind::Object {
            let mut scanner = Scanner { bytes: self.text.as_bytes(), at: node.start + 1 };
            while let Some(key) = scanner.next_item(b'}') {
                scanner.space();
                scanner.at += 1; // the colon
                scanner.space();
                let Ok(value) = scanner.value(0) else { break };
                members.push(Member { key: self.string(key).unwrap_or(Cow::Borrowed(self.raw(key))), value });
            }
        }
        members
    }

    /// An array's elements, in order; empty for anything else.
    pub fn elements(&self, node: Node) -> Vec<Node> {
        let mut elements = Vec::new();
        if self.kind(node) == Kind::Array {
            let mut scanner = Scanner { bytes: self.text.as_bytes(), at: node.start + 1 };
            while let Some(element) = scanner.next_item(b']') {
                elements.push(element);
            }
        }
        elements
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
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

    /// In a document that was scanned already: the next key or element, or `None` at the closing bracket.
    fn next_item(&mut self, close: u8) -> Option<Node> {
        self.space();
        if self.peek() == Ok(b',') {
            self.at += 1;
            self.space();
        }
        if self.peek().ok()? == close { None } else { self.value(0).ok() }
    }

    fn value(&mut self, depth: u32) -> Result<Node, JsonError> {
        if depth > MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        let start = self.at;
        match self.peek()? {
            b'{' => self.sequence(b'}', |scanner| {
                scanner.string()?;
                scanner.space();
                scanner.expect(b':')?;
                scanner.space();
                scanner.value(depth + 1).map(drop)
            })?,
            b'[' => self.sequence(b']', |scanner| scanner.value(depth + 1).map(drop))?,
            b'"' => self.string()?,
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            b'n' => self.word(b"null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(JsonError::Unexpected(self.at)),
        }
        Ok(Node { start, end: self.at })
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
            let step = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).ok_or(JsonError::Truncated)?;
            self.at += step;
            match self.bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
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
            let (document, root) = Document::scan(text.as_bytes()).unwrap();
            // Through serde once: it does not round-trip every float.
            prop_assert_eq!(rebuild(document, root), serde_json::from_str::<Value>(&text).unwrap());
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

    fn rebuild(document: Document<'_>, node: Node) -> Value {
        match document.kind(node) {
            Kind::Object => {
                Value::Object(document.members(node).into_iter().map(|m| (m.key.into_owned(), rebuild(document, m.value))).collect())
            }
            Kind::Array => document.elements(node).into_iter().map(|n| rebuild(document, n)).collect(),
            Kind::String => Value::from(document.string(node).unwrap().into_owned()),
            _ => serde_json::from_str(document.raw(node)).unwrap(),
        }
    }
}
