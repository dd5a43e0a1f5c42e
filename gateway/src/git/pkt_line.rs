//! Git's framing: four hex digits of length, then the content; three lengths are marks.

use bytes::{Bytes, BytesMut};

/// Longest content of one line.
const MAX_LINE: usize = 65516;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Data(Bytes),
    /// `0000`: the end of a message.
    Flush,
    /// `0001`: the end of a section.
    Delimiter,
    /// `0002`: the end of an answer.
    End,
}

impl Line {
    /// The content as text, without a line feed at its end.
    pub fn text(&self) -> Option<&str> {
        let Line::Data(data) = self else { return None };
        std::str::from_utf8(data).ok().map(|text| text.strip_suffix('\n').unwrap_or(text))
    }
}

/// Not the framing of git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Takes bytes as they come and gives lines.
#[derive(Default)]
pub(super) struct Lines(BytesMut);

impl Lines {
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole line. `None`: more bytes are needed.
    pub fn next(&mut self) -> Result<Option<Line>, Malformed> {
        let Some(digits) = self.0.get(..4) else { return Ok(None) };
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Malformed);
        }
        let length = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text, 16).ok()).ok_or(Malformed)?;
        let mark = match length {
            0 => Line::Flush,
            1 => Line::Delimiter,
            2 => Line::End,
            3 => return Err(Malformed),
            length if length - 4 > MAX_LINE => return Err(Malformed),
            length if self.0.len() < length => return Ok(None),
            length => return Ok(Some(Line::Data(self.0.split_to(length).split_off(4).freeze()))),
        };
        let _ = self.0.split_to(4);
        Ok(Some(mark))
    }

    /// Whether nothing of a further line has come.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Add a line with this text.
pub(super) fn put(into: &mut Vec<u8>, text: &str) {
    into.extend_from_slice(format!("{:04x}{text}\n", text.len() + 5).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_the_bytes_arrive() {
        let mut sent = Vec::new();
        put(&mut sent, "version 2");
        sent.extend_from_slice(b"000100000006a\n0004");
        for step in [1, 3, 7, sent.len()] {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for piece in sent.chunks(step) {
                lines.push(piece);
                while let Some(line) = lines.next().expect("well-formed") {
                    got.push(line);
                }
            }
            let data = |text: &'static [u8]| Line::Data(Bytes::from_static(text));
            assert_eq!(got, [data(b"version 2\n"), Line::Delimiter, Line::Flush, data(b"a\n"), data(b"")], "{step}");
            assert!(lines.is_empty());
        }
        for bad in ["0003", "zzzz", "-001", "ffff", "<htm"] {
            let mut lines = Lines::default();
            lines.push(bad.as_bytes());
            assert_eq!(lines.next(), Err(Malformed), "{bad}");
        }
    }
}
