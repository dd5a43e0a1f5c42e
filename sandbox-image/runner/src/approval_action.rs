//! A tool call as the action that people decide on: everything that will be performed, and the files of the workspace that it
//! rests on, by their content as it is now.

use std::collections::BTreeSet;

use agentrun_crds::paths::RelativePath;
use agentrun_protocol::{
    approval::{Action, ActionFile, ActionText, MAX_INLINE_BYTES, MAX_PARTS},
    result::MAX_BLOB_BYTES,
};

use crate::{
    executor::{Executor, ExecutorError},
    staging::digest,
    tool_arguments::{self, relative},
};

/// Where the workspace is mounted in the executor's container.
const WORKSPACE: &str = "/workspace/";
/// Arguments of a command that is asked for; each may name a file that has to be looked for.
const MAX_ARGUMENTS: usize = 256;
/// All files of one action.
const MAX_FILE_BYTES: usize = 32 * 1024 * 1024;

/// The action without its files, its texts in full.
pub fn describe(tool: &str, call: &tool_arguments::Action) -> Action {
    use tool_arguments::Action::{Edit, List, Read, Run, Search, Write};
    let mut action =
        Action { tool: tool.to_owned(), argv: Vec::new(), cwd: String::new(), path: None, texts: Vec::new(), files: Vec::new() };
    let below = |path: &str| Some(relative(path).to_owned()).filter(|path| !path.is_empty());
    match call {
        Read(read) => {
            action.path = below(&read.path);
            let part = [("first_line", read.first_line), ("lines", read.lines)];
            action.texts = part.into_iter().filter_map(|(name, number)| number.map(|number| text(name, &number.to_string()))).collect();
        }
        Write(write) => {
            action.path = below(&write.path);
            action.texts = vec![text("content", &write.content)];
        }
        Edit(edit) => {
            action.path = below(&edit.path);
            action.texts = vec![text("old_text", &edit.old_text), text("new_text", &edit.new_text)];
        }
        List(list) => action.path = list.path.as_deref().and_then(below),
        Search(search) => {
            action.path = search.path.as_deref().and_then(below);
            action.texts = vec![text("text", &search.text)];
        }
        Run(run) => {
            action.argv = run.argv.clone();
            action.cwd = relative(run.cwd.as_deref().unwrap_or_default()).to_owned();
            action.texts = run.timeout_seconds.map(|_| text("timeout_seconds", &run.timeout_seconds().to_string())).into_iter().collect();
        }
    }
    action
}

/// A text of an action.
pub fn text(name: &str, content: &str) -> ActionText {
    ActionText {
        name: name.to_owned(),
        digest: digest(content.as_bytes()),
        bytes: i64::try_from(content.len()).unwrap_or(i64::MAX),
        inline: Some(content.to_owned()),
    }
}

/// Take out the texts that are too long to travel inside; they are to be uploaded.
pub fn take_long_texts(action: &mut Action) -> Vec<(String, String)> {
    let long = action.texts.iter_mut().filter(|text| text.inline.as_ref().is_some_and(|inline| inline.len() > MAX_INLINE_BYTES));
    long.filter_map(|text| text.inline.take().map(|content| (text.digest.clone(), content))).collect()
}

/// The files that the action rests on. `Ok(Err)`: why it cannot be bound to what is there.
pub async fn files(executor: &Executor, action: &Action) -> Result<Result<Vec<ActionFile>, String>, ExecutorError> {
    let mut found = Found { executor, files: Vec::new(), bytes: 0 };
    if let Some(path) = &action.path {
        let writes = !action.texts.is_empty() && matches!(action.tool.as_str(), "write_file" | "edit_file");
        return if writes { found.target(path).await.map(|problem| problem.map_or(Ok(found.files), Err)) } else { Ok(Ok(Vec::new())) };
    }
    if action.argv.len() > MAX_ARGUMENTS {
        return Ok(Err(format!("a command that needs approval may have at most {MAX_ARGUMENTS} arguments")));
    }
    for path in named(&action.argv, &action.cwd) {
        let path = match path {
            Named::Workspace(path) => path,
            Named::Elsewhere(path) => {
                return Ok(Err(format!(
                    "{}: a command that needs approval cannot rest on a place outside the workspace whose content may change; use a file of the workspace",
                    crate::clip::printable(&path)
                )));
            }
        };
        if let Some(problem) = found.named(&path).await? {
            return Ok(Err(problem));
        }
    }
    Ok(Ok(found.files))
}

