//! A patch as one mail, for `git am`: the instruction's first line is the subject, the run stands beneath it. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Longest subject in characters.
const MAX_SUBJECT: usize = 100;
/// Of a line of base64.
const LINE: usize = 76;

/// The mail.
pub fn of(run: &Value, patch: &[u8]) -> Vec<u8> {
    let text = |pointer: &str| run.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let commit = match text("/status/source/git/commit") {
        "" => "0000000000000000000000000000000000000000",
        commit => commit,
    };
    let date = date_of(text("/status/finishedAt"));
    let mut body = format!("AgentRun: {}/{}\n", text("/metadata/namespace"), text("/metadata/name"));
    let submitter = Some(text("/spec/submittedFor")).filter(|name| !name.is_empty()).unwrap_or(text("/spec/submittedBy"));
    if !submitter.is_empty() {
        body.push_str(&format!("Submitted-By: {}\n", one_line(submitter)));
    }
    let mut content = body.into_bytes();
    content.extend_from_slice(b"---\n\n");
    content.extend_from_slice(patch);
    content.extend_from_slice(b"-- \nagentrun\n");
    // Lines that end with a carriage return survive no mail but an encoded one.
    let encoded = patch.contains(&b'\r');
    let mut mail = format!(
        "From {commit} Mon Sep 17 00:00:00 2001\nFrom: AgentRun <agentrun@localhost>\nDate: {date}\nSubject: [PATCH] {}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: {}\n\n",
        subject(text("/spec/instruction")),
        if encoded { "base64" } else { "8bit" },
    )
    .into_bytes();
    if encoded {
        for line in STANDARD.encode(&content).as_bytes().chunks(LINE) {
            mail.extend_from_slice(line);
            mail.push(b'\n');
        }
    } else {
        mail.extend_from_slice(&content);
    }
    mail
}

/// RFC 2822; the beginning of time where the run has not ended.
fn date_of(finished: &str) -> String {
    let time = finished.parse::<jiff::Timestamp>().unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

/// One header line; as an encoded word where it is not plain ASCII.
fn subject(instruction: &str) -> String {
    let line = one_line(instruction.lines().find(|line| !line.trim().is_empty()).unwrap_or("Agent's changes").trim());
    let short: String = line.chars().take(MAX_SUBJECT).collect();
    let short = if short.len() < line.len() { format!("{}…", short.trim_end()) } else { short };
    if short.is_ascii() {
        return short;
    }
    // Words of an encoded header have at most 75 characters; each holds whole characters.
    let mut words: Vec<String> = vec![String::new()];
    for c in short.chars() {
        match words.last_mut() {
            Some(word) if word.len() + c.len_utf8() <= 42 => word.push(c),
            _ => words.push(c.to_string()),
        }
    }
    let words: Vec<String> = words.iter().map(|word| format!("=?UTF-8?B?{}?=", STANDARD.encode(word))).collect();
    words.join("\n ")
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use serde_json::json;

    use super::*;

    fn git(folder: &Path, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .current_dir(folder)
            .args(["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .expect("git runs");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn git_am_makes_a_commit_of_it() {
        let hostile = "Füge «€» hinzu: diff --git a/x b/x, und noch viel mehr Text, der über hundert Zeichen lang ist, bis er gekürzt wird\nFrom nobody\n---\ndiff";
        for (before, after, instruction) in [
            ("one\ntwo\n", "one\n2\n", "Fix it.\n\nWith care."),
            ("one\r\ntwo\r\n", "one\r\n2\r\n", hostile),
            ("From me\n-- \n", "From me\n-- \nFrom you\n---\n", "\n \nFrom x"),
            ("", "no line feed", "=?UTF-8?B?eA==?="),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let here = folder.path();
            git(here, &["init", "--quiet"]);
            std::fs::write(here.join("a.txt"), before).expect("written");
            git(here, &["-c", "core.autocrlf=false", "add", "."]);
            git(here, &["commit", "--quiet", "--message=base"]);
            std::fs::write(here.join("a.txt"), after).expect("written");
            let patch = git(here, &["diff", "--full-index", "--binary"]);
            git(here, &["checkout", "--quiet", "."]);
            let run = json!({
                "metadata": {"name": "fix", "namespace": "team"}, "spec": {"instruction": instruction, "submittedBy": "anna\nFrom: x"},
                "status": {"finishedAt": "2026-11-30T12:00:00Z"},
            });
            let mail = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(mail.path(), of(&run, patch.as_bytes())).expect("written");
            git(here, &["-c", "core.autocrlf=false", "am", "--quiet", mail.path().to_str().expect("UTF-8")]);
            assert_eq!(std::fs::read_to_string(here.join("a.txt")).expect("read"), after, "{instruction}");
            let said = git(here, &["log", "-1", "--format=%an|%ad|%B", "--date=iso-strict-local"]);
            assert!(said.starts_with("AgentRun|2026-11-30T"), "{said}");
            assert!(said.contains("AgentRun: team/fix") && said.contains("Submitted-By: anna From: x"), "{said}");
            assert_eq!(git(here, &["rev-list", "--count", "HEAD"]).trim(), "2");
        }
    }
}
