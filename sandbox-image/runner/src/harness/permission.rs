//! An agent's question as the action that people decide on: the tool in the words of approval rules, a shell command as argv
//! where it can only mean that, and the arguments byte for byte.

use std::sync::Arc;

use agentrun_crds::agent_template::ToolName;
use agentrun_crds::paths::RelativePath;
use agentrun_protocol::{approval::Action, event::EventType, job::JobApprovals};
use serde_json::{Value, json};

use super::{field, trouble::Calls};
use crate::{
    approval_action::text,
    approvals::{Approvals, Clearance},
    deadline::Deadline,
    events::Events,
    executor::Executor,
    gateway::Gateway,
};

const WORKSPACE: &str = "/workspace/";
/// Longest name of a tool.
const MAX_NAME: usize = 64;

/// Who decides on an agent's questions.
pub struct Bridge {
    pub gateway: Gateway,
    pub executor: Executor,
    pub events: Events,
    pub deadline: Deadline,
    /// `None`: nothing needs a person.
    pub rules: Option<JobApprovals>,
    pub tools: Vec<ToolName>,
    pub calls: Arc<Calls>,
}

impl Bridge {
    /// Wait until it is decided. `Err`: what the agent is told instead of being let go on.
    pub async fn decide(&self, tool: &str, arguments: &Value) -> Result<(), String> {
        let Some(rules) = &self.rules else { return Ok(()) };
        let action = action(&self.tools, tool, arguments)?;
        let Bridge { gateway, executor, events, deadline, .. } = self;
        let approvals = Approvals { gateway, executor, events, deadline, rules };
        match approvals.clear(&action).await.map_err(|error| error.to_string())? {
            Clearance::Free => Ok(()),
            Clearance::Allowed(id) => {
                // The agent performs it, not we: all that is known is that it was let go on.
                let event = json!({"step": self.calls.steps(), "tool": action.tool, "ok": true, "output": "allowed; the agent performs it",
                    "truncated": false, "approvalId": id});
                events.emit(EventType::ToolResult, event);
                Ok(())
            }
            Clearance::Refused(why) => {
                events.note(format!("the agent may not use {}: {why}", crate::clip::printable(&action.tool)));
                Err(why)
            }
        }
    }
}

/// What is asked for.
fn action(tools: &[ToolName], tool: &str, arguments: &Value) -> Result<Action, String> {
    let known = tools.iter().find(|known| known.name == tool);
    let name = known.map_or(tool, |known| &known.known_as);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return Err(format!(
            "not done: a tool of this name cannot be asked for: {}",
            crate::clip::first_chars(&crate::clip::printable(name), 80)
        ));
    }
    let at = |path: Option<&String>| path.map(|path| field::text(arguments, path)).filter(|found| !found.is_empty());
    let command = at(known.and_then(|known| known.command.as_ref()));
    let path = at(known.and_then(|known| known.path.as_ref()));
    let path = match &path {
        None => None,
        Some(path) => {
            let below = path.strip_prefix(WORKSPACE).unwrap_or(path);
            let below = below.strip_prefix("./").unwrap_or(below);
            if RelativePath::parse(below).is_err() {
                let shown = crate::clip::first_chars(&crate::clip::printable(path), 200);
                return Err(format!("not done: {shown} is no file of the workspace, and only those can be asked for"));
            }
            Some(below.to_owned())
        }
    };
    Ok(Action {
        tool: name.to_owned(),
        argv: command.map(|command| argv(&command)).unwrap_or_default(),
        cwd: String::new(),
        path,
        texts: vec![text("arguments", &arguments.to_string())],
        files: Vec::new(),
    })
}

/// A line that any shell takes for these words and nothing else, as these words; any other as a shell's argument.
fn argv(line: &str) -> Vec<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_@%+=:,./- ".contains(&b);
    let words: Vec<String> = line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    match words.first() {
        Some(first) if line.bytes().all(plain) && !first.contains('=') => words,
        _ => vec!["sh".into(), "-c".into(), line.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_words_only_where_it_can_be_nothing_else() {
        for (line, words) in [
            ("ls -la  src", vec!["ls", "-la", "src"]),
            ("git log --format=%s", vec!["git", "log", "--format=%s"]),
            ("A=b ls", vec!["sh", "-c", "A=b ls"]),
            ("ls; rm -rf x", vec!["sh", "-c", "ls; rm -rf x"]),
            ("echo 'a'", vec!["sh", "-c", "echo 'a'"]),
            ("ls\nrm x", vec!["sh", "-c", "ls\nrm x"]),
            ("ls ~", vec!["sh", "-c", "ls ~"]),
            ("", vec!["sh", "-c", ""]),
        ] {
            assert_eq!(argv(line), words, "{line:?}");
        }
    }

    #[test]
    fn a_question_becomes_an_action_with_all_of_its_bytes() {
        let tool = |name: &str, known_as: &str, command: Option<&str>, path: Option<&str>| ToolName {
            name: name.into(),
            known_as: known_as.into(),
            command: command.map(Into::into),
            path: path.map(Into::into),
        };
        let tools = [tool("Bash", "run_command", Some("command"), None), tool("Write", "write_file", None, Some("file_path"))];
        let asked = action(&tools, "Bash", &json!({"command": "rm -rf build", "description": "clean"})).unwrap();
        assert_eq!((asked.tool.as_str(), asked.argv.join("|").as_str()), ("run_command", "rm|-rf|build"));
        assert_eq!(asked.texts[0].inline.as_deref(), Some(r#"{"command":"rm -rf build","description":"clean"}"#));
        let asked = action(&tools, "Write", &json!({"file_path": "/workspace/src/a", "content": "x"})).unwrap();
        assert_eq!((asked.tool.as_str(), asked.path.as_deref(), asked.argv.len()), ("write_file", Some("src/a"), 0));
        let asked = action(&tools, "WebFetch", &json!({"url": "x"})).unwrap();
        assert_eq!((asked.tool.as_str(), asked.path), ("WebFetch", None));
        for (tool, arguments, why) in [
            ("Write", json!({"file_path": "/etc/passwd"}), "no file of the workspace"),
            ("Write", json!({"file_path": "../x"}), "no file of the workspace"),
            ("a tool", json!({}), "of this name"),
            ("", json!({}), "of this name"),
        ] {
            assert!(action(&tools, tool, &arguments).unwrap_err().contains(why), "{tool}");
        }
    }
}
