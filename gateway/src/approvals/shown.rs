//! What a decider sees, made from the very bytes that will be performed: one line for lists, and all of it line by line.
//! Characters that cannot be seen, or change how others look, are written out. Pure.

use std::fmt::Write;

use agentrun_crds::paths::is_invisible;
use agentrun_protocol::approval::Action;

use crate::result::hunks::{self, Effort};

/// Longest summary, in characters.
const MAX_SUMMARY: usize = 256;
/// Longest argument list in a summary that is looked at, in bytes.
const SUMMARY_BYTES: usize = 4 * MAX_SUMMARY;
/// Of a difference between two texts: products of line counts.
const DIFF_EFFORT: u64 = 1_000_000;

/// A text of the action as far as it was loaded.
pub(super) struct Loaded {
    pub name: String,
    pub content: Vec<u8>,
    /// Nothing follows `content`.
    pub whole: bool,
}

/// One line: the command as a shell would take it, or the tool and what it acts on.
pub(super) fn summary(action: &Action) -> String {
    let mut line = if action.argv.is_empty() {
        let bytes: i64 = action.texts.iter().map(|text| text.bytes).sum();
        let texts = if action.texts.is_empty() { String::new() } else { format!(" ({bytes} bytes)") };
        format!("{} {}{texts}", action.tool, action.path.as_deref().unwrap_or_default())
    } else {
        let mut line = shell_line(&action.argv, SUMMARY_BYTES);
        if !action.cwd.is_empty() {
            let _ = write!(line, " (in {})", action.cwd);
        }
        line
    };
    line = written_out(&line, false);
    if line.chars().nth(MAX_SUMMARY).is_some() {
        line = line.chars().take(MAX_SUMMARY - 1).chain(['…']).collect();
    }
    line
}

/// All of it, at most about `most` bytes; true if something is missing.
pub(super) fn shown(action: &Action, texts: &[Loaded], most: usize) -> (String, bool) {
    let mut out = head(action);
    for file in &action.files {
        let state = file.digest.as_deref().unwrap_or("does not exist");
        let _ = writeln!(out, "now: {} {state}", written_out(&file.path, false));
    }
    let mut missing = texts.len() < action.texts.len() || texts.iter().any(|text| !text.whole);
    match texts {
        [old, new] if old.whole && new.whole && old.content.len() + new.content.len() <= most => difference(&mut out, old, new),
        texts => texts.iter().for_each(|text| whole(&mut out, text)),
    }
    if out.len() > most {
        let mut end = most;
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        missing = true;
    }
    (out, missing)
}

/// What will be done, without what it rests on.
pub(super) fn head(action: &Action) -> String {
    let mut out = String::new();
    if action.argv.is_empty() {
        let _ = writeln!(out, "{} {}", action.tool, written_out(action.path.as_deref().unwrap_or_default(), false));
    } else {
        let _ = writeln!(out, "$ {}", written_out(&shell_line(&action.argv, usize::MAX), false));
        // Where quotes could mislead, each argument by itself.
        if !action.argv.iter().all(|argument| is_plain(argument)) {
            for (index, argument) in action.argv.iter().enumerate() {
                let _ = writeln!(out, "argv[{index}]: {}", written_out(&quoted(argument), false));
            }
        }
        let cwd = if action.cwd.is_empty() { "the workspace" } else { &action.cwd };
        let _ = writeln!(out, "in: {}", written_out(cwd, false));
    }
    out
}

fn whole(out: &mut String, text: &Loaded) {
    let _ = writeln!(out, "{}:", text.name);
    let content = readable(&text.content);
    for line in content.split_inclusive('\n') {
        let _ = writeln!(out, "+{}", written_out(line.strip_suffix('\n').unwrap_or(line), true));
    }
    if text.whole && !content.is_empty() && !content.ends_with('\n') {
        out.push_str("\\ No newline at end of text\n");
    }
}

fn difference(out: &mut String, old: &Loaded, new: &Loaded) {
    let _ = write!(out, "--- {}\n+++ {}\n", old.name, new.name);
    let (old, new) = (readable(&old.content), readable(&new.content));
    if old == new {
        out.push_str("(both texts are the same)\n");
        return;
    }
    let mut hunks = Vec::new();
    hunks::write(&mut hunks, &old, &new, &mut Effort::of(DIFF_EFFORT));
    for line in String::from_utf8_lossy(&hunks).split_terminator('\n') {
        out.push_str(&written_out(line, true));
        out.push('\n');
    }
}

/// UTF-8, and what is none as `\xNN`.
fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// A shell takes it for one word, as it stands.
fn is_plain(argument: &str) -> bool {
    !argument.is_empty() && argument.bytes().all(|b| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&b))
}

/// The arguments as one line for a POSIX shell; no more than about `most` bytes are looked at.
fn shell_line(argv: &[String], most: usize) -> String {
    let mut line = String::new();
    for argument in argv {
        if !line.is_empty() {
            line.push(' ');
        }
        if is_plain(argument) {
            line.push_str(argument);
        } else {
            line.push('\'');
            line.push_str(&argument.replace('\'', "'\\''"));
            line.push('\'');
        }
        if line.len() > most {
            break;
        }
    }
    line
}

