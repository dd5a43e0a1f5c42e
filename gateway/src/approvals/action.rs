//! An action as it is sent by a runner: its shape and bounds, its texts against their digests. What passes is a `Checked`.

use std::collections::BTreeSet;

use agentrun_crds::approval_rules::Asked;
use agentrun_crds::paths::RelativePath;
use agentrun_protocol::approval::{Action, ActionText, MAX_INLINE_BYTES, MAX_PARTS};
use agentrun_protocol::result::MAX_BLOB_BYTES;

use super::shown;
use crate::body::invalid;
use crate::error::ApiError;
use crate::store::Digest;

const MAX_ARGUMENTS: usize = 1_024;
/// All arguments together.
const MAX_ARGV_BYTES: usize = 64 * 1024;
const MAX_NAME: usize = 64;
/// Of a command as people see it: it must be seen whole, in lists too.
const MAX_HEAD_BYTES: usize = 12 * 1024;

/// An action whose every field is within its bounds.
#[derive(Debug)]
pub(super) struct Checked {
    action: Action,
    /// Texts that came with it, verified.
    pub inline: Vec<(Digest, String)>,
    /// Texts that must have been uploaded: field, digest, bytes.
    pub uploaded: Vec<(String, Digest, i64)>,
}

impl Checked {
    pub(super) fn action(&self) -> &Action {
        &self.action
    }

    /// What the rules look at.
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked { tool: &self.action.tool, argv: &self.action.argv, path: self.action.path.as_deref() }
    }
}

pub(super) fn check(action: Action) -> Result<Checked, ApiError> {
    name(&action.tool, "action.tool")?;
    argv(&action.argv)?;
    if !action.cwd.is_empty() {
        path(&action.cwd, "action.cwd")?;
    }
    if let Some(text) = &action.path {
        path(text, "action.path")?;
    }
    for (field, count) in [("action.texts", action.texts.len()), ("action.files", action.files.len())] {
        if count > MAX_PARTS {
            return Err(invalid(field, format!("there are {count}; at most {MAX_PARTS} are allowed")));
        }
    }
    let (mut inline, mut uploaded, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, text) in action.texts.iter().enumerate() {
        let field = |member: &str| format!("action.texts[{index}].{member}");
        name(&text.name, &field("name"))?;
        if !seen.insert(text.name.as_str()) {
            return Err(invalid(field("name"), "stands there twice"));
        }
        let digest = Digest::parse(&text.digest).map_err(|error| invalid(field("digest"), error))?;
        match &text.inline {
            Some(content) => inline.push((verified(text, content, digest, &field)?, content.clone())),
            None if !(0..=MAX_BLOB_BYTES as i64).contains(&text.bytes) => {
                return Err(invalid(field("bytes"), format!("must be from 0 to {MAX_BLOB_BYTES}")));
            }
            None => uploaded.push((field("digest"), digest, text.bytes)),
        }
    }
    let mut seen = BTreeSet::new();
    for (index, file) in action.files.iter().enumerate() {
        path(&file.path, &format!("action.files[{index}].path"))?;
        if !seen.insert(file.path.as_str()) {
            return Err(invalid(format!("action.files[{index}].path"), "stands there twice"));
        }
        if let Some(digest) = &file.digest {
            Digest::parse(digest).map_err(|error| invalid(format!("action.files[{index}].digest"), error))?;
        }
    }
    let shown = shown::head(&action).len();
    if shown > MAX_HEAD_BYTES {
        let message = format!(
            "is {shown} bytes long as it is shown to people; at most {MAX_HEAD_BYTES} can be asked for: write a script and name it"
        );
        return Err(invalid("action.argv", message));
    }
    Ok(Checked { action, inline, uploaded })
}

fn verified(text: &ActionText, content: &str, digest: Digest, field: &dyn Fn(&str) -> String) -> Result<Digest, ApiError> {
    if content.len() > MAX_INLINE_BYTES {
        let message = format!("{}: has {} bytes; upload what has more than {MAX_INLINE_BYTES} as a blob", field("inline"), content.len());
        return Err(ApiError::too_large(message).field(field("inline")));
    }
    if text.bytes != content.len() as i64 {
        return Err(invalid(field("bytes"), format!("the text has {} bytes", content.len())));
    }
    let actual = Digest::of(content.as_bytes());
    if actual != digest {
        return Err(invalid(field("digest"), format!("the text's digest is {actual}")));
    }
    Ok(digest)
}

