//! The tools as the model is told of them.

use serde_json::{Value, json};

pub const READ_FILE: &str = "read_file";
pub const WRITE_FILE: &str = "write_file";
pub const EDIT_FILE: &str = "edit_file";
pub const LIST: &str = "list";
pub const SEARCH: &str = "search";
pub const RUN_COMMAND: &str = "run_command";

pub const NAMES: &[&str] = &[READ_FILE, WRITE_FILE, EDIT_FILE, LIST, SEARCH, RUN_COMMAND];

/// In the form of chat/completions.
pub fn all() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let number = |about: &str| json!({"type": "integer", "minimum": 1, "description": about});
    let path = || text("Path relative to the workspace");
    json!([
        tool(
            READ_FILE,
            "Read a text file.",
            json!({"path": path(), "first_line": number("Line to begin with, from 1"), "lines": number("How many lines")}),
            &["path"]
        ),
        tool(
            WRITE_FILE,
            "Create a file, or replace all of it.",
            json!({"path": path(), "content": text("The whole new content")}),
            &["path", "content"]
        ),
        tool(
            EDIT_FILE,
            "Replace one text in a file. The old text must occur exactly once, character for character.",
            json!({"path": path(), "old_text": text("The text to replace"), "new_text": text("What takes its place")}),
            &["path", "old_text", "new_text"]
        ),
        tool(LIST, "List a directory.", json!({"path": text("Directory relative to the workspace; leave out for the top")}), &[]),
        tool(
            SEARCH,
            "Find the lines that contain a text, in all files beneath a path.",
            json!({"text": text("The text, taken literally"), "path": text("File or directory; leave out for all")}),
            &["text"]
        ),
        tool(
            RUN_COMMAND,
            "Run a program in the workspace, without a shell, and see its output and exit code.",
            json!({
                "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "Program and arguments"},
                "cwd": text("Directory relative to the workspace; leave out for the top"),
                "timeout_seconds": number("After so long it is killed; 60 if left out"),
            }),
            &["argv"]
        ),
    ])
}

fn tool(name: &str, about: &str, properties: Value, required: &[&str]) -> Value {
    let parameters = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "description": about, "parameters": parameters}})
}
