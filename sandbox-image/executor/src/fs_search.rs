//! `fs.Search`: lines that contain a text, in regular text files. `.git`, binary and very large files are left out.

use std::{io::Read, ops::ControlFlow};

use agentrun_protocol::executor::{FsSearch, FsSearchDone, Match};

use crate::{
    failure::{Failure, INVALID, NOT_REGULAR},
    fs_edit::find,
    request::Request,
    walk::{Met, Skip, walk},
    workspace::Workspace,
};

const MAX_MATCHES: usize = 1000;
/// Paths and lines of an answer, so that it fits a frame whatever it holds.
const MAX_ANSWER_BYTES: usize = 512 * 1024;
const MAX_FILES: usize = 200_000;
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
const MAX_TEXT_BYTES: usize = 1024;
/// Bytes of a long line that are shown around a match.
const SHOWN_BYTES: usize = 240;
/// A NUL within so many bytes makes a file binary.
const SNIFFED_BYTES: usize = 8 * 1024;

/// Blocking. `path` is a directory, a file, or empty for all.
pub fn search(workspace: &Workspace, request: &Request, search: &FsSearch) -> Result<FsSearchDone, Failure> {
    if search.text.is_empty() || search.text.len() > MAX_TEXT_BYTES || search.text.contains(['\n', '\0']) {
        return Err(Failure::new(INVALID, format!("text: must be 1 to {MAX_TEXT_BYTES} bytes on one line")));
    }
    let limit = match search.max_matches as usize {
        0 => MAX_MATCHES,
        asked => asked.min(MAX_MATCHES),
    };
    let mut matches = Vec::new();
    let mut truncated = false;
    match workspace.directory(&search.path) {
        Err(failure) if failure.code == NOT_REGULAR => {
            let (file, _) = workspace.file(&search.path)?;
            truncated = in_file(&search.path, file, &search.text, limit, &mut matches);
        }
        Err(failure) => return Err(failure),
        Ok(root) => {
            let mut files = 0;
            let skip = |_: &str, name: &str, _| (name == ".git").then_some(Skip::Silently);
            walk(&root, &search.path, skip, |met| {
                request.check()?;
                files += 1;
                if let Met::File(path, file) = met {
                    truncated |= in_file(&path, file.0, &search.text, limit, &mut matches);
                }
                truncated |= files >= MAX_FILES;
                Ok(if truncated { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
    }
    matches.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(FsSearchDone { matches, truncated })
}

/// Adds the matching lines. True: there were more than may be.
fn in_file(path: &str, file: std::fs::File, text: &str, limit: usize, matches: &mut Vec<Match>) -> bool {
    let mut content = Vec::new();
    if file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content).is_err()
        || content.len() as u64 > MAX_FILE_BYTES
        || content[..content.len().min(SNIFFED_BYTES)].contains(&0)
    {
        return false;
    }
    for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let Some(at) = find(line, text.as_bytes()) else { continue };
        let text = around(line, at, text.len());
        if matches.len() >= limit || (matches.len() + 1) * (path.len() + text.len() + 16) > MAX_ANSWER_BYTES {
            return true;
        }
        matches.push(Match { path: path.to_owned(), line: u32::try_from(number + 1).unwrap_or(u32::MAX), text });
    }
    false
}

/// The line, or the part of it around the match.
fn around(line: &[u8], at: usize, length: usize) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= SHOWN_BYTES {
        return String::from_utf8_lossy(line).into_owned();
    }
    let spare = SHOWN_BYTES.saturating_sub(length) / 2;
    let (from, to) = (at.saturating_sub(spare), (at + length + spare).min(line.len()));
    let shown = String::from_utf8_lossy(&line[from.min(to)..to]).into_owned();
    format!("{}{shown}{}", if from > 0 { "…" } else { "" }, if to < line.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::request::Table;

    #[test]
    fn text_is_found_where_it_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/.git")).unwrap();
        std::fs::write(root.join("a/.git/config"), "needle").unwrap();
        std::fs::write(root.join("a/one"), "x\nthe needle\r\nneedle needle\n").unwrap();
        std::fs::write(root.join("binary"), b"\0needle").unwrap();
        std::fs::write(root.join("long"), format!("{}needle{}", "x".repeat(5000), "y".repeat(5000))).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("etc")).unwrap();
        let workspace = Workspace::open(root).unwrap();
        let request = Table::default().open(1, mpsc::channel(1).0).unwrap();
        let find = |path: &str, text: &str, max_matches| {
            search(&workspace, &request, &FsSearch { path: path.into(), text: text.into(), max_matches })
        };
        let all = find("", "needle", 0).unwrap();
        let seen: Vec<_> = all.matches.iter().map(|found| (found.path.as_str(), found.line)).collect();
        assert_eq!(seen, [("a/one", 2), ("a/one", 3), ("long", 1)]);
        assert_eq!(all.matches[0].text, "the needle");
        assert!(all.matches[2].text.len() < 300 && all.matches[2].text.contains("xneedley"));
        assert!(!all.truncated);
        assert_eq!(find("a/one", "needle", 1).map(|done| (done.matches.len(), done.truncated)), Ok((1, true)));
        for (path, text) in [("", ""), ("", "a\nb"), ("none", "x"), ("etc", "root"), ("etc/passwd", "root")] {
            assert!(find(path, text, 0).is_err(), "{path:?} {text:?}");
        }
    }
}
