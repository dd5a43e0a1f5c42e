//! `fs.Edit`: replaces a text that must occur exactly once. When it does not, the answer says what would help.

use std::io::Read;

use agentrun_protocol::executor::{FsEdit, FsEditDone};
use sha2::{Digest, Sha256};

use crate::{
    failure::{Failure, INVALID, NO_MATCH, NOT_UNIQUE, TOO_LARGE},
    fs_read::digest_text,
    fs_write::Replacement,
    workspace::Workspace,
};

/// Largest file that can be edited, before and after.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// So many places are named when a text is not unique.
const PLACES_SHOWN: usize = 5;

/// Blocking.
pub fn edit(workspace: &Workspace, edit: &FsEdit) -> Result<FsEditDone, Failure> {
    let (file, _) = workspace.file(&edit.path)?;
    let mut content = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut content).map_err(|error| Failure::io(&edit.path, &error))?;
    let content = replaced(&edit.path, content, &edit.old_text, &edit.new_text)?;
    let mut replacement = Replacement::begin(workspace, &edit.path, 0, false)?;
    replacement.append(&content)?;
    replacement.commit()?;
    Ok(FsEditDone { sha256: digest_text(Sha256::new_with_prefix(&content)) })
}

fn replaced(path: &str, content: Vec<u8>, old: &str, new: &str) -> Result<Vec<u8>, Failure> {
    if old.is_empty() {
        return Err(Failure::new(INVALID, "old_text: is empty; give the text to replace"));
    }
    if old == new {
        return Err(Failure::new(INVALID, "new_text: is the same as old_text"));
    }
    if content.len() > MAX_BYTES || content.len() + new.len() > MAX_BYTES {
        return Err(Failure::new(TOO_LARGE, format!("{path}: is or would be over {MAX_BYTES} bytes; write it whole instead")));
    }
    let places = occurrences(&content, old.as_bytes());
    match places[..] {
        [] => Err(Failure::new(NO_MATCH, format!("{path}: old_text does not occur{}", hint(&content, old)))),
        [at] => {
            let mut result = Vec::with_capacity(content.len() + new.len());
            result.extend_from_slice(&content[..at]);
            result.extend_from_slice(new.as_bytes());
            result.extend_from_slice(&content[at + old.len()..]);
            Ok(result)
        }
        _ => {
            let lines: Vec<String> = places.iter().take(PLACES_SHOWN).map(|at| line_of(&content, *at).to_string()).collect();
            let more = if places.len() > PLACES_SHOWN { ", …" } else { "" };
            Err(Failure::new(
                NOT_UNIQUE,
                format!(
                    "{path}: old_text occurs {} times (lines {}{more}); add lines around it until it is unique",
                    places.len(),
                    lines.join(", ")
                ),
            ))
        }
    }
}

/// Where `needle` begins; overlapping places count, since any of them could be meant.
fn occurrences(content: &[u8], needle: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut from = 0;
    while let Some(at) = find(&content[from..], needle) {
        places.push(from + at);
        from += at + 1;
        if places.len() > 1000 {
            break;
        }
    }
    places
}

/// First place of `needle`. The first byte is searched for quickly; comparing all windows would be slow on long runs.
pub fn find(content: &[u8], needle: &[u8]) -> Option<usize> {
    let (first, last_start) = (*needle.first()?, content.len().checked_sub(needle.len())?);
    let mut from = 0;
    while from <= last_start {
        let at = from + content[from..=last_start].iter().position(|byte| *byte == first)?;
        if &content[at..at + needle.len()] == needle {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn line_of(content: &[u8], at: usize) -> usize {
    1 + content[..at].iter().filter(|byte| **byte == b'\n').count()
}

/// What is likely wrong with a text that was not found.
fn hint(content: &[u8], old: &str) -> String {
    if content.contains(&b'\r') && !old.contains('\r') {
        return "; the file's lines end with CR LF".into();
    }
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = String::from_utf8_lossy(content);
    let wanted: Vec<String> = old.trim().lines().map(squeeze).collect();
    let lines: Vec<String> = text.lines().map(squeeze).collect();
    let at = |wanted: &[String]| lines.windows(wanted.len().max(1)).position(|window| window == wanted);
    if let Some(line) = at(&wanted) {
        return format!("; with other white space it does, at line {}", line + 1);
    }
    match wanted.first().filter(|first| !first.is_empty()).and_then(|first| lines.iter().position(|line| line == first)) {
        Some(line) => format!("; its first line does, at line {}, but what follows differs", line + 1),
        None => "; read the file again".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_place_is_replaced() {
        type Case = (&'static str, &'static str, &'static str, Result<&'static str, (&'static str, &'static str)>);
        let cases: &[Case] = &[
            ("a b c", "b", "x", Ok("a x c")),
            ("abc", "abc", "", Ok("")),
            ("a\nb\n", "b\n", "b\nc\n", Ok("a\nb\nc\n")),
            ("aaa", "aa", "b", Err((NOT_UNIQUE, "2 times (lines 1, 1)"))),
            ("x\nx\nx\nx\nx\nx\n", "x", "y", Err((NOT_UNIQUE, "6 times (lines 1, 2, 3, 4, 5, …)"))),
            ("a", "b", "c", Err((NO_MATCH, "read the file again"))),
            ("  if a:\n\tb()\n", "if a:\n  b()", "c", Err((NO_MATCH, "with other white space it does, at line 1"))),
            ("f(x)\nreturn 1\n", "f(x)\nreturn 2", "c", Err((NO_MATCH, "its first line does, at line 1"))),
            ("a\r\nb\r\n", "a\nb", "c", Err((NO_MATCH, "CR LF"))),
            ("", "a", "b", Err((NO_MATCH, "does not occur"))),
            ("a", "", "b", Err((INVALID, "old_text: is empty"))),
            ("a", "a", "a", Err((INVALID, "new_text: is the same"))),
        ];
        for (content, old, new, expected) in cases {
            let actual = replaced("f", content.as_bytes().to_vec(), old, new);
            match expected {
                Ok(text) => assert_eq!(actual.unwrap(), text.as_bytes(), "{content:?}"),
                Err((code, part)) => {
                    let failure = actual.unwrap_err();
                    assert!(failure.code == *code && failure.message.contains(part), "{content:?}: {failure:?}");
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_not_text_survive_and_large_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"\xff\x00one\xfe").unwrap();
        let workspace = Workspace::open(dir.path()).unwrap();
        let request = FsEdit { path: "f".into(), old_text: "one".into(), new_text: "two".into() };
        edit(&workspace, &request).unwrap();
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"\xff\x00two\xfe");
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        file.set_len(MAX_BYTES as u64 + 1).unwrap();
        assert_eq!(edit(&workspace, &request).unwrap_err().code, TOO_LARGE);
    }
}