fn name(text: &str, field: &str) -> Result<(), ApiError> {
    let fits = (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if fits { Ok(()) } else { Err(invalid(field, format!("must be 1 to {MAX_NAME} characters of A-Z, a-z, 0-9, '.', '_', '-'"))) }
}

fn argv(argv: &[String]) -> Result<(), ApiError> {
    let bytes: usize = argv.iter().map(String::len).sum();
    if argv.len() > MAX_ARGUMENTS || bytes > MAX_ARGV_BYTES {
        return Err(invalid(
            "action.argv",
            format!(
                "has {} arguments of {bytes} bytes; at most {MAX_ARGUMENTS} of {MAX_ARGV_BYTES} bytes in all can be asked for",
                argv.len()
            ),
        ));
    }
    if argv.first().is_some_and(String::is_empty) || argv.iter().any(|argument| argument.contains('\0')) {
        return Err(invalid("action.argv", "an argument holds a NUL, or the program is empty"));
    }
    Ok(())
}

fn path(text: &str, field: &str) -> Result<(), ApiError> {
    RelativePath::parse(text).map(drop).map_err(|error| invalid(field, format!("it {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn good() -> Value {
        let text = json!({"name": "content", "digest": Digest::of(b"x").to_string(), "bytes": 1, "inline": "x"});
        let file = json!({"path": "a.sh", "digest": Digest::of(b"y").to_string()});
        json!({"tool": "run_command", "argv": ["sh", "a.sh", ""], "cwd": "src", "path": "b", "texts": [text], "files": [file]})
    }

    fn checked(change: &dyn Fn(&mut Value)) -> Result<Checked, ApiError> {
        let mut action = good();
        change(&mut action);
        check(serde_json::from_value(action).expect("an action"))
    }

    #[test]
    fn every_field_has_its_bounds() {
        let action = checked(&|_| {}).expect("good");
        assert_eq!((action.inline.len(), action.uploaded.len()), (1, 0));
        let uploaded = checked(&|a| drop(a["texts"][0].as_object_mut().expect("a text").remove("inline"))).expect("good");
        assert_eq!((uploaded.inline.len(), uploaded.uploaded.len()), (0, 1));
        type Row = (&'static str, u16, Box<dyn Fn(&mut Value)>);
        let set = |pointer: &'static str, value: Value| -> Box<dyn Fn(&mut Value)> {
            Box::new(move |action| *action.pointer_mut(pointer).expect("there") = value.clone())
        };
        let rows: Vec<Row> = vec![
            ("action.tool", 422, set("/tool", json!(""))),
            ("action.tool", 422, set("/tool", json!("run\u{202e}"))),
            ("action.tool", 422, set("/tool", json!("t".repeat(65)))),
            ("action.argv", 422, set("/argv", json!(vec!["a"; 1025]))),
            ("action.argv", 422, set("/argv", json!(["a", "b".repeat(64 * 1024)]))),
            ("action.argv", 422, set("/argv", json!(["a", "b\0c"]))),
            ("action.argv", 422, set("/argv", json!([""]))),
            ("action.argv", 422, set("/argv", json!(["sh", "-c", "\u{7f}".repeat(4096)]))),
            ("action.cwd", 422, set("/cwd", json!("/etc"))),
            ("action.path", 422, set("/path", json!("a/../b"))),
            ("action.texts", 422, set("/texts", json!(vec![good()["texts"][0].clone(); 33]))),
            ("action.texts[1].name", 422, set("/texts", json!(vec![good()["texts"][0].clone(); 2]))),
            ("action.texts[0].name", 422, set("/texts/0/name", json!("a b"))),
            ("action.texts[0].digest", 422, set("/texts/0/digest", json!("sha256:x"))),
            ("action.texts[0].digest", 422, set("/texts/0/digest", json!(Digest::of(b"z").to_string()))),
            ("action.texts[0].bytes", 422, set("/texts/0/bytes", json!(2))),
            ("action.texts[0].inline", 413, set("/texts/0/inline", json!("x".repeat(MAX_INLINE_BYTES + 1)))),
            (
                "action.texts[0].bytes",
                422,
                Box::new(|action| (action["texts"][0]["inline"], action["texts"][0]["bytes"]) = (Value::Null, json!(-1))),
            ),
            ("action.files", 422, set("/files", json!(vec![good()["files"][0].clone(); 33]))),
            ("action.files[1].path", 422, set("/files", json!(vec![good()["files"][0].clone(); 2]))),
            ("action.files[0].path", 422, set("/files/0/path", json!(".git/config"))),
            ("action.files[0].digest", 422, set("/files/0/digest", json!("md5:x"))),
        ];
        for (field, status, change) in rows {
            let error = checked(&*change).expect_err(field);
            assert_eq!((error.status.as_u16(), error.field.as_deref()), (status, Some(field)), "{error}");
        }
    }
}
