//! A script: what the model says turn by turn, and what goes wrong on the way. Plain data, read from JSON.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most turns of a script.
const MAX_TURNS: usize = 256;

/// The scripts that are part of the program.
const BUILT_IN: &[&str] = &[include_str!("../scripts/fix-discount.json"), include_str!("../scripts/echo.json")];

/// One conversation. Chosen by `[script:NAME]` in the first system or user message, else by the model asked for: its
/// name, `scripted/` and its name, or one of `models`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    pub name: String,
    /// Further model names that choose this script.
    #[serde(default)]
    pub models: Vec<String>,
    /// The bearer key that this script wants, in place of the server's.
    #[serde(default)]
    pub key: Option<String>,
    /// The n-th is given when the request holds n messages of the assistant; the last one also from there on.
    pub turns: Vec<Turn>,
}

/// One answer of the model.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Turn {
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default)]
    pub usage: Usage,
    /// All that apply do so together.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

/// A call of one of the agent's tools.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    pub name: String,
    /// Sent as its JSON text; a string is sent as it is, so that it can be malformed.
    pub arguments: Value,
}

/// What the answer says of its cost.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Usage {
    /// A token per four bytes.
    #[default]
    Computed,
    /// No `usage` at all, and no usage chunk.
    Missing,
    /// Exactly this value.
    Raw(Value),
}

/// Something that goes wrong, in the first `times` tries of the same request, or always.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    #[serde(flatten)]
    pub kind: FaultKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// What goes wrong.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "fault", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum FaultKind {
    /// Wait before the status line.
    DelayHeader { ms: u64 },
    /// Wait before each chunk of the body.
    Slow { ms_per_chunk: u64 },
    /// End the connection after so many chunks, in the middle of the body.
    Cut { after_chunks: usize },
    /// A stream that ends properly but without `data: [DONE]`.
    NoDone,
    /// An error answer.
    Status {
        code: u16,
        /// `Retry-After`, as it is.
        #[serde(default)]
        retry_after: Option<String>,
        /// Put the bearer key into the error's message, as some providers do.
        #[serde(default)]
        echo_key: bool,
    },
    /// A well-formed answer with so many bytes of padding in one string.
    HugeBody { bytes: u64 },
    /// Not JSON.
    Malformed,
    /// 307 to another place.
    Redirect { location: String },
    /// Chunks of text for ever.
    Endless { ms_per_chunk: u64 },
}

impl Script {
    /// The scripts that are part of the program.
    pub fn built_in() -> Vec<Script> {
        BUILT_IN.iter().map(|text| Script::parse(text).expect("a test reads every built-in script")).collect()
    }

    /// Read and check a script.
    pub fn parse(text: &str) -> Result<Script, String> {
        let script: Script = serde_json::from_str(text).map_err(|error| format!("not a script: {error}"))?;
        script.check()?;
        Ok(script)
    }

    /// Bounds that the type does not state.
    pub fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > 128 || self.name.contains(|c: char| c.is_whitespace() || c == ']' || c.is_control()) {
            return Err("name: must have 1 to 128 bytes without blanks and ']'".into());
        }
        if self.turns.is_empty() || self.turns.len() > MAX_TURNS {
            return Err(format!("turns: there must be 1 to {MAX_TURNS}, not {}", self.turns.len()));
        }
        for (at, turn) in self.turns.iter().enumerate() {
            for fault in &turn.faults {
                if let FaultKind::Status { code, .. } = &fault.kind
                    && !(400..600).contains(code)
                {
                    return Err(format!("turns[{at}].faults: status {code} is not an error; 400 to 599 are"));
                }
            }
        }
        Ok(())
    }

    /// A script of these turns.
    pub fn new(name: impl Into<String>, turns: impl IntoIterator<Item = Turn>) -> Script {
        Script { name: name.into(), turns: turns.into_iter().collect(), ..Script::default() }
    }
}

impl Turn {
    /// A final answer.
    pub fn say(text: impl Into<String>) -> Turn {
        Turn { text: Some(text.into()), ..Turn::default() }
    }

    /// One tool call without a word.
    pub fn call(name: impl Into<String>, arguments: Value) -> Turn {
        Turn { tool_calls: vec![ToolCall { name: name.into(), arguments }], ..Turn::default() }
    }

    /// With a fault in every try.
    pub fn with(mut self, kind: FaultKind) -> Turn {
        self.faults.push(Fault { kind, times: None });
        self
    }

    /// With a fault in the first `times` tries.
    pub fn with_first(mut self, times: u64, kind: FaultKind) -> Turn {
        self.faults.push(Fault { kind, times: Some(times) });
        self
    }

    /// With this usage in place of the computed one.
    pub fn with_usage(mut self, usage: Usage) -> Turn {
        self.usage = usage;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_script_reads() {
        for text in BUILT_IN {
            Script::parse(text).unwrap();
        }
    }

    #[test]
    fn bad_scripts_are_refused() {
        for (text, why) in [
            ("{", "not a script"),
            (r#"{"name":"a","turns":[]}"#, "turns"),
            (r#"{"name":"","turns":[{}]}"#, "name"),
            (r#"{"name":"a]","turns":[{}]}"#, "name"),
            (r#"{"name":"a","turns":[{"texts":"x"}]}"#, "texts"),
            (r#"{"name":"a","turns":[{"faults":[{"fault":"status","code":200}]}]}"#, "status 200"),
            (r#"{"name":"a","turns":[{"faults":[{"fault":"nonsense"}]}]}"#, "nonsense"),
        ] {
            let error = Script::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_script_survives_json() {
        let script = Script::new(
            "x",
            [
                Turn::say("hello").with_first(2, FaultKind::Status { code: 500, retry_after: None, echo_key: true }),
                Turn::call("list", serde_json::json!({"path": "."})).with(FaultKind::Slow { ms_per_chunk: 3 }).with_usage(Usage::Missing),
            ],
        );
        assert_eq!(Script::parse(&serde_json::to_string(&script).unwrap()), Ok(script));
    }
}
