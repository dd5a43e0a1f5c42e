//! What the model wrote, parsed. Every refusal names the field and what is allowed, so that the model can do better.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::tool_definitions::{EDIT_FILE, LIST, NAMES, READ_FILE, RUN_COMMAND, SEARCH, WRITE_FILE};

const MAX_TIMEOUT_SECONDS: u64 = 3600;
const DEFAULT_TIMEOUT_SECONDS: u64 = 60;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Read(ReadFile),
    Write(WriteFile),
    Edit(EditFile),
    List(List),
    Search(Search),
    Run(RunCommand),
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct ReadFile {
    pub path: String,
    #[serde(default)]
    pub first_line: Option<usize>,
    #[serde(default)]
    pub lines: Option<usize>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct WriteFile {
    pub path: String,
    pub content: String,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct EditFile {
    pub path: String,
    pub old_text: String,
    pub new_text: String,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct List {
    #[serde(default)]
    pub path: Option<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Search {
    pub text: String,
    #[serde(default)]
    pub path: Option<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct RunCommand {
    pub argv: Vec<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
}

impl RunCommand {
    pub fn timeout_seconds(&self) -> u64 {
        self.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS).clamp(1, MAX_TIMEOUT_SECONDS)
    }
}

/// The action of a tool call, or what is wrong with it.
pub fn parse(tool: &str, arguments: &str) -> Result<Action, String> {
    if !NAMES.contains(&tool) {
        return Err(format!("there is no tool {:?}; the tools are {}", crate::clip::first_chars(tool, 64), NAMES.join(", ")));
    }
    // Some models send nothing where there is nothing to say.
    let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
    let value: Value = serde_json::from_str(arguments).map_err(|error| format!("the arguments are not JSON: {error}"))?;
    if !value.is_object() {
        return Err("the arguments must be a JSON object".into());
    }
    match tool {
        READ_FILE => of(value).map(Action::Read),
        WRITE_FILE => of(value).map(Action::Write),
        EDIT_FILE => of(value).map(Action::Edit),
        LIST => of(value).map(Action::List),
        SEARCH => of(value).map(Action::Search),
        RUN_COMMAND => of(value).map(Action::Run),
        _ => Err(format!("the tool {tool} is not implemented")),
    }
}

fn of<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("the arguments do not fit: {error}"))
}

/// `.` and `./x` are what models write for the top; the executor takes neither.
pub fn relative(path: &str) -> &str {
    let mut path = path.trim_end_matches('/');
    while let Some(rest) = path.strip_prefix("./") {
        path = rest.trim_start_matches('/');
    }
    if path == "." { "" } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_arguments_are_read_and_bad_ones_explained() {
        let run = |argv: &[&str]| {
            Action::Run(RunCommand { argv: argv.iter().map(|s| s.to_string()).collect(), cwd: None, timeout_seconds: None })
        };
        for (tool, arguments, expected) in [
            ("list", "", Ok(Action::List(List { path: None }))),
            ("list", "{\"path\": null}", Ok(Action::List(List { path: None }))),
            ("run_command", r#"{"argv": ["ls", "-l"]}"#, Ok(run(&["ls", "-l"]))),
            ("run_command", r#"{"argv": "ls -l"}"#, Err("expected a sequence")),
            ("run_command", "{}", Err("missing field `argv`")),
            ("read_file", r#"{"path": 5}"#, Err("expected a string")),
            ("read_file", r#"{"path": "a", "lines": -1}"#, Err("expected usize")),
            ("edit_file", r#"{"path": "a", "old_text": "b"}"#, Err("missing field `new_text`")),
            ("list", "{", Err("not JSON")),
            ("list", "[]", Err("must be a JSON object")),
            ("rm", "{}", Err("the tools are read_file, write_file, edit_file, list, search, run_command")),
        ] {
            match (parse(tool, arguments), expected) {
                (Ok(action), Ok(wanted)) => assert_eq!(action, wanted),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (actual, expected) => panic!("{tool} {arguments}: {actual:?}, not {expected:?}"),
            }
        }
        assert!(parse("list", &"[".repeat(100_000)).is_err());
    }

    #[test]
    fn the_top_has_many_names() {
        for (path, expected) in [("", ""), (".", ""), ("./", ""), ("./a/", "a"), ("././/a", "a"), ("a/b", "a/b"), ("..", ".."), ("/", "")] {
            assert_eq!(relative(path), expected, "{path}");
        }
    }
}
