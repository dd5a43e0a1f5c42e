//! Text of strangers on a terminal. What a run, its model or its repository says cannot move the cursor, change colours,
//! reorder what is read or hide: control, escape, bidirectional and invisible characters become visible.

use agentrun_crds::paths::is_invisible;

/// For a single-line place: also line ends and tabs are made visible.
pub fn line(text: &str) -> String {
    escaped(text, |_| false)
}

/// For a place of several lines: line ends and tabs stay. A carriage return before a line end goes silently.
pub fn block(text: &str) -> String {
    escaped(&text.replace("\r\n", "\n"), |c| matches!(c, '\n' | '\t'))
}

/// JSON, changed within its strings only: the same value, without a character that a terminal obeys or hides.
pub fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // C0 within strings is escaped already; what is between them is the writer's own.
        if harmful(c) && !matches!(c, '\n' | '\t' | '\r') {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// At most so many characters, with a sign if some are missing.
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn escaped(text: &str, kept: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if kept(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if harmful(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Controls (C0, DEL, C1), what is not seen, and variation selectors and fillers, which render as nothing.
fn harmful(c: char) -> bool {
    c.is_control()
        || is_invisible(c)
        || matches!(c, '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_controls_a_terminal_is_made_visible() {
        for (text, in_line, in_block) in [
            ("plain ü 日本", "plain ü 日本", "plain ü 日本"),
            ("a\nb\tc", "a\\nb\\tc", "a\nb\tc"),
            ("a\r\nb", "a\\r\\nb", "a\nb"),
            ("50%\rdone", "50%\\rdone", "50%\\rdone"),
            ("\u{1b}[31mred\u{1b}]0;title\u{7}", "\\u{1b}[31mred\\u{1b}]0;title\\u{7}", "\\u{1b}[31mred\\u{1b}]0;title\\u{7}"),
            ("\u{9b}31m\u{7f}\u{0}", "\\u{9b}31m\\u{7f}\\u{0}", "\\u{9b}31m\\u{7f}\\u{0}"),
            ("a\u{202e}b\u{2066}c", "a\\u{202e}b\\u{2066}c", "a\\u{202e}b\\u{2066}c"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{2028}\u{85}", "\\u{2028}\\u{85}", "\\u{2028}\\u{85}"),
            ("tag\u{e0041}\u{fe0f}\u{3164}", "tag\\u{e0041}\\u{fe0f}\\u{3164}", "tag\\u{e0041}\\u{fe0f}\\u{3164}"),
        ] {
            assert_eq!(line(text), in_line);
            assert_eq!(block(text), in_block);
        }
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(harmful));
            prop_assert!(!block(&text).chars().any(|c| harmful(c) && c != '\n' && c != '\t'));
        }

        #[test]
        fn json_stays_the_same_value(text in any::<String>()) {
            let value = serde_json::json!({ text.clone(): [text] });
            let shown = json(&value.to_string());
            prop_assert!(!shown.chars().any(harmful));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
        }
    }

    #[test]
    fn cutting_counts_characters() {
        for (text, most, expected) in [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("üüüü", 2, "ü…")] {
            assert_eq!(cut(text, most), expected);
        }
    }
}
