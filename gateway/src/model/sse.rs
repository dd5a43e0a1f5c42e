//! Server-sent events of a streamed answer, event by event and byte-exact: finds usage and the end, hides what was not asked for
//! and what must not be seen. Pure; bytes go in as they come off the wire.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::usage::{Usage, WireUsage};

/// Largest single event.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Send these bytes on.
    Forward(Bytes),
    /// The terminal event: send these bytes and end.
    Done(Bytes),
    /// The provider reported an error within the stream; its words are not for the sandbox.
    UpstreamError,
    /// An event is larger than any may be.
    TooLarge,
}

/// State of one stream.
pub struct Relay {
    buffer: BytesMut,
    /// Bytes of `buffer` known to hold no end of an event.
    searched: usize,
    usage_wanted: bool,
    usage: Option<Usage>,
    odd_usage: bool,
}

impl Relay {
    pub fn new(usage_wanted: bool) -> Self {
        Relay { buffer: BytesMut::new(), searched: 0, usage_wanted, usage: None, odd_usage: false }
    }

    /// What the provider reported so far; nothing if a report was odd.
    pub fn usage(&self) -> Option<Usage> {
        self.usage.filter(|_| !self.odd_usage)
    }

    /// Take bytes off the wire.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event, if there is one.
    pub fn next_frame(&mut self) -> Option<Frame> {
        loop {
            let Some(end) = self.event_end() else {
                return (self.buffer.len() > MAX_EVENT_BYTES).then_some(Frame::TooLarge);
            };
            let event = self.buffer.split_to(end).freeze();
            self.searched = 0;
            if event.len() > MAX_EVENT_BYTES {
                return Some(Frame::TooLarge);
            }
            if let Some(frame) = self.judge(event) {
                return Some(frame);
            }
        }
    }

    /// The offset behind the blank line that ends the first event.
    fn event_end(&mut self) -> Option<usize> {
        let bytes = &self.buffer[..];
        let mut at = self.searched;
        while let Some(step) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            let line_end = at + step;
            match (bytes.get(line_end + 1), bytes.get(line_end + 2)) {
                (Some(b'\n'), _) => return Some(line_end + 2),
                (Some(b'\r'), Some(b'\n')) => return Some(line_end + 3),
                (None, _) | (Some(b'\r'), None) => {
                    self.searched = line_end;
                    return None;
                }
                _ => at = line_end + 1,
            }
        }
        self.searched = bytes.len();
        None
    }

    fn judge(&mut self, event: Bytes) -> Option<Frame> {
        let data = data_of(&event);
        let Some(data) = data else {
            // Comments and the like keep the connection alive; their words are the provider's own.
            return Some(Frame::Forward(Bytes::from_static(b":\n\n")));
        };
        if data.trim_ascii() == b"[DONE]" {
            return Some(Frame::Done(event));
        }
        let mentions = |needle: &[u8]| data.windows(needle.len()).any(|window| window == needle);
        // A member name can also be written with escapes; nobody does, and then usage is unknown and charged in full.
        let (has_usage, has_error) = (mentions(b"\"usage\""), mentions(b"\"error\""));
        if has_error && serde_json::from_slice::<ErrorShape>(&data).is_ok_and(|shape| shape.error.is_some()) {
            return Some(Frame::UpstreamError);
        }
        if has_usage {
            match serde_json::from_slice::<Chunk>(&data) {
                Ok(Chunk { usage: None, .. }) => {}
                Ok(Chunk { usage: Some(usage), choices }) => {
                    match usage.checked() {
                        Some(usage) => self.usage = Some(usage.max(self.usage)),
                        None => self.odd_usage = true,
                    }
                    if choices.is_empty() && !self.usage_wanted {
                        return None;
                    }
                }
                Err(_) => {
                    // Text that talks about usage is not a report of it.
                    let says = serde_json::from_slice::<UsageShape>(&data).map(|shape| shape.usage.is_some());
                    self.odd_usage |= says.unwrap_or(true);
                }
            }
        }
        Some(Frame::Forward(event))
    }
}

