//! Streams as they may come, cut anywhere.

use super::*;
use crate::model::sse::MAX_EVENT_BYTES;

/// Feed `text` cut after every `step` bytes; returns what is forwarded, how it ended, and the usage.
fn relay(text: &str, step: usize, usage_wanted: bool) -> (String, Option<Frame>, Option<Usage>) {
    let mut relay = Relay::new(Operation::Chat, usage_wanted);
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
        let expected = Some(Usage { input_tokens: 3, output_tokens: 4, ..Usage::default() });
        assert_eq!(relay(&whole, step, true), (whole.clone(), Some(Frame::Done(Bytes::new())), expected), "{step}");
        assert_eq!(relay(&whole, step, false), (format!("{TEXT}{TEXT}{DONE}"), Some(Frame::Done(Bytes::new())), expected), "{step}");
    }
}

#[test]
fn every_form_of_a_stream() {
    let usage = |input_tokens, output_tokens| Some(Usage { input_tokens, output_tokens, ..Usage::default() });
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
        ("error", "data: {\"error\":{\"message\":\"key sk-1 is bad\"}}\n\n".to_owned(), String::new(), Some(Frame::UpstreamError), None),
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
    let mut relay = Relay::new(Operation::Chat, false);
    relay.feed(&vec![b'x'; MAX_EVENT_BYTES + 1]);
    assert_eq!(relay.next_frame(), Some(Frame::TooLarge));
}
