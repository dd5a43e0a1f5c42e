//! The shape of a result: every field within its bounds, every path and digest parsed. A body that fails here is refused at
//! the field and leaves no trace; whether what it says is true is not asked yet.

use agentrun_crds::paths::RelativePath;
use agentrun_protocol::result::{Change, ClaimedCheck, FileState, MAX_CHANGES, Outcome, SandboxResult};
use serde_json::Value;

use super::patch::Mode;
use crate::body::{self, invalid};
use crate::error::ApiError;
use crate::store::Digest;

/// Most checks that are looked at; a run has fewer.
const MAX_CHECKS: usize = 64;

/// A well-formed result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claims {
    pub outcome: Outcome,
    /// Without control characters, but otherwise the sandbox's words.
    pub message: String,
    pub steps: i64,
    pub checks: Vec<ClaimedCheck>,
    pub logs: Vec<(usize, Digest)>,
    pub changes: Vec<FileChange>,
    pub manifest_complete: bool,
}

/// One changed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileChange {
    pub path: RelativePath,
    pub before: Option<State>,
    pub after: Option<State>,
}

/// Content and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub digest: Digest,
    pub mode: Mode,
}

/// Check a body that came with the token of this run and attempt.
pub(super) fn parse(body: &[u8], run_uid: &str, attempt: i64) -> Result<Claims, ApiError> {
    let mut value = body::json(body)?;
    // Lists are taken apart by hand, so that a refusal can name the entry.
    let checks = list(&mut value, "checks", MAX_CHECKS)?;
    let changes = list(&mut value, "changes", MAX_CHANGES)?;
    let result: SandboxResult = body::typed(value, "body")?;
    if result.run_uid != run_uid {
        return Err(invalid("runUid", "is not the run of the token"));
    }
    if result.attempt != attempt {
        return Err(invalid("attempt", format!("is not the attempt of the token, which is {attempt}")));
    }
    if !(0..=1_000_000).contains(&result.steps) {
        return Err(invalid("steps", "must be 0 to 1000000"));
    }
    let checks: Vec<ClaimedCheck> =
        checks.into_iter().enumerate().map(|(n, check)| body::typed(check, &format!("checks[{n}]"))).collect::<Result<_, _>>()?;
    let mut logs = Vec::new();
    for (n, check) in checks.iter().enumerate() {
        if check.exit_code.is_some_and(|code| !(0..=255).contains(&code)) {
            return Err(invalid(format!("checks[{n}].exitCode"), "must be 0 to 255, or absent if the program could not be started"));
        }
        if let Some(log) = &check.log {
            logs.push((n, Digest::parse(log).map_err(|error| invalid(format!("checks[{n}].log"), error))?));
        }
    }
    let changes: Vec<FileChange> = changes.into_iter().enumerate().map(|(n, change)| file_change(change, n)).collect::<Result<_, _>>()?;
    for (n, pair) in changes.windows(2).enumerate() {
        if pair[0].path.as_str().as_bytes() >= pair[1].path.as_str().as_bytes() {
            return Err(invalid(
                format!("changes[{}].path", n + 1),
                "must be greater than the path before it, compared by bytes; each path stands once",
            ));
        }
    }
    Ok(Claims {
        outcome: result.outcome,
        message: cleaned(&result.message),
        steps: result.steps,
        checks,
        logs,
        changes,
        manifest_complete: result.manifest_complete,
    })
}

/// Take a list out of the body, leaving an empty one.
fn list(body: &mut Value, field: &str, most: usize) -> Result<Vec<Value>, ApiError> {
    let Some(list) = body.get_mut(field).and_then(Value::as_array_mut) else { return Err(invalid(field, "must be a list")) };
    if list.len() > most {
        return Err(invalid(field, format!("has {} entries; at most {most} are allowed", list.len())));
    }
    Ok(std::mem::take(list))
}

fn file_change(change: Value, n: usize) -> Result<FileChange, ApiError> {
    let field = |part: &str| format!("changes[{n}].{part}");
    let change: Change = body::typed(change, &format!("changes[{n}]"))?;
    let path = RelativePath::parse(&change.path).map_err(|error| invalid(field("path"), error))?;
    let before = change.before.map(|state| file_state(&state, &field("before"))).transpose()?;
    let after = change.after.map(|state| file_state(&state, &field("after"))).transpose()?;
    if before == after {
        return Err(invalid(field("after"), "must differ from before: an unchanged file is no change"));
    }
    Ok(FileChange { path, before, after })
}

fn file_state(state: &FileState, field: &str) -> Result<State, ApiError> {
    let digest = Digest::parse(&state.digest).map_err(|error| invalid(format!("{field}.digest"), error))?;
    let mode = Mode::from_octal_digits(state.mode).ok_or_else(|| invalid(format!("{field}.mode"), "must be 644 or 755"))?;
    Ok(State { digest, mode })
}

