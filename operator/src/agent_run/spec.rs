//! What a spec must satisfy by itself, whatever the policy says: the same bounds as the schema, judged again because a
//! schema can be older than this program. Pure.

use std::collections::BTreeMap;

use agentrun_crds::agent_run::{AgentRunSpec, BudgetSpec, Check, GitSource, InlineFile};
use agentrun_crds::conditions::Reason;
use agentrun_crds::git::{self, GitUrl};
use agentrun_crds::paths::{AllowedPath, RelativePath};
use agentrun_crds::quantity;

use super::approvals;

/// Longest wall time that any policy may allow.
pub const MAX_WALL_SECONDS: i64 = 24 * 3600;
const MAX_INSTRUCTION_CHARS: usize = 32_000;
const MAX_FILES: usize = 32;
const MAX_FILE_BYTES: usize = 64_000;
const MAX_SOURCE_BYTES: usize = 128_000;
const MAX_CHECKS: usize = 8;
const MAX_ALLOWED_PATHS: usize = 64;
const MAX_ARGV: usize = 32;
const MAX_ARG_CHARS: usize = 2048;
const MAX_ARGV_BYTES: usize = 8192;
const MAX_RERUN_KEY: usize = 128;
const MAX_PERSON_CHARS: usize = 512;

/// Why a run ends before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// Names the field, what was wrong and what is allowed.
    pub message: String,
}

impl Refusal {
    pub fn new(reason: Reason, field: &str, wrong: impl std::fmt::Display, allowed: impl std::fmt::Display) -> Self {
        Refusal { reason, message: format!("{field}: {wrong}; allowed: {allowed}") }
    }

    fn spec(field: &str, wrong: impl std::fmt::Display, allowed: impl std::fmt::Display) -> Self {
        Refusal::new(Reason::InvalidSpec, field, wrong, allowed)
    }
}

/// A value from outside, quoted, escaped and cut, fit for a message.
pub fn show(text: &str) -> String {
    let mut cut: String = text.chars().take(80).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// Judge a spec by itself.
pub fn check(spec: &AgentRunSpec) -> Result<(), Refusal> {
    instruction(&spec.instruction)?;
    const ONE: &str = "exactly one of `inline`, `archive` and `git`";
    match (&spec.source.inline, &spec.source.archive, &spec.source.git) {
        (Some(inline), None, None) => source(&inline.files)?,
        (None, Some(archive), None) => digest("spec.source.archive.digest", &archive.digest)?,
        (None, None, Some(source)) => git(source)?,
        (None, None, None) => return Err(Refusal::spec("spec.source", "no member is set", ONE)),
        _ => return Err(Refusal::spec("spec.source", "more than one member is set", ONE)),
    }
    for (at, text) in spec.allowed_paths.iter().enumerate() {
        AllowedPath::parse(text).map_err(|e| {
            Refusal::spec(
                &format!("spec.allowedPaths[{at}]"),
                format!("{} {e}", show(text)),
                "a relative path such as \"a/b.py\", a subtree \"a/**\" or everything \"**\"",
            )
        })?;
    }
    if !(1..=MAX_ALLOWED_PATHS).contains(&spec.allowed_paths.len()) {
        let wrong = format!("has {} entries", spec.allowed_paths.len());
        return Err(Refusal::spec("spec.allowedPaths", wrong, "1 to 64 entries, or leave the field out for everything"));
    }
    checks("spec.checks", &spec.checks)?;
    if spec.model.is_empty() {
        return Err(Refusal::spec("spec.model", "is empty", "the name of a model that the namespace's policy offers"));
    }
    if let Some(image) = &spec.agent.image {
        image_reference("spec.agent.image", image)?;
    }
    if let Some(name) = spec.agent.harness.as_deref().filter(|name| !is_object_name(name)) {
        let allowed = "the name of an AgentTemplate that the policy lists in harnesses";
        return Err(Refusal::spec("spec.agent.harness", format!("{} is no name", show(name)), allowed));
    }
    if let Some(steps) = spec.limits.max_steps {
        at_least("spec.limits.maxSteps", steps, 1)?;
    }
    if let Some(text) = &spec.limits.wall_time {
        wall_time("spec.limits.wallTime", text)?;
    }
    budget("spec.limits.budget", spec.limits.budget.as_ref())?;
    if let Some(ttl) = spec.ttl_seconds_after_finished {
        at_least("spec.ttlSecondsAfterFinished", ttl, 0)?;
    }
    approvals::of_run(spec)?;
    if let Some(key) = spec.rerun_key.as_deref().filter(|key| !approvals::word(key, MAX_RERUN_KEY)) {
        let allowed = "1 to 128 letters, digits and -._:/, the first a letter or digit";
        return Err(Refusal::spec("spec.rerunKey", format!("{} is no name", show(key)), allowed));
    }
    for (field, name) in [("spec.submittedBy", &spec.submitted_by), ("spec.submittedFor", &spec.submitted_for)] {
        let fine = |name: &str| (1..=MAX_PERSON_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control);
        if let Some(name) = name.as_deref().filter(|name| !fine(name)) {
            return Err(Refusal::spec(field, format!("{} is no name", show(name)), "1 to 512 characters without control characters"));
        }
    }
    Ok(())
}

fn git(source: &GitSource) -> Result<(), Refusal> {
    if GitUrl::parse(&source.url).is_none() {
        return Err(Refusal::spec("spec.source.git.url", "is not the URL of a repository", git::URL_ALLOWED));
    }
    if !git::is_ref(&source.reference) {
        return Err(Refusal::spec("spec.source.git.ref", format!("{} is no ref", show(&source.reference)), git::REF_ALLOWED));
    }
    if let Some(path) = &source.sub_path {
        RelativePath::parse(path).map_err(|why| {
            Refusal::spec("spec.source.git.subPath", format!("{} {why}", show(path)), "a folder of the repository, such as services/shop")
        })?;
    }
    Ok(())
}

fn digest(field: &str, text: &str) -> Result<(), Refusal> {
    let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64);
    if hex.is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))) {
        return Ok(());
    }
    Err(Refusal::spec(field, format!("{} is no digest", show(text)), "sha256: and the 64 lower-case hex digits of the archive's SHA-256"))
}

