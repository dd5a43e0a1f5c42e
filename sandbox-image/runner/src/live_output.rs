//! A command's output: shown live in events, a few times a second and up to a bound, and kept with head and tail.

use agentrun_protocol::{event::EventType, executor::exec_output::Stream};
use serde_json::json;

use crate::{clip::HeadAndTail, events::Events, executor::Output};

/// One event holds at most about so much.
const EVENT_BYTES: usize = 8 * 1024;
/// One command shows at most so much live.
const LIVE_BYTES: usize = 128 * 1024;

/// Where one command's output goes.
pub struct LiveOutput {
    events: Events,
    kept: HeadAndTail,
    /// By stream: bytes that wait for the next event. The end may be a part of a character.
    waiting: [Vec<u8>; 2],
    shown: usize,
}

impl LiveOutput {
    /// Keep at most `max` bytes.
    pub fn new(events: &Events, max: usize) -> Self {
        LiveOutput { events: events.clone(), kept: HeadAndTail::new(max), waiting: Default::default(), shown: 0 }
    }

    /// The end: the text that was kept, and whether something is missing from it.
    pub fn finish(mut self, dropped: u64) -> (String, bool) {
        self.show(Stream::Stdout, true);
        self.show(Stream::Stderr, true);
        self.kept.text(dropped)
    }

    fn show(&mut self, stream: Stream, all: bool) {
        let waiting = &mut self.waiting[stream as usize];
        let end = if all { waiting.len() } else { whole_characters(waiting) };
        if end == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&waiting[..end]).into_owned();
        waiting.drain(..end);
        if self.shown >= LIVE_BYTES {
            return;
        }
        self.shown += text.len();
        let name = if stream == Stream::Stdout { "stdout" } else { "stderr" };
        self.events.emit(EventType::Output, json!({"stream": name, "text": text}));
        if self.shown >= LIVE_BYTES {
            self.events.note(format!("more than {LIVE_BYTES} bytes of output; the rest is not shown live"));
        }
    }
}

impl Output for LiveOutput {
    fn data(&mut self, stream: Stream, data: &[u8]) {
        self.kept.push(data);
        if self.shown >= LIVE_BYTES {
            return;
        }
        for part in data.chunks(EVENT_BYTES) {
            self.waiting[stream as usize].extend_from_slice(part);
            if self.waiting[stream as usize].len() >= EVENT_BYTES {
                self.show(stream, false);
            }
        }
    }

    fn tick(&mut self) {
        self.show(Stream::Stdout, false);
        self.show(Stream::Stderr, false);
    }
}

/// The length without a character that has only begun.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        // What is not UTF-8 at all is shown as it is.
        _ => {
            let begun = bytes.iter().rev().take(3).position(|byte| *byte >= 0xc0);
            match begun {
                Some(back) if std::str::from_utf8(&bytes[bytes.len() - back - 1..]).is_err_and(|e| e.error_len().is_none()) => {
                    bytes.len() - back - 1
                }
                _ => bytes.len(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_not_torn() {
        for (bytes, whole) in [
            (&b"ab"[..], 2),
            (b"", 0),
            ("é".as_bytes(), 2),
            (b"a\xc3", 1),
            (b"\xe2\x82", 0),
            (b"\xff\xfe", 2),
            (b"\xff a\xe2\x82", 3),
            (b"\xff\x82\x82", 3),
        ] {
            assert_eq!(whole_characters(bytes), whole, "{bytes:?}");
        }
    }
}
