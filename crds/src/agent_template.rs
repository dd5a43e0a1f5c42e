//! `AgentTemplate`: a recipe by which a command-line agent (a harness) is run in the sandbox. Pure data; lives in the gateway's
//! namespace only. The bounds and rules of its schema stand in `schema/agent_template.rs`.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::model_provider::Dialect;

/// How one command-line agent is run. A run names it in `agent.harness`, and its namespace's policy must list it in `harnesses`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns share their types")]
#[kube(
    group = "agentrun.dev",
    version = "v1alpha1",
    kind = "AgentTemplate",
    namespaced,
    category = "agents",
    doc = "How one command-line agent is run.",
    printcolumn(name = "Dialect", type_ = "string", json_path = ".spec.dialect"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Permissions", type_ = "string", json_path = ".spec.permissions.bridge"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AgentTemplateSpec {
    /// Image with the agent and the tools that it needs, for runs that name none; need not be in the policy's `images`. Unset:
    /// the policy's `defaultImage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The wire format that the agent speaks; the model's provider must speak it too.
    pub dialect: Dialect,
    /// Program and arguments, run without a shell in the workspace, with placeholders.
    pub command: Vec<String>,
    /// Variables for the program, with placeholders, besides the few that every command gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<Variable>,
    /// Files that are written before the program starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<HomeFile>,
    /// How what the program says becomes events.
    #[serde(default)]
    pub output: Output,
    /// How the agent asks before it acts.
    #[serde(default)]
    pub permissions: Permissions,
}

/// One variable.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// A file beneath the agent's home directory.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HomeFile {
    /// Relative to the home directory.
    pub path: String,
    /// Text, with placeholders but for the prompt.
    pub content: String,
}

/// What the program writes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    #[serde(default)]
    pub format: OutputFormat,
    /// For `JSONLines`: what a line means. Each rule that matches gives its event; a line that none matches gives none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<OutputRule>,
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// Text for people; shown as it is.
    #[default]
    Text,
    /// One JSON object a line on standard output.
    JSONLines,
}

/// What some lines mean. Paths are like `message.content[*].text`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OutputRule {
    /// All of these must hold of the line.
    pub when: Vec<Match>,
    /// Judge each of the values at this path instead of the line once; the paths below start at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<String>,
    /// With `each`: all of these must hold of the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<Match>,
    /// What it is.
    pub event: LineEvent,
    /// Of `Message`, `ToolResult` and `Failure`: where the text is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Of `Message`: each is a piece of one, which goes on until another event comes. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Of `ToolCall` and `ToolResult`: where the tool's name is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Of `ToolCall`: where its arguments are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// Of `ToolResult`: where it says whether the tool failed; `true` and `error` mean that it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A value at a path.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    pub path: String,
    /// The value as text, such as `assistant`, `true` or `3`; `*` for any.
    pub equals: String,
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEvent {
    /// The agent said something. The last one is the run's message.
    Message,
    /// The agent uses a tool.
    ToolCall,
    /// What came of it.
    ToolResult,
    /// The agent itself says that it failed, whatever its exit status.
    Failure,
}

/// How the agent asks for permission.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Permissions {
    #[serde(default)]
    pub bridge: Bridge,
    /// For `Hook`: the form of question and answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookForm>,
    /// The agent's tools in the words of approval rules. A tool that is not here keeps its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolName>,
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bridge {
    /// It does not ask. A run whose rules ask or deny is refused with such a template.
    #[default]
    None,
    /// It posts a JSON question to `$(hookURL)` before each use of a tool, itself or by a command, and obeys the answer.
    Hook,
}

/// The JSON of questions and answers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HookForm {
    /// Path of the tool's name in the question.
    pub tool: String,
    /// Path of the tool's arguments.
    pub arguments: String,
    /// Answer that lets it go on; JSON.
    pub allow: String,
    /// Answer that refuses; JSON, in which `$(reason)` within a string is replaced by the reason.
    pub deny: String,
}

/// One of the agent's tools.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ToolName {
    /// The agent's name for it.
    pub name: String,
    /// The name in approval rules, such as `run_command` or `write_file`.
    pub known_as: String,
    /// Path of a shell command within the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Path of a file's name within the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Placeholders of commands, variables and files, `$(name)`.
pub const PLACEHOLDERS: &[&str] = &["prompt", "model", "modelURL", "hookURL", "key", "home", "workspace"];

impl AgentTemplateSpec {
    /// What the schema cannot say; the message names the field.
    pub fn check(&self) -> Result<(), String> {
        for (at, argument) in self.command.iter().enumerate() {
            known(argument, true).map_err(|wrong| format!("spec.command[{at}]: {wrong}"))?;
        }
        for variable in &self.environment {
            known(&variable.value, true).map_err(|wrong| format!("spec.environment[{}]: {wrong}", variable.name))?;
        }
        for file in &self.files {
            known(&file.content, false).map_err(|wrong| format!("spec.files[{}]: {wrong}", file.path))?;
        }
        let prompt = |text: &String| text.contains("$(prompt)");
        if !self.command.iter().any(prompt) && !self.environment.iter().any(|variable| prompt(&variable.value)) {
            return Err("spec.command: $(prompt) stands nowhere, so the agent would not learn its task".into());
        }
        if let Some(hook) = &self.permissions.hook {
            for (field, text) in [("allow", &hook.allow), ("deny", &hook.deny)] {
                if serde_json::from_str::<serde_json::Value>(text).is_err() {
                    return Err(format!("spec.permissions.hook.{field}: is not JSON"));
                }
            }
        }
        Ok(())
    }
}

/// Whether each placeholder of a text is one. `strict` refuses unknown names; files may hold `$(…)` of their own.
fn known(text: &str, strict: bool) -> Result<(), String> {
    for (at, _) in text.match_indices("$(") {
        let Some((name, _)) = text[at + 2..].split_once(')') else { continue };
        if strict && !PLACEHOLDERS.contains(&name) {
            return Err(format!("$({name}) is no placeholder; allowed: {}", PLACEHOLDERS.join(", ")));
        }
        if !strict && name == "prompt" {
            return Err("$(prompt) may stand in command and environment only".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_the_schema_cannot_say() {
        let check = |change: &dyn Fn(&mut Value)| {
            let mut spec = json!({"dialect": "OpenAIChat", "command": ["a", "--model=$(model)", "$(prompt)"],
                "files": [{"path": "run.sh", "content": "x=$(date) $(model)"}],
                "permissions": {"bridge": "Hook", "hook": {"tool": "t", "arguments": "a", "allow": "{}", "deny": "{}"}}});
            change(&mut spec);
            serde_json::from_value::<AgentTemplateSpec>(spec).unwrap().check()
        };
        assert_eq!(check(&|_| {}), Ok(()));
        type Change = Box<dyn Fn(&mut Value)>;
        let set =
            |pointer: &'static str, value: Value| -> Change { Box::new(move |spec| *spec.pointer_mut(pointer).unwrap() = value.clone()) };
        for (part, change) in [
            ("spec.command[1]: $(modelUrl) is no placeholder", set("/command/1", json!("$(modelUrl)"))),
            ("spec.command: $(prompt) stands nowhere", set("/command", json!(["a"]))),
            ("spec.environment[X]: $(x)", Box::new(|spec| spec["environment"] = json!([{"name": "X", "value": "$(x)"}]))),
            ("spec.files[run.sh]: $(prompt) may stand", set("/files/0/content", json!("$(prompt)"))),
            ("spec.permissions.hook.deny: is not JSON", set("/permissions/hook/deny", json!("{"))),
        ] {
            let refused = check(&*change).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