fn instruction(text: &str) -> Result<(), Refusal> {
    let allowed = "1 to 32,000 characters without control characters but tab and newline";
    let count = text.chars().count();
    if count == 0 || count > MAX_INSTRUCTION_CHARS {
        return Err(Refusal::spec("spec.instruction", format!("has {count} characters"), allowed));
    }
    match text.chars().find(|c| c.is_control() && *c != '\t' && *c != '\n') {
        Some(c) => Err(Refusal::spec("spec.instruction", format!("contains the control character U+{:04X}", c as u32), allowed)),
        None => Ok(()),
    }
}

fn source(files: &[InlineFile]) -> Result<(), Refusal> {
    const FIELD: &str = "spec.source.inline.files";
    if files.is_empty() || files.len() > MAX_FILES {
        return Err(Refusal::spec(FIELD, format!("has {} files", files.len()), format!("1 to {MAX_FILES}")));
    }
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut total = 0;
    for (at, file) in files.iter().enumerate() {
        let path = RelativePath::parse(&file.path).map_err(|e| {
            let allowed = "a relative POSIX path without '..', '.git', backslash or control characters, at most 512 bytes";
            Refusal::spec(&format!("{FIELD}[{at}].path"), format!("{} {e}", show(&file.path)), allowed)
        })?;
        if file.content.len() > MAX_FILE_BYTES {
            let wrong = format!("{} has {} bytes", show(&file.path), file.content.len());
            return Err(Refusal::spec(&format!("{FIELD}[{at}].content"), wrong, format!("at most {MAX_FILE_BYTES} bytes a file")));
        }
        total += file.content.len();
        if let Some(other) = seen.insert(path.collision_key(), &file.path) {
            return Err(collision(at, &file.path, other));
        }
    }
    if total > MAX_SOURCE_BYTES {
        return Err(Refusal::spec(FIELD, format!("has {total} bytes in all"), format!("at most {MAX_SOURCE_BYTES} bytes in all")));
    }
    // A file cannot also be a directory of another file.
    for (at, file) in files.iter().enumerate() {
        let Ok(path) = RelativePath::parse(&file.path) else { continue };
        let key = path.collision_key();
        let parent = key.match_indices('/').find_map(|(end, _)| seen.get(&key[..end]));
        if let Some(other) = parent {
            let wrong = format!("{} lies beneath the file {}", show(&file.path), show(other));
            return Err(Refusal::spec(&format!("{FIELD}[{at}].path"), wrong, "paths of which none is a directory of another"));
        }
    }
    Ok(())
}

