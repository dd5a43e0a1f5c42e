//! `AgentRun`: one instruction, one source tree, one sandbox, one patch. The spec is immutable but for `cancel` and the
//! time to live. The bounds and rules of its schema stand in `schema/agent_run.rs`.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::agent_run_status::AgentRunStatus;
use crate::approval_rules::ApprovalRule;

/// What a developer, CI or GitOps asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns share their types")]
#[kube(
    group = "agentrun.dev",
    version = "v1alpha1",
    kind = "AgentRun",
    namespaced,
    status = "AgentRunStatus",
    shortname = "ar",
    category = "agents",
    doc = "One instruction, one source tree, one sandbox, one patch.",
    selectable = ".spec.model",
    selectable = ".status.phase",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model"),
    printcolumn(name = "Requests", type_ = "string", json_path = ".status.requestsText"),
    printcolumn(name = "Approvals", type_ = "integer", json_path = ".status.pendingApprovals"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".status.podRef.name", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Complete\")].reason", priority = 1),
    printcolumn(name = "Cost", type_ = "string", json_path = ".status.costText", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunSpec {
    /// What the agent is asked to do. 1 to 32,000 characters, no control characters but tab and newline.
    pub instruction: String,
    /// The source tree the agent works on.
    pub source: Source,
    /// Where the agent may change files: a file (`a/b.py`), a subtree (`a/**`) or everything (`**`, the default).
    #[serde(default = "everything")]
    pub allowed_paths: Vec<String>,
    /// What must hold at the end; each is run by argv, without a shell, in the workspace.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// The agent and its tools.
    #[serde(default)]
    pub agent: Agent,
    /// The name of a model that the namespace's policy offers.
    pub model: String,
    /// Bounds of this run; what is unset comes from defaults and the policy.
    #[serde(default)]
    pub limits: Limits,
    /// Larger runs first when the namespace's runs queue. Default 0.
    #[serde(default)]
    pub priority: i32,
    /// Delete the AgentRun so long after it finished. Unset: keep it.
    pub ttl_seconds_after_finished: Option<i64>,
    /// Ask the run to end. One way: once true it stays true.
    #[serde(default)]
    pub cancel: bool,
    /// What must wait for a person besides what the policy says.
    #[serde(default)]
    pub approvals: RunApprovals,
    /// Changed, it makes a run of the same name and spec run again after an earlier one was deleted.
    pub rerun_key: Option<String>,
    /// Who created the object; stamped at admission, whatever was sent.
    pub submitted_by: Option<String>,
    /// The person on whose behalf a service account submits.
    pub submitted_for: Option<String>,
}

impl AgentRunSpec {
    /// What people must say; the rest as if they had left it out.
    pub fn new(instruction: impl Into<String>, source: Source, model: impl Into<String>) -> Self {
        AgentRunSpec {
            instruction: instruction.into(),
            source,
            allowed_paths: everything(),
            checks: Vec::new(),
            agent: Agent::default(),
            model: model.into(),
            limits: Limits::default(),
            priority: 0,
            ttl_seconds_after_finished: None,
            cancel: false,
            approvals: RunApprovals::default(),
            rerun_key: None,
            submitted_by: None,
            submitted_for: None,
        }
    }
}

impl AgentRun {
    /// The current attempt has handed in its result, so that how the run ends is decided.
    pub fn has_result(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.result.as_ref().is_some_and(|result| Some(result.attempt) == status.attempt))
    }
}

/// A run can only tighten what its policy says.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunApprovals {
    /// Rules that ask or deny.
    #[serde(default)]
    pub rules: Vec<ApprovalRule>,
}

fn everything() -> Vec<String> {
    vec!["**".into()]
}

/// Exactly one member must be set.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Files given in the object itself.
    pub inline: Option<InlineSource>,
    /// A tree that is uploaded to the run after its creation; the run waits for it.
    pub archive: Option<ArchiveSource>,
    /// A commit of a git repository, which the gateway fetches before the sandbox is made.
    pub git: Option<GitSource>,
}

impl Source {
    /// Files in the object itself.
    pub fn inline(files: Vec<InlineFile>) -> Self {
        Source { inline: Some(InlineSource { files }), ..Source::default() }
    }

    /// An archive to be uploaded.
    pub fn archive(digest: String) -> Self {
        Source { archive: Some(ArchiveSource { digest }), ..Source::default() }
    }

    /// Whether the tree comes only after the run was accepted.
    pub fn comes_later(&self) -> bool {
        self.archive.is_some() || self.git.is_some()
    }
}

/// A repository of a host that the namespace's policy allows. Fetched over smart HTTP; the credential is the policy's to name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// `https://host[:port]/path`, without credentials or query.
    pub url: String,
    /// A branch, a tag, a full name such as `refs/pull/7/head`, or the 40 hex digits of a commit. Resolved once. Default `HEAD`,
    /// the repository's default branch.
    #[serde(rename = "ref", default = "head")]
    pub reference: String,
    /// The folder of the repository that becomes the workspace. Unset: all of it.
    pub sub_path: Option<String>,
}

fn head() -> String {
    "HEAD".into()
}

/// A tar archive of regular files, known by its content. `PUT` it to the run's `source`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveSource {
    /// `sha256:` and 64 hex digits, of the archive's bytes.
    pub digest: String,
}

/// 1 to 32 files, 64,000 bytes each, 128,000 bytes in all.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InlineSource {
    pub files: Vec<InlineFile>,
}

/// One UTF-8 text file.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InlineFile {
    /// Relative POSIX path beneath the workspace.
    pub path: String,
    /// The file's content.
    pub content: String,
    /// True gives mode 755, else 644.
    #[serde(default)]
    pub executable: bool,
}

/// A command whose exit status 0 means that the work is right.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// A DNS label, unique among the run's checks.
    pub name: String,
    /// Program and arguments; no shell is involved.
    pub argv: Vec<String>,
}

/// Who does the work, and with which tools.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Image with the tools that the agent needs; must match the policy's `images`. Unset: the policy's `defaultImage`.
    pub image: Option<String>,
    /// Name of an AgentTemplate that the policy lists in `harnesses`: a command-line agent that works in the sandbox. Unset: the
    /// built-in agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<String>,
}

/// Bounds of one run. A policy may lower them, or raise the ceilings up to those of this schema.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Model turns of the agent loop.
    pub max_steps: Option<i64>,
    /// Wall-clock time from the exchange to the result, such as `180s`, `30m`, `1h30m`.
    pub wall_time: Option<String>,
    /// What the run may spend on models.
    pub budget: Option<BudgetSpec>,
}

/// Hard ceilings on what models may cost. An unset dimension is taken from the policy, else unlimited, but for
/// `requests`, which defaults to `maxSteps + 2`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BudgetSpec {
    /// Model calls.
    pub requests: Option<i64>,
    /// Input tokens, cached ones included.
    pub input_tokens: Option<i64>,
    /// Output tokens, reasoning included.
    pub output_tokens: Option<i64>,
    /// Money in the provider's price unit, such as `"0.50"`; at most 6 decimals.
    pub cost: Option<String>,
}
