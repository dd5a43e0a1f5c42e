//! Server-sent events, cut out of the bytes as they come off the wire, wherever those were cut. Pure.

use bytes::{Bytes, BytesMut};

/// Largest single event.
pub const MAX_EVENT_BYTES: usize = 2 << 20;

/// The events of one stream.
#[derive(Default)]
pub struct Events {
    buffer: BytesMut,
    /// Bytes of `buffer` known to hold no end of an event.
    searched: usize,
}

/// An event is larger than any may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl Events {
    /// Take bytes off the wire.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event with the blank line behind it, if there is one.
    pub fn next(&mut self) -> Result<Option<Bytes>, TooLarge> {
        match self.event_end() {
            Some(end) if end > MAX_EVENT_BYTES => Err(TooLarge),
            Some(end) => {
                self.searched = 0;
                Ok(Some(self.buffer.split_to(end).freeze()))
            }
            None if self.buffer.len() > MAX_EVENT_BYTES => Err(TooLarge),
            None => Ok(None),
        }
    }

    /// Whether no event has begun that has not ended.
    pub fn is_between(&self) -> bool {
        self.buffer.trim_ascii().is_empty()
    }

    /// The offset behind the blank line that ends the first event.
    fn event_end(&mut self) -> Option<usize> {
        let bytes = &self.buffer[..];
        let mut at = self.searched;
        while let Some(step) = memchr::memchr(b'\n', &bytes[at..]) {
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
}

/// What a stream may begin with; it belongs to no event.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The `data` lines of an event, joined; `None` without any.
pub fn data_of(event: &Bytes) -> Option<Bytes> {
    let mut lines = event
        .strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(event)
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

    #[test]
    fn a_byte_order_mark_hides_no_data() {
        let mut events = Events::default();
        events.feed(b"\xef\xbb\xbfdata: {\"a\":1}\n\ndata: {}\n\n");
        let first = events.next().unwrap().unwrap();
        assert_eq!(data_of(&first).unwrap(), "{\"a\":1}");
        assert_eq!(first.len(), 18, "the bytes pass as they came");
        assert_eq!(data_of(&events.next().unwrap().unwrap()).unwrap(), "{}");
    }
}