fn collision(at: usize, path: &str, other: &str) -> Refusal {
    let field = format!("spec.source.inline.files[{at}].path");
    let wrong = if path == other {
        format!("{} is there twice", show(path))
    } else {
        format!("{} and {} are one file on some file systems", show(path), show(other))
    };
    Refusal::spec(&field, wrong, "paths that differ by more than letter case and Unicode composition")
}

/// Judge a list of checks; `field` names it.
pub fn checks(field: &str, checks: &[Check]) -> Result<(), Refusal> {
    if checks.len() > MAX_CHECKS {
        return Err(Refusal::spec(field, format!("has {} checks", checks.len()), format!("0 to {MAX_CHECKS}")));
    }
    for (at, check) in checks.iter().enumerate() {
        if !is_dns_label(&check.name) {
            return Err(Refusal::spec(
                &format!("{field}[{at}].name"),
                format!("{} is no DNS label", show(&check.name)),
                "1 to 63 of a-z, 0-9 and '-', not at an end",
            ));
        }
        if checks[..at].iter().any(|other| other.name == check.name) {
            return Err(Refusal::spec(&format!("{field}[{at}].name"), format!("{} is there twice", show(&check.name)), "unique names"));
        }
        let argument = |arg: &String| arg.chars().count() <= MAX_ARG_CHARS && !arg.contains('\0');
        let program = check.argv.first().is_some_and(|first| !first.is_empty());
        let bytes: usize = check.argv.iter().map(String::len).sum();
        if !program || check.argv.len() > MAX_ARGV || bytes > MAX_ARGV_BYTES || !check.argv.iter().all(argument) {
            return Err(Refusal::spec(
                &format!("{field}[{at}].argv"),
                format!("check {} has no runnable argv", show(&check.name)),
                format!(
                    "a program and its arguments: 1 to {MAX_ARGV} strings of at most {MAX_ARG_CHARS} characters without NUL, {MAX_ARGV_BYTES} bytes in all"
                ),
            ));
        }
    }
    Ok(())
}

fn is_dns_label(text: &str) -> bool {
    let middle = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(middle) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// Judge an image reference, no more than that it is one word.
pub fn image_reference(field: &str, image: &str) -> Result<(), Refusal> {
    if image.is_empty() || image.len() > 512 || !image.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Refusal::spec(field, format!("{} is no image reference", show(image)), "1 to 512 ASCII characters without spaces"));
    }
    Ok(())
}

/// Parse a wall time.
pub fn wall_time(field: &str, text: &str) -> Result<i64, Refusal> {
    let allowed = "1s to 24h, such as \"180s\", \"30m\" or \"1h30m\"";
    let seconds = quantity::seconds(text).map_err(|e| Refusal::spec(field, e, allowed))?;
    if !(1..=MAX_WALL_SECONDS).contains(&seconds) {
        return Err(Refusal::spec(field, format!("{} is out of range", show(text)), allowed));
    }
    Ok(seconds)
}

/// Judge a budget; `field` names it.
pub fn budget(field: &str, budget: Option<&BudgetSpec>) -> Result<(), Refusal> {
    let Some(BudgetSpec { requests, input_tokens, output_tokens, cost }) = budget else { return Ok(()) };
    for (name, value) in [("requests", requests), ("inputTokens", input_tokens), ("outputTokens", output_tokens)] {
        if let Some(value) = value {
            at_least(&format!("{field}.{name}"), *value, 1)?;
        }
    }
    if let Some(text) = cost {
        money(&format!("{field}.cost"), text)?;
    }
    Ok(())
}

