//! A template with its placeholders filled in: what is run, with which variables and files. Pure.

use agentrun_crds::agent_template::{AgentTemplateSpec, PLACEHOLDERS};
use agentrun_protocol::{executor::ExecStart, job::Job};

use crate::prompt::bounds;

/// Where the executor's container keeps the agent's state and the source.
const HOME: &str = "/home/agent";
const WORKSPACE: &str = "/workspace";
/// What stands for a key. The port drops it and adds the run's own token.
const DUMMY_KEY: &str = "agentrun";
/// Path of the port's hook.
pub const HOOK_PATH: &str = "/agentrun/hook";
/// Between SIGTERM and SIGKILL.
const GRACE_MS: u64 = 2_000;

/// What the placeholders stand for.
pub struct Values<'v> {
    pub prompt: &'v str,
    pub model: &'v str,
    /// `http://127.0.0.1:port`
    pub port: &'v str,
}

impl Values<'_> {
    fn of(&self, name: &str) -> Option<String> {
        Some(match name {
            "prompt" => self.prompt.to_owned(),
            "model" => self.model.to_owned(),
            "modelURL" => self.port.to_owned(),
            "hookURL" => format!("{}{HOOK_PATH}", self.port),
            "key" => DUMMY_KEY.to_owned(),
            "home" => HOME.to_owned(),
            "workspace" => WORKSPACE.to_owned(),
            _ => return None,
        })
    }

    /// The text with each placeholder replaced once; what stands for one is not looked at again.
    fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("$(") {
            filled.push_str(&rest[..at]);
            let value = rest[at + 2..].split_once(')').and_then(|(name, after)| Some((self.of(name)?, after)));
            (filled, rest) = match value {
                Some((value, after)) => (filled + &value, after),
                None => (filled + "$(", &rest[at + 2..]),
            };
        }
        filled + rest
    }
}

/// The command. It has no time limit of its own: it is ended when its run is.
pub fn command(template: &AgentTemplateSpec, values: &Values<'_>) -> ExecStart {
    debug_assert!(PLACEHOLDERS.iter().all(|name| values.of(name).is_some()));
    ExecStart {
        argv: template.command.iter().map(|word| values.fill(word)).collect(),
        env: template.environment.iter().map(|variable| (variable.name.clone(), values.fill(&variable.value))).collect(),
        // All of it is read here; what is kept of it is bounded here, too.
        max_output_bytes: u64::MAX,
        grace_ms: GRACE_MS,
        ..ExecStart::default()
    }
}

/// Files beneath the home directory: path and content.
pub fn files(template: &AgentTemplateSpec, values: &Values<'_>) -> Vec<(String, String)> {
    template.files.iter().map(|file| (file.path.clone(), values.fill(&file.content))).collect()
}

/// What the agent is asked to do. It never begins with a dash, so no program takes it for an option.
pub fn prompt(job: &Job) -> String {
    let mut text = format!("Task:\n{}\n", job.instruction);
    text.push_str(&bounds(job));
    text.push_str("\nYou work alone, with nobody to ask. There is no network. When the task is done, say in a few sentences what you changed and why.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placeholders_are_filled_once() {
        let values = Values { prompt: "do $(key) -- $(model)", model: "small", port: "http://127.0.0.1:1" };
        for (text, filled) in [
            ("$(prompt)", "do $(key) -- $(model)"),
            ("a$(model)b$(home)", "asmallb/home/agent"),
            ("$(modelURL)/v1 $(hookURL)", "http://127.0.0.1:1/v1 http://127.0.0.1:1/agentrun/hook"),
            ("$(date) $(", "$(date) $("),
            ("$($(key))", "$(agentrun)"),
            ("é$(workspace)é", "é/workspaceé"),
            ("", ""),
        ] {
            assert_eq!(values.fill(text), filled, "{text}");
        }
        let template: AgentTemplateSpec = serde_json::from_value(json!({
            "dialect": "OpenAIChat", "command": ["pi", "-p", "$(prompt)"], "environment": [{"name": "KEY", "value": "$(key)"}],
            "files": [{"path": "a.json", "content": "{\"m\": \"$(model)\"}"}],
        }))
        .unwrap();
        let start = command(&template, &values);
        assert_eq!((start.argv[2].as_str(), start.env["KEY"].as_str()), ("do $(key) -- $(model)", "agentrun"));
        assert_eq!(files(&template, &values), [("a.json".to_owned(), "{\"m\": \"small\"}".to_owned())]);
    }
}