#[derive(Deserialize)]
struct Chunk {
    usage: Option<WireUsage>,
    #[serde(default)]
    choices: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct UsageShape {
    usage: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ErrorShape {
    error: Option<IgnoredAny>,
}

/// The `data` lines of an event, joined; `None` without any.
fn data_of(event: &Bytes) -> Option<Bytes> {
    let mut lines = event
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter_map(|line| line.strip_prefix(b"data:"))
        .map(|value| value.strip_prefix(b" ").unwrap_or(value));
    let first = lines.next()?;
    match lines.next() {
        None => Some(event.slice_ref(first)),
        Some(second) => {
            let mut joined = first.to_vec();
            for line in std::iter::once(second).chain(lines) {
                joined.push(b'\n');
                joined.extend_from_slice(line);
            }
            Some(Bytes::from(joined))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feed `text` cut after every `step` bytes; returns what is forwarded, how it ended, and the usage.
    fn relay(text: &str, step: usize, usage_wanted: bool) -> (String, Option<Frame>, Option<Usage>) {
        let mut relay = Relay::new(usage_wanted);
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(step) {
            relay.feed(piece);
            while let Some(frame) = relay.next_frame() {
                match frame {
                    Frame::Forward(bytes) => out.extend_from_slice(&bytes),
                    Frame::Done(bytes) => {
                        out.extend_from_slice(&bytes);
                        return (String::from_utf8(out).unwrap(), Some(Frame::Done(Bytes::new())), relay.usage());
                    }
                    other => return (String::from_utf8(out).unwrap(), Some(other), relay.usage()),
                }
            }
        }
        (String::from_utf8(out).unwrap(), None, relay.usage())
    }

    const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"grüße \\\"usage\\\" ✓\"}}],\"usage\":null}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    #[test]
    fn bytes_pass_unchanged_wherever_they_are_cut_and_usage_shows_only_if_asked_for() {
        let whole = format!("{TEXT}{TEXT}{USAGE}{DONE}");
        for step in 1..=whole.len() {
            let expected = Some(Usage { input_tokens: 3, output_tokens: 4 });
            assert_eq!(relay(&whole, step, true), (whole.clone(), Some(Frame::Done(Bytes::new())), expected), "{step}");
            assert_eq!(relay(&whole, step, false), (format!("{TEXT}{TEXT}{DONE}"), Some(Frame::Done(Bytes::new())), expected), "{step}");
        }
    }

    #[test]
    fn every_form_of_a_stream() {
        let usage = |input_tokens, output_tokens| Some(Usage { input_tokens, output_tokens });
        let done = || Some(Frame::Done(Bytes::new()));
        let long = format!("data: {}\n\n", "x".repeat(MAX_EVENT_BYTES));
        for (name, text, out, end, expected) in [
            ("CRLF", format!("{TEXT}{DONE}").replace('\n', "\r\n"), format!("{TEXT}{DONE}").replace('\n', "\r\n"), done(), None),
            ("no end", TEXT.to_owned(), TEXT.to_owned(), None, None),
            ("half an event", "data: {\"choi".to_owned(), String::new(), None, None),
            ("comment", format!(": secret words\n\n{DONE}"), format!(":\n\n{DONE}"), done(), None),
            (
                "usage with the last choice",
                format!("{}{DONE}", USAGE.replace("[]", "[{}]")),
                format!("{}{DONE}", USAGE.replace("[]", "[{}]")),
                done(),
                usage(3, 4),
            ),
            ("usage grows", format!("{USAGE}{}{DONE}", USAGE.replace(":4", ":9")), DONE.to_owned(), done(), usage(3, 9)),
            ("odd usage", format!("{USAGE}{}{DONE}", USAGE.replace(":4", ":-9")), DONE.to_owned(), done(), None),
            (
                "usage as a string",
                format!("{USAGE}{}{DONE}", USAGE.replace(":4", ":\"4\"")),
                format!("{}{DONE}", USAGE.replace(":4", ":\"4\"")),
                done(),
                None,
            ),
            (
                "error",
                "data: {\"error\":{\"message\":\"key sk-1 is bad\"}}\n\n".to_owned(),
                String::new(),
                Some(Frame::UpstreamError),
                None,
            ),
            ("text about an error", TEXT.replace("usage", "error"), TEXT.replace("usage", "error"), None, None),
            ("two data lines", "data: [DO\ndata: NE]\n\n".to_owned(), "data: [DO\ndata: NE]\n\n".to_owned(), None, None),
            ("event with a name", "event: x\ndata: {}\n\n".to_owned(), "event: x\ndata: {}\n\n".to_owned(), None, None),
            ("too large", long, String::new(), Some(Frame::TooLarge), None),
        ] {
            assert_eq!(relay(&text, 7000, false), (out, end, expected), "{name}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut relay = Relay::new(false);
        relay.feed(&vec![b'x'; MAX_EVENT_BYTES + 1]);
        assert_eq!(relay.next_frame(), Some(Frame::TooLarge));
    }
}