/// Parse a cost limit, in millionths.
pub fn money(field: &str, text: &str) -> Result<i64, Refusal> {
    let allowed = "a decimal above 0 such as \"0.50\", at most 6 decimals";
    match quantity::micros(text) {
        Ok(micros) if micros > 0 => Ok(micros),
        Ok(_) => Err(Refusal::spec(field, format!("{} is not above 0", show(text)), allowed)),
        Err(e) => Err(Refusal::spec(field, e, allowed)),
    }
}

fn at_least(field: &str, value: i64, least: i64) -> Result<(), Refusal> {
    if value < least {
        return Err(Refusal::spec(field, value, format!("{least} or more")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(change: impl FnOnce(&mut Value)) -> AgentRunSpec {
        let mut value = json!({
            "instruction": "Fix it.", "model": "small",
            "source": {"inline": {"files": [{"path": "a.py", "content": "x"}]}},
            "checks": [{"name": "unit", "argv": ["python3"]}],
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn good_specs_pass() {
        assert_eq!(check(&spec(|_| ())), Ok(()));
        assert_eq!(check(&spec(|v| v["instruction"] = json!("ä".repeat(32_000)))), Ok(()));
        assert_eq!(check(&spec(|v| v["checks"] = json!([]))), Ok(()));
        assert_eq!(check(&spec(|v| v["source"] = json!({"archive": {"digest": format!("sha256:{}", "0a".repeat(32))}}))), Ok(()));
        assert_eq!(
            check(&spec(|v| v["source"] = json!({"git": {"url": "https://git.test/org/shop.git", "ref": "v1", "subPath": "a/b"}}))),
            Ok(())
        );
        assert_eq!(check(&spec(|v| v["rerunKey"] = json!("2026-01-01/a"))), Ok(()));
        assert_eq!(check(&spec(|v| v["allowedPaths"] = json!(["a.py", "new/**", "**"]))), Ok(()));
        assert_eq!(check(&spec(|v| v["limits"] = json!({"wallTime": "24h", "budget": {"cost": "0.000001", "requests": 1}}))), Ok(()));
    }

    #[test]
    fn each_bad_spec_is_refused_by_its_field() {
        let files = |files: Value| spec(move |v| v["source"]["inline"]["files"] = files);
        let file = |path: &str| json!({"path": path, "content": ""});
        let big = "x".repeat(64_000);
        let rows: Vec<(&str, AgentRunSpec)> = vec![
            ("spec.instruction", spec(|v| v["instruction"] = json!(""))),
            ("spec.instruction", spec(|v| v["instruction"] = json!("x".repeat(32_001)))),
            ("spec.instruction", spec(|v| v["instruction"] = json!("a\u{0}b"))),
            ("spec.instruction", spec(|v| v["instruction"] = json!("a\u{1b}[31m"))),
            ("spec.source", spec(|v| v["source"] = json!({}))),
            ("spec.source: ", spec(|v| v["source"]["archive"] = json!({"digest": format!("sha256:{}", "0".repeat(64))}))),
            ("spec.source.archive.digest", spec(|v| v["source"] = json!({"archive": {"digest": format!("sha256:{}", "A".repeat(64))}}))),
            ("spec.source.archive.digest", spec(|v| v["source"] = json!({"archive": {"digest": "sha256:00"}}))),
            ("spec.source.git.url", spec(|v| v["source"] = json!({"git": {"url": "https://me:key@git.test/shop"}}))),
            ("spec.source.git.url", spec(|v| v["source"] = json!({"git": {"url": "file:///etc"}}))),
            ("spec.source.git.ref", spec(|v| v["source"] = json!({"git": {"url": "https://git.test/shop", "ref": "--upload-pack=x"}}))),
            ("spec.source.git.subPath", spec(|v| v["source"] = json!({"git": {"url": "https://git.test/shop", "subPath": "../x"}}))),
            ("spec.approvals.rules[0].decision", spec(|v| v["approvals"] = json!({"rules": [{"decision": "Allow"}]}))),
            ("spec.rerunKey", spec(|v| v["rerunKey"] = json!(""))),
            ("spec.rerunKey", spec(|v| v["rerunKey"] = json!("a b"))),
            ("spec.submittedBy", spec(|v| v["submittedBy"] = json!("a\u{1b}[31m"))),
            ("spec.submittedFor", spec(|v| v["submittedFor"] = json!("x".repeat(513)))),
            ("spec.source.inline.files", files(json!([]))),
            ("spec.source.inline.files", files(json!((0..33).map(|n| file(&n.to_string())).collect::<Vec<_>>()))),
            ("spec.source.inline.files[0].path", files(json!([file("/etc/passwd")]))),
            ("spec.source.inline.files[0].path", files(json!([file("a/../b")]))),
            ("spec.source.inline.files[0].path", files(json!([file(".GIT/config")]))),
            ("spec.source.inline.files[0].path", files(json!([file("a\u{202e}b")]))),
            ("spec.source.inline.files[1].path", files(json!([file("a"), file("a")]))),
            ("spec.source.inline.files[1].path", files(json!([file("a/B.py"), file("A/b.py")]))),
            ("spec.source.inline.files[1].path", files(json!([file("caf\u{e9}"), file("cafe\u{301}")]))),
            ("spec.source.inline.files[1].path", files(json!([file("a"), file("A/b")]))),
            ("spec.source.inline.files[0].content", files(json!([{"path": "a", "content": format!("{big}x")}]))),
            (
                "spec.source.inline.files: ",
                files(json!([{"path": "a", "content": big}, {"path": "b", "content": big}, {"path": "c", "content": "x"}])),
            ),
            ("spec.allowedPaths[1]", spec(|v| v["allowedPaths"] = json!(["a", "../b"]))),
            ("spec.allowedPaths", spec(|v| v["allowedPaths"] = json!([]))),
            (
                "spec.checks: ",
                spec(|v| v["checks"] = json!((0..9).map(|n| json!({"name": n.to_string(), "argv": ["x"]})).collect::<Vec<_>>())),
            ),
            ("spec.checks[0].name", spec(|v| v["checks"][0]["name"] = json!("Unit"))),
            ("spec.checks[1].name", spec(|v| v["checks"] = json!([{"name": "a", "argv": ["x"]}, {"name": "a", "argv": ["y"]}]))),
            ("spec.checks[0].argv", spec(|v| v["checks"][0]["argv"] = json!([]))),
            ("spec.checks[0].argv", spec(|v| v["checks"][0]["argv"] = json!([""]))),
            ("spec.checks[0].argv", spec(|v| v["checks"][0]["argv"] = json!(["a", "b\u{0}"]))),
            ("spec.model", spec(|v| v["model"] = json!(""))),
            ("spec.agent.image", spec(|v| v["agent"] = json!({"image": "a b"}))),
            ("spec.limits.maxSteps", spec(|v| v["limits"] = json!({"maxSteps": 0}))),
            ("spec.limits.wallTime", spec(|v| v["limits"] = json!({"wallTime": "0s"}))),
            ("spec.limits.wallTime", spec(|v| v["limits"] = json!({"wallTime": "25h"}))),
            ("spec.limits.wallTime", spec(|v| v["limits"] = json!({"wallTime": "soon"}))),
            ("spec.limits.budget.requests", spec(|v| v["limits"] = json!({"budget": {"requests": 0}}))),
            ("spec.limits.budget.inputTokens", spec(|v| v["limits"] = json!({"budget": {"inputTokens": -1}}))),
            ("spec.limits.budget.cost", spec(|v| v["limits"] = json!({"budget": {"cost": "0.00"}}))),
            ("spec.limits.budget.cost", spec(|v| v["limits"] = json!({"budget": {"cost": "1e9"}}))),
            ("spec.ttlSecondsAfterFinished", spec(|v| v["ttlSecondsAfterFinished"] = json!(-1))),
        ];
        for (field, spec) in rows {
            let refusal = check(&spec).expect_err(field);
            assert_eq!(refusal.reason, Reason::InvalidSpec, "{field}");
            assert!(refusal.message.starts_with(field), "{field} is not named in {}", refusal.message);
            assert!(refusal.message.contains("allowed: "), "{}", refusal.message);
            assert!(!refusal.message.chars().any(|c| c.is_control()), "{}", refusal.message);
        }
    }
}
