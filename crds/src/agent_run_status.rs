//! `AgentRun.status`: counters, digests and short summaries only, since its size is the price of every write.
//! Operator writes `conditions`, `phase`, `observedGeneration`, `resolved`, `attempt`, `podRef`, `ticketSha256`,
//! `startedAt`, `finishedAt`, `earlier`, `budget.limit` and `budget.gate` (closing also charges open reservations, see
//! `budget::Budget::close`); the gateway writes the rest.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::agent_run::Check;
use crate::agent_template::AgentTemplateSpec;
use crate::approval_rules::ApprovalRule;
use crate::budget::{Budget, Limit};
use crate::model_provider::Dialect;
use crate::network_probe::{NetworkEnforcement, NetworkProbe};

/// What is known of a run.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunStatus {
    /// Accepted, SandboxReady, Exchanged, BudgetAvailable, AwaitingApproval, Complete, Succeeded, Reconciling, Stalled, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation that `conditions` speak of; -1 until the operator's first look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// For people; computed. Terminal phases never change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What the operator resolved from spec and policy, frozen at acceptance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
    /// 1 for the first sandbox. Never falls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,
    /// The sandbox Pod of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_ref: Option<PodRef>,
    /// SHA-256 (hex) of the one-shot ticket of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_sha256: Option<String>,
    /// When the run left the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the run became terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The hard budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Who holds this attempt's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
    /// Decisions asked of people; a list-map by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Ids only grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_approval_id: Option<i64>,
    /// How often people were asked, and what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_totals: Option<ApprovalTotals>,
    /// How long the run has waited for people, the current wait not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<i64>,
    /// Since when at least one approval has been pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaiting_since: Option<Time>,
    /// The source that was uploaded, or fetched from git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<StoredSource>,
    /// Why the source could not be fetched from git; the run ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_failure: Option<SourceFailure>,
    /// What was stored beside the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<ArtifactTotals>,
    /// The validated result of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// The run of the same name and spec that had run before, if this one ended as AlreadyRan; its story is shown for this one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierRun>,
    /// For the REQUESTS column: `2/10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_text: Option<String>,
    /// For the COST column: `0.0123`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_text: Option<String>,
    /// For the APPROVALS column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_approvals: Option<i64>,
}

/// A run whose AgentRun is gone.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EarlierRun {
    /// Its UID, under which the gateway keeps its events and artifacts as long as retention says.
    pub run_uid: String,
    /// Its patch in the gateway's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<ArtifactRef>,
}

/// Computed for people; code branches on nothing but terminal or not.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Queued,
    Starting,
    Running,
    AwaitingApproval,
    Cancelling,
    Succeeded,
    Failed,
    Cancelled,
}

impl Phase {
    /// Nothing follows a terminal phase.
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed | Phase::Cancelled)
    }

    /// The word as it stands in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Queued => "Queued",
            Phase::Starting => "Starting",
            Phase::Running => "Running",
            Phase::AwaitingApproval => "AwaitingApproval",
            Phase::Cancelling => "Cancelling",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
            Phase::Cancelled => "Cancelled",
        }
    }
}

/// Frozen at acceptance: later edits of the policy or provider do not change a run that was accepted.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// SHA-256 (hex) over the policy's spec.
    pub policy_sha256: String,
    pub model: ResolvedModel,
    /// A model for embeddings, where the policy offers one beside the run's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<ResolvedModel>,
    pub image: String,
    /// Absent: the built-in agent works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<ResolvedHarness>,
    pub max_steps: i64,
    pub wall_time_seconds: i64,
    pub startup_deadline_seconds: i64,
    /// The ceilings that `budget.limit` gets when the run leaves the queue.
    pub budget: Limit,
    pub allowed_paths: Vec<String>,
    /// The policy's required checks first, then the run's own.
    pub checks: Vec<Check>,
    pub host_users: crate::agent_policy::HostUsers,
    #[serde(default)]
    pub network_enforcement: NetworkEnforcement,
    /// Absent: nothing needs approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ResolvedApprovals>,
    /// How the git source is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<ResolvedGit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    pub cpu: String,
    pub memory: String,
    pub workspace: String,
}

/// The template that the run named, as it was.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedHarness {
    pub name: String,
    /// Its spec, without the image.
    pub template: AgentTemplateSpec,
}

/// What the policy says of the run's repository.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedGit {
    /// Secret of the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    pub addresses: crate::agent_policy::Addresses,
    pub max_bytes: i64,
    pub timeout_seconds: i64,
    pub symlinks: crate::agent_policy::LeftOut,
    pub submodules: crate::agent_policy::LeftOut,
}