/// Fit to be shown to people: no control characters, nothing invisible, not longer than a message.
fn cleaned(text: &str) -> String {
    let plain = text.chars().map(|c| if c == '\n' || c == '\t' { ' ' } else { c });
    plain.filter(|c| !c.is_control() && !agentrun_crds::paths::is_invisible(*c)).take(1024).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        let digest = |text: &str| Digest::of(text.as_bytes()).to_string();
        json!({
            "runUid": "u", "attempt": 1, "outcome": "done", "message": "done\u{1b}[31m\u{202e}\n ok", "steps": 3,
            "checks": [{"name": "unit", "argv": ["x"], "exitCode": 0, "log": digest("log")}],
            "changes": [
                {"path": "a", "before": {"digest": digest("1"), "mode": 644}, "after": {"digest": digest("2"), "mode": 755}},
                {"path": "b", "before": {"digest": digest("1"), "mode": 644}},
                {"path": "c", "after": {"digest": digest("1"), "mode": 644}},
            ],
            "manifestComplete": true,
        })
    }

    #[test]
    fn a_good_result_is_parsed() {
        let claims = parse(good().to_string().as_bytes(), "u", 1).expect("good");
        assert_eq!((claims.message.as_str(), claims.changes.len(), claims.logs.len(), claims.steps), ("done[31m  ok", 3, 1, 3));
    }

    #[test]
    fn every_bad_field_is_named() {
        let set = |pointer: &str, value: Value| {
            let mut body = good();
            match body.pointer_mut(pointer) {
                Some(slot) => *slot = value,
                None => {
                    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
                    body.pointer_mut(parent).expect("the parent")[name] = value;
                }
            }
            body
        };
        let many = |count: usize| {
            json!(
                (0..count)
                    .map(|n| json!({"path": format!("{n:05}"), "after": {"digest": Digest::of(b"").to_string(), "mode": 644}}))
                    .collect::<Vec<_>>()
            )
        };
        assert!(parse(set("/changes", many(MAX_CHANGES)).to_string().as_bytes(), "u", 1).is_ok(), "the most changes fit");
        assert!(set("/changes", many(MAX_CHANGES)).to_string().len() < super::super::MAX_RESULT_BYTES);
        let rows = [
            (json!(1), "checks"),
            (set("/checks", json!({})), "checks"),
            (set("/checks", json!(vec![json!({}); 65])), "checks"),
            (set("/changes", json!("x")), "changes"),
            (set("/changes", many(MAX_CHANGES + 1)), "changes"),
            (set("/runUid", json!("other")), "runUid"),
            (set("/attempt", json!(2)), "attempt"),
            (set("/attempt", json!("1")), "body"),
            (set("/attempt", json!(1.5)), "body"),
            (set("/outcome", json!("Succeeded")), "body"),
            (set("/verdict", json!("Succeeded")), "body"),
            (set("/steps", json!(-1)), "steps"),
            (set("/steps", json!(i64::MAX)), "steps"),
            (set("/checks/0/exitCode", json!(256)), "checks[0].exitCode"),
            (set("/checks/0/exitCode", json!(-1)), "checks[0].exitCode"),
            (set("/checks/0/exitCode", json!("0")), "checks[0]"),
            (set("/checks/0/trust", json!("verified")), "checks[0]"),
            (set("/checks/0/log", json!("/etc/passwd")), "checks[0].log"),
            (set("/changes/0", json!([])), "changes[0]"),
            (set("/changes/0/size", json!(1)), "changes[0]"),
            (set("/changes/1/path", json!("../x")), "changes[1].path"),
            (set("/changes/1/path", json!("/x")), "changes[1].path"),
            (set("/changes/1/path", json!("b/.GIT/config")), "changes[1].path"),
            (set("/changes/1/path", json!("b\u{0}")), "changes[1].path"),
            (set("/changes/1/path", json!("b".repeat(513))), "changes[1].path"),
            (set("/changes/1/path", json!("a")), "changes[1].path"),
            (set("/changes/2/path", json!("aa")), "changes[2].path"),
            (set("/changes/0/before/digest", json!("sha256:x")), "changes[0].before.digest"),
            (set("/changes/0/after/mode", json!(777)), "changes[0].after.mode"),
            (set("/changes/0/after/mode", json!(0o644)), "changes[0].after.mode"),
            (set("/changes/0/after/mode", json!(-644)), "changes[0]"),
            (set("/changes/0/after", good().pointer("/changes/0/before").cloned().expect("before")), "changes[0].after"),
            (set("/changes/1/before", Value::Null), "changes[1].after"),
        ];
        for (body, field) in rows {
            let error = parse(body.to_string().as_bytes(), "u", 1).expect_err(field);
            assert_eq!((error.status.as_u16(), error.field.as_deref()), (422, Some(field)), "{error}");
        }
        assert_eq!(parse(b"{", "u", 1).expect_err("cut").code, "invalid_json");
    }
}