struct Found<'e> {
    executor: &'e Executor,
    files: Vec<ActionFile>,
    bytes: usize,
}

impl Found<'_> {
    /// The file that is written; that there is none counts too.
    async fn target(&mut self, path: &str) -> Result<Option<String>, ExecutorError> {
        match self.read(path).await {
            Ok(read) => Ok(read.err()),
            Err(error) if error.is("not_found") => {
                self.files.push(ActionFile { path: path.to_owned(), digest: None });
                Ok(None)
            }
            // The tool itself will say the same.
            Err(ExecutorError::Refused(error)) => Ok(Some(error.message)),
            Err(lost) => Err(lost),
        }
    }

    /// What an argument may mean. If it means no file, it is only a word.
    async fn named(&mut self, path: &str) -> Result<Option<String>, ExecutorError> {
        match self.read(path).await {
            Ok(read) => Ok(read.err()),
            Err(error) if error.is("escapes") || error.is("not_regular") => Ok(Some(format!(
                "{error}; a command that needs approval must name the files themselves, so that people can decide on their content"
            ))),
            Err(ExecutorError::Refused(_)) => Ok(None),
            Err(lost) => Err(lost),
        }
    }

    async fn read(&mut self, path: &str) -> Result<Result<(), String>, ExecutorError> {
        let (content, done) = self.executor.read(path, MAX_BLOB_BYTES as u64).await?;
        self.bytes += content.len();
        if done.truncated || self.bytes > MAX_FILE_BYTES {
            return Ok(Err(format!(
                "{path}: an action that needs approval cannot rest on files of more than {MAX_BLOB_BYTES} bytes each and {MAX_FILE_BYTES} bytes in all"
            )));
        }
        if let Err(why) = RelativePath::parse(path) {
            return Ok(Err(format!(
                "{}: an action that needs approval cannot rest on such a file: its path {why}",
                crate::clip::printable(path)
            )));
        }
        if self.files.len() >= MAX_PARTS {
            return Ok(Err(format!("an action that needs approval may name at most {MAX_PARTS} files")));
        }
        self.files.push(ActionFile { path: path.to_owned(), digest: Some(digest(&content)) });
        Ok(Ok(()))
    }
}

/// What a word of a command means as a path.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    /// Beneath the workspace.
    Workspace(String),
    /// In a place that the agent can write, whose content is not bound: the words alone do not tell what it holds.
    Elsewhere(String),
}

/// Places outside the workspace that commands can write, or that lead to other places.
const WRITABLE: [&str; 5] = ["/tmp", "/proc", "/dev", "/var/tmp", "/run"];
/// Of those, what holds nothing.
const EMPTY: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/full", "/tmp"];

/// Paths that a command's arguments may mean, sorted: each word, what follows a `=`, and what follows the letter of an option.
fn named(argv: &[String], cwd: &str) -> BTreeSet<Named> {
    let program = argv.first().filter(|program| program.contains('/'));
    let words = program.into_iter().chain(argv.iter().skip(1));
    let parts = words.flat_map(|word| {
        let attached = word
            .strip_prefix('-')
            .filter(|rest| !rest.starts_with('-'))
            .and_then(|rest| rest.char_indices().nth(1).map(|(at, _)| &rest[at..]));
        [Some(word.as_str()), word.split_once('=').map(|(_, value)| value), attached]
    });
    parts.flatten().filter_map(|part| meant(cwd, part)).collect()
}