/// The rules of policy and run, as `approval_rules::judge` takes them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedApprovals {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy_rules: Vec<ApprovalRule>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_rules: Vec<ApprovalRule>,
    /// How long one approval waits.
    pub timeout_seconds: i64,
    /// How long the wall time may stand still in all; 0: it does not.
    pub max_pause_seconds: i64,
    pub submitter_may_approve: bool,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedModel {
    /// The name the run uses.
    pub name: String,
    /// ModelProvider in the gateway's namespace.
    pub provider: String,
    /// What it spoke when the run was accepted; absent in runs from before there was a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// The upstream's name.
    pub model: String,
    pub max_output_tokens: i64,
    /// Millionths of the price unit per million tokens; absent = unpriced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_micros_per_million: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_micros_per_million: Option<i64>,
    /// Input read from the provider's cache; absent = as other input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_micros_per_million: Option<i64>,
    /// Input written to it; absent = as other input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_micros_per_million: Option<i64>,
    /// Asked in this order when those before cannot answer; they speak the same dialect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<ResolvedFallback>,
}

/// A model at another provider; members as in `ResolvedModel`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedFallback {
    pub provider: String,
    pub model: String,
    pub max_output_tokens: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_micros_per_million: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_micros_per_million: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_micros_per_million: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_micros_per_million: Option<i64>,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    pub name: String,
    pub uid: String,
}

/// Written once an attempt by compare-and-swap.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Exchange {
    pub attempt: i64,
    /// base64url of the runner's Ed25519 public key.
    pub public_key: String,
    /// base64url of the nonce that every token of this attempt carries.
    pub nonce: String,
    /// When; Unix seconds. Token lifetimes count from here.
    pub at: i64,
    /// A second holder came with a valid ticket and Pod token but another key.
    #[serde(default)]
    pub compromised: bool,
    /// Walls that the runner attested, as short words such as `userNamespace`, `seccomp`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub walls: Vec<String>,
    /// What the runner tried to reach before it was given tokens, a list-map by target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<NetworkProbe>,
}

/// One decision asked of people.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    pub id: i64,
    /// SHA-256 (hex) of the exact bytes shown.
    pub digest: String,
    /// The tool asked for.
    pub kind: String,
    /// Made by us from those bytes; at most 256 characters.
    pub summary: String,
    pub requested_at: Time,
    pub expires_at: Time,
    pub state: ApprovalState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ApprovalScope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Time>,
    /// What the decider said; the agent is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who consumed it; repeating the consumption with the same id is harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<String>,
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalState {
    Pending,
    Allowed,
    Denied,
    Expired,
    Consumed,
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalScope {
    Once,
    Session,
}

/// Counters of approvals; they never fall, unlike the list, which final ones leave.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalTotals {
    pub asked: i64,
    pub allowed: i64,
    pub denied: i64,
    pub expired: i64,
}

/// An archive that was checked and stored.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StoredSource {
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: i64,
    pub files: i64,
    /// Where the archive was made from a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<FetchedCommit>,
}

/// The commit that a run starts from, in every attempt.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FetchedCommit {
    /// 40 hex digits.
    pub commit: String,
    /// Of the commit, or of `subPath` in it; 40 hex digits.
    pub tree: String,
    /// Of what was staged: `tree` without `omitted`. The runner makes sure of it.
    pub staged_tree: String,
    /// Symbolic links and submodules that the policy lets be left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<String>,
}

/// Entries of a tree that may be left out at most.
pub const MAX_OMITTED: usize = 64;

/// Why there is no source.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceFailure {
    /// For people; at most 1,024 characters.
    pub message: String,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactTotals {
    pub count: i64,
    pub bytes: i64,
}

/// The gateway's verdict over what the sandbox sent.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    pub attempt: i64,
    /// `Succeeded`, or the reason why not (one of `conditions::Reason`).
    pub verdict: String,
    /// For people; at most 1,024 characters.
    pub message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckResult>,
    /// Number of changed files.
    pub changed_files: i64,
    /// The first 32 changed paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_paths: Vec<String>,
    /// The rendered patch in the artifact store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<ArtifactRef>,
    /// Steps that the agent took.
    pub steps: i64,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CheckResult {
    pub name: String,
    pub exit_code: i64,
    pub trust: Trust,
}

/// Where a check ran.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Trust {
    /// In the container that the agent lived in: the code under test could have forged it.
    Sandbox,
}

/// A stored payload.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactRef {
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    pub bytes: i64,
}
