//! What a streamed answer means, event by event and byte-exact: finds usage and the end, hides what was not asked for and what
//! must not be seen. Pure; bytes go in as they come off the wire.

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::envelope;
use super::operation::Operation;
use super::sse::{Events, TooLarge, data_of};
use super::usage::{Meter, Usage, UsageMetadata, WireUsage};
use crate::error::ApiError;

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
    events: Events,
    operation: Operation,
    usage_wanted: bool,
    meter: Meter,
    /// Gemini has said why it ends.
    ended: bool,
    /// Gemini's last chunk so far, since only the end of the body tells that no other follows.
    held: Option<Bytes>,
    /// Elements of a JSON array that were sent.
    elements: usize,
}

impl Relay {
    pub fn new(operation: Operation, usage_wanted: bool) -> Self {
        Relay { events: Events::default(), operation, usage_wanted, meter: Meter::default(), ended: false, held: None, elements: 0 }
    }

    /// What the provider reported so far; nothing if a report was odd.
    pub fn usage(&self) -> Option<Usage> {
        self.meter.usage(self.operation.dialect())
    }

    /// Take bytes off the wire.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.events.feed(bytes);
    }

    /// The next whole event, if there is one.
    pub fn next_frame(&mut self) -> Option<Frame> {
        loop {
            let event = match self.events.next() {
                Ok(event) => event?,
                Err(TooLarge) => return Some(Frame::TooLarge),
            };
            let Some(data) = data_of(&event) else {
                if self.operation == Operation::GenerateArray {
                    continue;
                }
                // Comments and the like keep the connection alive; their words are the provider's own.
                return Some(Frame::Forward(Bytes::from_static(b":\n\n")));
            };
            let frame = match self.operation {
                Operation::Chat => self.chat(event, &data),
                Operation::Messages => self.messages(event, &data),
                Operation::Responses => self.responses(event, &data),
                Operation::GenerateEvents | Operation::GenerateArray => self.gemini(event, &data),
                // None of these is streamed.
                Operation::Embeddings | Operation::CountTokens | Operation::CountContents | Operation::Generate => {
                    Some(Frame::UpstreamError)
                }
            };
            if frame.is_some() {
                return frame;
            }
        }
    }

    fn chat(&mut self, event: Bytes, data: &[u8]) -> Option<Frame> {
        #[derive(Deserialize)]
        struct Chunk {
            usage: Option<WireUsage>,
            #[serde(default)]
            choices: Vec<IgnoredAny>,
        }
        if data.trim_ascii() == b"[DONE]" {
            return Some(Frame::Done(event));
        }
        // A member name can also be written with escapes; nobody does, and then usage is unknown and charged in full.
        if mentions(data, "\"error\"") && is_error(data) {
            return Some(Frame::UpstreamError);
        }
        if mentions(data, "\"usage\"") {
            match serde_json::from_slice::<Chunk>(data) {
                Ok(Chunk { usage: None, .. }) => {}
                Ok(Chunk { usage, choices }) => {
                    self.meter.report(usage);
                    if choices.is_empty() && !self.usage_wanted {
                        return None;
                    }
                }
                Err(_) => self.odd(data),
            }
        }
        Some(Frame::Forward(event))
    }

    fn messages(&mut self, event: Bytes, data: &[u8]) -> Option<Frame> {
        #[derive(Deserialize)]
        struct Event {
            r#type: String,
            message: Option<Message>,
            usage: Option<WireUsage>,
        }
        #[derive(Deserialize)]
        struct Message {
            usage: Option<WireUsage>,
        }
        // Most events are pieces of text.
        if !mentions(data, "\"usage\"") && !mentions(data, "\"message_stop\"") && !mentions(data, "\"error\"") {
            return Some(Frame::Forward(event));
        }
        match serde_json::from_slice::<Event>(data) {
            Ok(Event { r#type, .. }) if r#type == "error" => return Some(Frame::UpstreamError),
            Ok(Event { r#type, .. }) if r#type == "message_stop" => return Some(Frame::Done(event)),
            Ok(Event { usage, message, .. }) => {
                let begun = message.and_then(|message| message.usage).map(WireUsage::at_the_beginning);
                for usage in [usage, begun].into_iter().flatten() {
                    self.meter.report(Some(usage));
                }
            }
            Err(_) if is_error(data) => return Some(Frame::UpstreamError),
            Err(_) => self.odd(data),
        }
        Some(Frame::Forward(event))
    }

    fn responses(&mut self, event: Bytes, data: &[u8]) -> Option<Frame> {
        #[derive(Deserialize)]
        struct Event {
            response: Option<Response>,
        }
        #[derive(Deserialize)]
        struct Response {
            usage: Option<WireUsage>,
        }
        #[derive(Deserialize)]
        struct Kind {
            r#type: String,
        }
        // Most events are pieces of text.
        let telling = ["\"response.completed\"", "\"response.incomplete\"", "\"response.failed\"", "\"error\"", "\"response.cancelled\""];
        if !telling.iter().any(|word| mentions(data, word)) {
            return Some(Frame::Forward(event));
        }
        let Ok(Kind { r#type }) = serde_json::from_slice::<Kind>(data) else {
            return Some(if is_error(data) { Frame::UpstreamError } else { Frame::Forward(event) });
        };
        match r#type.as_str() {
            "response.completed" | "response.incomplete" => {
                match serde_json::from_slice::<Event>(data) {
                    Ok(Event { response, .. }) => {
                        if let Some(usage) = response.and_then(|response| response.usage) {
                            self.meter.report(Some(usage));
                        }
                    }
                    Err(_) => self.meter.report(None),
                }
                Some(Frame::Done(event))
            }
            "error" | "response.failed" | "response.cancelled" => Some(Frame::UpstreamError),
            _ => Some(Frame::Forward(event)),
        }
    }

    fn gemini(&mut self, event: Bytes, data: &[u8]) -> Option<Frame> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Report {
            usage_metadata: Option<UsageMetadata>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct End {
            #[serde(default)]
            candidates: Vec<Candidate>,
            prompt_feedback: Option<Feedback>,
            error: Option<IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Candidate {
            finish_reason: Option<IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Feedback {
            block_reason: Option<IgnoredAny>,
        }
        match serde_json::from_slice::<End>(data) {
            Ok(End { error: Some(_), .. }) => return Some(Frame::UpstreamError),
            Ok(End { candidates, prompt_feedback, .. }) => {
                self.ended |= candidates.iter().any(|candidate| candidate.finish_reason.is_some())
                    || prompt_feedback.is_some_and(|feedback| feedback.block_reason.is_some());
            }
            Err(_) if is_error(data) => return Some(Frame::UpstreamError),
            Err(_) => {}
        }
        if mentions(data, "\"usageMetadata\"") {
            match serde_json::from_slice::<Report>(data) {
                Ok(Report { usage_metadata: None }) => {}
                // Each chunk reports the whole so far.
                Ok(Report { usage_metadata: Some(usage) }) => self.meter.report_anew(Some(usage.into())),
                Err(_) => self.meter.report(None),
            }
        }
        let out = match self.operation {
            Operation::GenerateArray => {
                self.elements += 1;
                let before: &[u8] = if self.elements == 1 { b"[" } else { b",\r\n" };
                Bytes::from([before, data].concat())
            }
            _ => event,
        };
        if self.ended { self.held.replace(out).map(Frame::Forward) } else { Some(Frame::Forward(out)) }
    }

    /// Whether nothing but the end of the body is still to come.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// What is still to be sent when the body ends here; `None` if it may not end here.
    pub fn end(&mut self) -> Option<Bytes> {
        if !self.ended || !self.events.is_between() {
            return None;
        }
        let held = self.held.take().unwrap_or_default();
        Some(if self.operation == Operation::GenerateArray { Bytes::from([&held[..], b"]\r\n"].concat()) } else { held })
    }

    /// An error as the last thing that the client sees.
    pub fn last_words(&self, error: &ApiError) -> Bytes {
        envelope::event(self.operation, error, self.elements == 0)
    }

    /// An event that mentions usage but cannot be read: unless it is text that talks about usage, the report counts as unknown.
    fn odd(&mut self, data: &[u8]) {
        #[derive(Deserialize)]
        struct Shape {
            usage: Option<IgnoredAny>,
            message: Option<IgnoredAny>,
        }
        if serde_json::from_slice::<Shape>(data).map_or(true, |shape| shape.usage.is_some() || shape.message.is_some()) {
            self.meter.report(None);
        }
    }
}

fn mentions(data: &[u8], word: &str) -> bool {
    memmem::find(data, word.as_bytes()).is_some()
}

fn is_error(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Shape {
        error: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Shape>(data).is_ok_and(|shape| shape.error.is_some())
}

#[cfg(test)]
mod tests;
