//! Text made short enough and safe to print: the head and the tail stay, and what was left out is said.

use std::borrow::Cow;

/// `text` within `max` bytes and a marker, cut in the middle.
pub fn clip(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let mut head = max / 5 * 3;
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    let mut tail = text.len() - (max - head);
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    Cow::Owned(format!("{}{}{}", &text[..head], marker(tail - head), &text[tail..]))
}

fn marker(bytes: usize) -> String {
    format!("\n[… {bytes} bytes left out …]\n")
}

/// The first `max` characters.
pub fn first_chars(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

/// For a terminal: control characters, and those that change how text looks without being seen, become `\u{…}`.
pub fn printable(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        let hidden = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
        if (c.is_control() && c != '\t') || hidden { result.extend(c.escape_unicode()) } else { result.push(c) }
    }
    result
}

/// The beginning and the end of a stream of bytes of any length.
pub struct HeadAndTail {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    head_max: usize,
    tail_max: usize,
    total: usize,
}

impl HeadAndTail {
    /// Keep at most `max` bytes.
    pub fn new(max: usize) -> Self {
        let head_max = max / 5 * 3;
        HeadAndTail { head: Vec::new(), tail: Default::default(), head_max, tail_max: max - head_max, total: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len();
        let (for_head, rest) = bytes.split_at(bytes.len().min(self.head_max - self.head.len()));
        self.head.extend_from_slice(for_head);
        self.tail.extend(&rest[rest.len().saturating_sub(self.tail_max)..]);
        let excess = self.tail.len().saturating_sub(self.tail_max);
        self.tail.drain(..excess);
    }

    /// As text, with a marker if something is missing; `dropped` bytes were lost before they came here.
    pub fn text(&self, dropped: u64) -> (String, bool) {
        let (one, two) = self.tail.as_slices();
        let missing = self.total - self.head.len() - self.tail.len();
        let mut bytes = self.head.clone();
        if missing > 0 {
            bytes.extend_from_slice(marker(missing).as_bytes());
        }
        bytes.extend_from_slice(one);
        bytes.extend_from_slice(two);
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if dropped > 0 {
            text.push_str(&format!("\n[… {dropped} further bytes were dropped …]\n"));
        }
        (text, missing > 0 || dropped > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_stay() {
        assert_eq!(clip("short", 5), "short");
        let text = "é".repeat(1000);
        for max in [0, 1, 2, 3, 100, 1999] {
            let clipped = clip(&text, max);
            assert!(clipped.len() <= max + 40 && clipped.contains("bytes left out"), "{max}: {clipped}");
        }
        let lines: String = (0..1000).map(|n| format!("{n}\n")).collect();
        let clipped = clip(&lines, 100);
        assert!(clipped.starts_with("0\n1\n") && clipped.ends_with("998\n999\n"));
    }

    #[test]
    fn a_stream_keeps_its_ends_however_it_is_cut() {
        let all: Vec<u8> = (0..10_000u32).map(|n| b'a' + (n % 26) as u8).collect();
        for size in [1, 7, 1000, 10_000] {
            let mut kept = HeadAndTail::new(100);
            all.chunks(size).for_each(|chunk| kept.push(chunk));
            let (text, truncated) = kept.text(0);
            assert!(truncated && text.as_bytes().starts_with(&all[..60]) && text.as_bytes().ends_with(&all[9_960..]), "{size}");
            assert!(text.contains("9900 bytes left out"));
        }
        let mut kept = HeadAndTail::new(100);
        kept.push(&all[..100]);
        assert_eq!(kept.text(0), (String::from_utf8(all[..100].to_vec()).unwrap(), false));
        assert!(kept.text(5).1);
    }

    #[test]
    fn nothing_reaches_a_terminal_unescaped() {
        assert_eq!(printable("a\tb\u{1b}[31m\u{202e}\r\né"), "a\tb\\u{1b}[31m\\u{202e}\\u{d}\\u{a}é");
        for c in (0..=0x10ffff).filter_map(char::from_u32) {
            let shown = printable(&c.to_string());
            assert!(!shown.is_empty() && !shown.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\n', '\r']), "{shown:?}");
        }
    }
}
