//! Bytes to lines, in bounded memory: a line that is too long is dropped and counted.

/// Longest line. An agent may print a whole file in one.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// Takes bytes, gives whole lines without their end.
#[derive(Default)]
pub struct Lines {
    begun: Vec<u8>,
    /// The line that has begun is too long already.
    skipping: bool,
    pub dropped: u64,
}

impl Lines {
    /// The lines that these bytes end.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.append(&rest[..end]);
            self.end(&mut line);
            rest = &rest[end + 1..];
        }
        self.append(rest);
    }

    /// What is left at the end of the stream.
    pub fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.begun.is_empty() || self.skipping {
            self.end(&mut line);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.begun.len() + bytes.len() > MAX_LINE_BYTES {
            self.skipping = true;
            self.begun = Vec::new();
        } else if !self.skipping {
            self.begun.extend_from_slice(bytes);
        }
    }

    fn end(&mut self, line: &mut impl FnMut(&[u8])) {
        if std::mem::take(&mut self.skipping) {
            self.dropped += 1;
        } else {
            line(&self.begun);
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"one\n\ntwo two\nthree";
        for size in 1..text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            text.chunks(size).for_each(|chunk| lines.push(chunk, |line| seen.push(String::from_utf8_lossy(line).into_owned())));
            lines.finish(|line| seen.push(String::from_utf8_lossy(line).into_owned()));
            assert_eq!(seen, ["one", "", "two two", "three"], "{size}");
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut lines = Lines::default();
        for _ in 0..10 {
            lines.push(&vec![b'x'; MAX_LINE_BYTES / 2], |_| unreachable!("it is too long"));
            assert!(lines.begun.capacity() <= 2 * MAX_LINE_BYTES);
        }
        let mut seen = Vec::new();
        lines.push(b"\nshort\n", |line| seen.push(line.to_vec()));
        assert_eq!((seen, lines.dropped), (vec![b"short".to_vec()], 1));
    }
}