/// In double quotes, so that the ends of an argument are seen.
fn quoted(argument: &str) -> String {
    format!("\"{}\"", argument.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Characters that are not seen as themselves become `\u{…}`; what looks like that already gets one more backslash. A tab
/// stays where it may.
fn written_out(text: &str, tab: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if c == '\\' && text[at..].starts_with("\\u{") {
            out.push_str("\\\\");
        } else if !(c == '\t' && tab) && (c.is_control() || is_invisible(c) || is_blank(c)) {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Fillers, joiners and variation selectors: nothing, or a space, on most screens.
fn is_blank(c: char) -> bool {
    matches!(c, '\u{a0}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2000}'..='\u{200a}'
        | '\u{2800}' | '\u{3000}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
}

#[cfg(test)]
mod tests {
    use agentrun_protocol::approval::{ActionFile, ActionText};

    use super::*;

    fn command(argv: &[&str]) -> Action {
        let argv = argv.iter().map(|argument| (*argument).to_owned()).collect();
        Action { tool: "run_command".into(), argv, cwd: String::new(), path: None, texts: Vec::new(), files: Vec::new() }
    }

    fn file(tool: &str, texts: &[(&str, &str)]) -> (Action, Vec<Loaded>) {
        let text = |(name, content): &(&str, &str)| ActionText {
            name: (*name).into(),
            digest: String::new(),
            bytes: content.len() as i64,
            inline: None,
        };
        let loaded = |(name, content): &(&str, &str)| Loaded { name: (*name).into(), content: content.as_bytes().into(), whole: true };
        let files = vec![ActionFile { path: "src/a.py".into(), digest: None }];
        let action =
            Action { tool: tool.into(), path: Some("src/a.py".into()), texts: texts.iter().map(text).collect(), files, ..command(&[]) };
        (action, texts.iter().map(loaded).collect())
    }

    #[test]
    fn a_summary_is_one_visible_line() {
        let long = "x".repeat(10_000);
        for (argv, expected) in [
            (&["ls", "-l", "a/b.c"][..], "ls -l a/b.c"),
            (&["sh", "-c", "echo 'a' > b"], r"sh -c 'echo '\''a'\'' > b'"),
            (&["echo", "", "$HOME"], "echo '' '$HOME'"),
            (&["echo", "\u{202e}txt.exe", "a\nb\t\u{1b}[31m"], r"echo '\u{202e}txt.exe' 'a\u{a}b\u{9}\u{1b}[31m'"),
            (&["echo", r"\u{202e}"], r"echo '\\u{202e}'"),
            (&["echo", "a\u{a0}b\u{200b}"], r"echo 'a\u{a0}b\u{200b}'"),
        ] {
            assert_eq!(summary(&command(argv)), expected);
        }
        let summary_of_long = summary(&command(&["echo", &long]));
        assert_eq!((summary_of_long.chars().count(), summary_of_long.chars().last()), (256, Some('…')));
        assert_eq!(summary(&Action { cwd: "src".into(), ..command(&["ls"]) }), "ls (in src)");
        assert_eq!(summary(&file("write_file", &[("content", "four")]).0), "write_file src/a.py (4 bytes)");
        for c in (0..=0x10ffff).filter_map(char::from_u32) {
            let line = summary(&command(&["echo", &c.to_string()]));
            assert!(!line.chars().any(|c| c.is_control() || is_invisible(c)), "{line:?}");
        }
    }

    #[test]
    fn all_of_a_command_is_shown() {
        let mut action = command(&["sh", "-c", "a\\\"b\u{200b}"]);
        action.cwd = "src".into();
        action.files = vec![ActionFile { path: "src/x".into(), digest: Some("sha256:0".into()) }];
        let expected =
            "$ sh -c 'a\\\"b\\u{200b}'\nargv[0]: \"sh\"\nargv[1]: \"-c\"\nargv[2]: \"a\\\\\\\"b\\u{200b}\"\nin: src\nnow: src/x sha256:0\n";
        assert_eq!(shown(&action, &[], 4096), (expected.into(), false));
        let (cut, missing) = shown(&action, &[], 10);
        assert_eq!((cut.len(), missing), (10, true));
    }

    #[test]
    fn texts_are_shown_line_by_line_and_two_as_a_difference() {
        let (action, texts) = file("write_file", &[("content", "a\r\nb\tc")]);
        let expected = "write_file src/a.py\nnow: src/a.py does not exist\ncontent:\n+a\\u{d}\n+b\tc\n\\ No newline at end of text\n";
        assert_eq!(shown(&action, &texts, 4096), (expected.into(), false));
        let (action, texts) = file("edit_file", &[("old_text", "a\nb\n"), ("new_text", "a\nc\u{202e}\n")]);
        let expected =
            "edit_file src/a.py\nnow: src/a.py does not exist\n--- old_text\n+++ new_text\n@@ -1,2 +1,2 @@\n a\n-b\n+c\\u{202e}\n";
        assert_eq!(shown(&action, &texts, 4096), (expected.into(), false));
        assert!(shown(&action, &[], 4096).1, "a text that is not stored is missing");
        let part = Loaded { name: "content".into(), content: b"a\xff".into(), whole: false };
        let (text, missing) = shown(&file("write_file", &[("content", "")]).0, &[part], 4096);
        assert!(missing && text.ends_with("content:\n+a\\xff\n"), "{text}");
    }

    #[test]
    fn a_hostile_difference_takes_bounded_time() {
        let many: String = (0..200_000).map(|n| format!("{n}\n")).collect();
        let (action, texts) = file("edit_file", &[("old_text", &many), ("new_text", &many.replace('1', "2"))]);
        let begun = std::time::Instant::now();
        let (text, missing) = shown(&action, &texts, 4 << 20);
        assert!(!missing && text.len() > many.len());
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    }
}
