//! Approvals between runner and gateway: the action that waits, the record of it, and its consumption. What a person decides
//! on is bound to `ActionDocument::digest`, over everything that will be performed.

use agentrun_crds::agent_run_status::ApprovalState;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest text of an action that travels inside it; a longer one is uploaded as a blob first.
pub const MAX_INLINE_BYTES: usize = 16 * 1024;
/// Most texts and most files of an action.
pub const MAX_PARTS: usize = 32;
/// Largest body of a request for approval, in bytes.
pub const MAX_ASK_BYTES: usize = 256 * 1024;
/// Longest wait of one poll, in seconds.
pub const MAX_WAIT_SECONDS: u64 = 25;

/// What the runner is about to perform, exactly.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Action {
    /// The tool's name.
    pub tool: String,
    /// A command's program and arguments; empty for other tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// A command's directory, relative to the workspace; empty is its top.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// Of what acts on a file; relative to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The texts that the tool takes, such as `content`, or `old_text` and `new_text`, in the tool's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<ActionText>,
    /// Files of the workspace that the action rests on, as they are now: a script that argv names, the file that is edited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ActionFile>,
}

/// One text, known by its content.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionText {
    pub name: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: i64,
    /// The text itself, up to `MAX_INLINE_BYTES`; absent if it was uploaded as a blob. Not part of the digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
}

/// A file as it was when the action was asked for.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionFile {
    pub path: String,
    /// `sha256:` and 64 hex digits; absent: there is no such file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What is hashed, stored as a blob of the run, and shown from: the action without its inline texts, and where it belongs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionDocument {
    /// 1.
    pub version: u32,
    pub run_uid: String,
    pub attempt: i64,
    /// SHA-256 (hex) of the policy that the run was accepted under.
    pub policy_sha256: String,
    pub action: Action,
}

impl ActionDocument {
    pub fn new(run_uid: &str, attempt: i64, policy_sha256: &str, action: &Action) -> Self {
        let mut action = action.clone();
        for text in &mut action.texts {
            text.inline = None;
        }
        ActionDocument { version: 1, run_uid: run_uid.into(), attempt, policy_sha256: policy_sha256.into(), action }
    }

    /// The bytes that are stored; fields in the order of the types, no spaces.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a document is plain data")
    }

    /// SHA-256 (hex) of the bytes: the digest that a decision is bound to.
    pub fn digest(&self) -> String {
        Sha256::digest(self.bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// POST `routes::APPROVALS`. Asking again for the same action while it is pending or allowed gives the same record.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskRequest {
    pub action: Action,
}

/// A record as the runner sees it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAnswer {
    pub id: i64,
    pub digest: String,
    pub state: ApprovalState,
    /// Unix seconds.
    pub expires_at: i64,
    /// What the decider said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The run's deadline as it stands now, waiting included; Unix seconds.
    pub deadline: i64,
}

/// POST `<APPROVALS>/{id}/consume`: the action as it will be performed now, and who performs it. Granted once; the same
/// execution id again is harmless; an action with another digest is refused.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConsumeRequest {
    /// 1 to 128 characters of `[A-Za-z0-9._-]`, made afresh for each execution.
    pub execution_id: String,
    pub action: Action,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action() -> Action {
        let digest = format!("sha256:{}", "0".repeat(64));
        Action {
            tool: "run_command".into(),
            argv: vec!["sh".into(), "a.sh".into()],
            cwd: "src".into(),
            path: Some("a".into()),
            texts: vec![ActionText { name: "content".into(), digest: digest.clone(), bytes: 1, inline: Some("x".into()) }],
            files: vec![ActionFile { path: "src/a.sh".into(), digest: Some(digest) }],
        }
    }

    #[test]
    fn every_part_changes_the_digest_and_the_inline_text_does_not() {
        let document = |change: &dyn Fn(&mut Action)| {
            let mut action = action();
            change(&mut action);
            ActionDocument::new("uid", 1, "policy", &action).digest()
        };
        let same = document(&|_| {});
        assert_eq!(same, document(&|action| action.texts[0].inline = None));
        let changes: Vec<&dyn Fn(&mut Action)> = vec![
            &|action| action.tool.push('x'),
            &|action| action.argv = vec!["sh a.sh".into()],
            &|action| action.argv.swap(0, 1),
            &|action| action.cwd.clear(),
            &|action| action.path = None,
            &|action| action.texts[0].name.push('x'),
            &|action| action.texts[0].digest.replace_range(70.., "1"),
            &|action| action.texts[0].bytes = 2,
            &|action| action.files[0].path.push('x'),
            &|action| action.files[0].digest = None,
        ];
        for (row, change) in changes.iter().enumerate() {
            assert_ne!(same, document(change), "row {row}");
        }
        assert_ne!(same, ActionDocument::new("other", 1, "policy", &action()).digest());
        assert_ne!(same, ActionDocument::new("uid", 2, "policy", &action()).digest());
        assert_ne!(same, ActionDocument::new("uid", 1, "other", &action()).digest());
    }
}