/// The place that a program in `cwd` would open, by the words alone.
fn meant(cwd: &str, path: &str) -> Option<Named> {
    let start = if path.starts_with('/') { String::new() } else { format!("{WORKSPACE}{cwd}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in start.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            // Above the root there is the root.
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let whole = format!("/{}", parts.join("/"));
    if let Some(rest) = whole.strip_prefix(WORKSPACE) {
        return Some(Named::Workspace(rest.to_owned()));
    }
    let within = |place: &str| whole.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (WRITABLE.iter().any(|place| within(place)) && !EMPTY.contains(&whole.as_str())).then_some(Named::Elsewhere(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_may_name_a_file() {
        let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (cwd, words, expected) in [
            ("", &["sh", "a.sh"][..], &["a.sh"][..]),
            ("src", &["sh", "a.sh", "./b/../c", "../d"], &["src/a.sh", "src/c", "d"]),
            ("src", &["./run"], &["src/run"]),
            ("", &["run"], &[]),
            ("", &["make", "-f", "/workspace/Makefile", "/etc/passwd"], &["-f", "Makefile"]),
            ("", &["make", "-fgo.mk", "-C.", "-é.mk"], &["-fgo.mk", "go.mk", "-C.", "-é.mk", ".mk"]),
            ("", &["cc", "--config=x/y", "../../z", "", ".", "/workspace/"], &["--config=x/y", "x/y"]),
            ("a", &["sh", "../../out"], &[]),
            // However it is spelled, it is the same file.
            ("", &["sh", "../workspace/go.sh", "//workspace/go.sh", "/workspace/../workspace/go.sh", "/./workspace//go.sh"], &["go.sh"]),
            ("a", &["sh", "../../../workspace/./a/../go.sh"], &["go.sh"]),
        ] {
            let expected: BTreeSet<Named> = expected.iter().map(|path| Named::Workspace((*path).to_owned())).collect();
            assert_eq!(named(&argv(words), cwd), expected, "{words:?}");
        }
        for (word, place) in [
            ("/tmp/s.sh", Some("/tmp/s.sh")),
            ("../tmp/s.sh", Some("/tmp/s.sh")),
            ("--file=/tmp/s.sh", Some("/tmp/s.sh")),
            ("-f/tmp/s.sh", Some("/tmp/s.sh")),
            ("/proc/self/cwd/go.sh", Some("/proc/self/cwd/go.sh")),
            ("/dev/fd/3", Some("/dev/fd/3")),
            ("/dev/null", None),
            ("/tmp", None),
            ("/tmpfile", None),
            ("/usr/bin/python3", None),
        ] {
            let found = named(&argv(&["sh", word]), "").into_iter().find(|named| matches!(named, Named::Elsewhere(_)));
            assert_eq!(found, place.map(|place| Named::Elsewhere(place.to_owned())), "{word}");
        }
    }

    #[test]
    fn everything_that_is_performed_is_described() {
        let parse = |tool: &str, arguments: &str| describe(tool, &tool_arguments::parse(tool, arguments).unwrap());
        let names = |action: &Action| action.texts.iter().map(|text| text.name.clone()).collect::<Vec<_>>().join(",");
        for (tool, arguments, path, argv, texts) in [
            ("run_command", r#"{"argv": ["ls", "-l"], "cwd": "./src/"}"#, None, 2, ""),
            ("run_command", r#"{"argv": ["ls"], "timeout_seconds": 900}"#, None, 1, "timeout_seconds"),
            ("write_file", r#"{"path": "./a", "content": "x"}"#, Some("a"), 0, "content"),
            ("edit_file", r#"{"path": "a", "old_text": "x", "new_text": "y"}"#, Some("a"), 0, "old_text,new_text"),
            ("read_file", r#"{"path": "a", "lines": 3}"#, Some("a"), 0, "lines"),
            ("list", "{}", None, 0, ""),
            ("search", r#"{"text": "x", "path": "."}"#, None, 0, "text"),
        ] {
            let action = parse(tool, arguments);
            assert_eq!((action.path.as_deref(), action.argv.len(), names(&action).as_str()), (path, argv, texts), "{tool}");
        }
        assert_eq!(parse("run_command", r#"{"argv": ["ls"], "cwd": "./src/"}"#).cwd, "src");
        let mut long = parse("write_file", &serde_json::json!({"path": "a", "content": "x".repeat(MAX_INLINE_BYTES + 1)}).to_string());
        let taken = take_long_texts(&mut long);
        assert_eq!((taken.len(), taken[0].1.len(), &long.texts[0].inline), (1, MAX_INLINE_BYTES + 1, &None));
        assert_eq!(take_long_texts(&mut parse("write_file", r#"{"path": "a", "content": "x"}"#)), []);
    }
}
