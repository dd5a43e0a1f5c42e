//! `AgentPolicy`: a namespace's ceilings, one per namespace, named `default`. Written by the platform team.
//! The bounds and rules of its schema stand in `schema/agent_policy.rs`.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::agent_policy_status::AgentPolicyStatus;
use crate::agent_run::{BudgetSpec, Check};
use crate::approval_rules::ApprovalRule;
use crate::model_provider::PlainHttp;
use crate::network_probe::NetworkEnforcement;
use crate::period::Period;

/// What runs of this namespace may do. A namespace without a policy `default` runs nothing (PolicyMissing).
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns share their types")]
#[kube(
    group = "agentrun.dev",
    version = "v1alpha1",
    kind = "AgentPolicy",
    plural = "agentpolicies",
    namespaced,
    category = "agents",
    status = "AgentPolicyStatus",
    doc = "A namespace's ceilings, named `default`.",
    printcolumn(name = "Concurrent", type_ = "integer", json_path = ".spec.limits.concurrentRuns"),
    printcolumn(name = "Steps", type_ = "integer", json_path = ".spec.limits.maxSteps"),
    printcolumn(name = "WallTime", type_ = "string", json_path = ".spec.limits.wallTime"),
    printcolumn(name = "Spent", type_ = "string", json_path = ".status.spentText"),
    printcolumn(name = "HostUsers", type_ = "string", json_path = ".spec.sandbox.hostUsers"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AgentPolicySpec {
    /// The models offered, by the name that runs use.
    pub models: Vec<OfferedModel>,
    /// Images a run may name: an exact reference, or a prefix that ends in `*`.
    pub images: Vec<String>,
    /// Image of a run that names none; need not be repeated in `images`.
    pub default_image: Option<String>,
    /// AgentTemplates a run may name as its harness; their images need not be in `images`. Empty: only the built-in agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub harnesses: Vec<String>,
    /// Checks a run may ask for, by argv; a last element `*` admits any further arguments. Unset: any argv.
    pub checks: Option<Vec<Vec<String>>>,
    /// Checks that every run must pass besides its own.
    #[serde(default)]
    pub required_checks: Vec<Check>,
    /// Ceilings; a run that asks for more is refused, one that asks for nothing gets min(default, ceiling).
    #[serde(default)]
    pub limits: PolicyLimits,
    /// What all runs of the namespace together may spend in an hour, a day or a month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<NamespaceBudget>,
    /// How often, and how many at once, runs may call the model.
    #[serde(default, skip_serializing_if = "RateLimits::is_empty")]
    pub rate_limits: RateLimits,
    /// Walls of the sandbox.
    #[serde(default)]
    pub sandbox: SandboxPolicy,
    /// Which actions of the agent wait for a person.
    #[serde(default)]
    pub approvals: ApprovalPolicy,
    /// Which git repositories runs may start from. Unset: none.
    pub git: Option<GitPolicy>,
}

/// A ceiling for one period.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceBudget {
    /// A calendar hour, day or month in UTC.
    pub period: Period,
    /// An absent dimension is unlimited.
    pub limit: BudgetSpec,
}

/// Each gateway counts by itself. An absent number is the gateway's own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RateLimits {
    /// Model calls of one run in a minute.
    pub requests_per_minute_per_run: Option<i64>,
    /// Model calls of all runs of the namespace in a minute.
    pub requests_per_minute_per_namespace: Option<i64>,
    /// Model calls of one run at once.
    pub max_in_flight_per_run: Option<i64>,
}

impl RateLimits {
    fn is_empty(&self) -> bool {
        *self == RateLimits::default()
    }
}

/// Git repositories as sources.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitPolicy {
    /// The first entry that admits a run's URL says how it is fetched.
    pub allow: Vec<GitHost>,
    /// Most that one fetch may receive, a quantity of bytes. Default `64Mi`.
    pub max_bytes: Option<String>,
    /// Longest that one fetch may take. Default `2m`.
    pub timeout: Option<String>,
    /// Symbolic links in a tree: refuse the source, or leave them out. Default `Refuse`.
    #[serde(default)]
    pub symlinks: LeftOut,
    /// Submodules: refuse the source, or leave them out. They are never fetched. Default `Refuse`.
    #[serde(default)]
    pub submodules: LeftOut,
}

/// What is done about an entry of a tree that cannot be staged.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftOut {
    /// The run ends as SourceUnavailable.
    #[default]
    Refuse,
    /// It is left out, and no patch may put a file in its place.
    Omit,
}

/// Repositories of one host.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHost {
    /// `git.example.com`, or with a port that is not the scheme's own.
    pub host: String,
    /// Repositories, without `.git`: `org/shop`, a subtree `org/**`, or everything `**` (the default).
    #[serde(default = "everything")]
    pub paths: Vec<String>,
    /// A Secret of this namespace, used for these repositories only: `username` and `password`, or `bearerToken`, and
    /// optionally `ca.crt` (PEM, trusted in place of the public authorities).
    pub secret_ref: Option<GitSecret>,
    /// `Public` (default): the host's addresses must be public ones. `Private`: also those of the cluster and the site. Link-local
    /// addresses, where clouds keep their metadata, are never reached.
    #[serde(default)]
    pub addresses: Addresses,
    /// Whether the URL may begin with `http://`: for a server inside the cluster. Default `Refused`.
    #[serde(default, rename = "plainHTTP")]
    pub plain_http: PlainHttp,
}

/// A Secret by name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitSecret {
    pub name: String,
}

/// Where a host may be.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    #[default]
    Public,
    Private,
}

fn everything() -> Vec<String> {
    vec!["**".into()]
}

/// What the agent may do at once, what a person decides, and what it may never do.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPolicy {
    /// In order; the last one that matches an action decides, but nothing loosens a `Deny` that matched. No match: `Allow`.
    #[serde(default)]
    pub rules: Vec<ApprovalRule>,
    /// How long an action waits for a person before it counts as denied. Default `30m`.
    pub timeout: Option<String>,
    /// Whether the run's wall time stands still while it waits for people. Default false.
    #[serde(default)]
    pub pauses_wall_time: bool,
    /// With `pausesWallTime`: the longest that one run's wall time may stand still in all. Default `2h`.
    pub max_pause: Option<String>,
    /// Whether who submitted a run may decide on its actions. False: somebody else must, and a run that a service account
    /// submits must name its person in `submittedFor`. Default true.
    #[serde(default = "yes")]
    pub submitter_may_approve: bool,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        ApprovalPolicy { rules: Vec::new(), timeout: None, pauses_wall_time: false, max_pause: None, submitter_may_approve: true }
    }
}

fn yes() -> bool {
    true
}

/// One model that runs may name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OfferedModel {
    /// The name that `AgentRun.spec.model` uses.
    pub name: String,
    /// Name of a ModelProvider in the gateway's namespace.
    pub provider: String,
    /// Name of one of that provider's models.
    pub model: String,
    /// Other providers to ask, in order, when those before them cannot answer. They must speak the same dialect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<OfferedFallback>,
    /// A model for embeddings that runs with this one may call too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<OfferedEmbeddings>,
}

/// A model at another provider.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OfferedFallback {
    /// Name of a ModelProvider in the gateway's namespace.
    pub provider: String,
    /// Name of one of that provider's models.
    pub model: String,
}

/// A model whose provider speaks OpenAIEmbeddings.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OfferedEmbeddings {
    /// The name that calls use.
    pub name: String,
    /// Name of a ModelProvider in the gateway's namespace.
    pub provider: String,
    /// Name of one of that provider's models.
    pub model: String,
}

/// Ceilings for each run and for the namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PolicyLimits {
    /// Most steps a run may ask for. Default 100.
    pub max_steps: Option<i64>,
    /// Longest wall time a run may ask for. Default `2h`.
    pub wall_time: Option<String>,
    /// Most a run may spend in each dimension.
    pub budget: Option<BudgetSpec>,
    /// Runs of the namespace that may be active at once. Default 4.
    pub concurrent_runs: Option<i64>,
    /// Runs of the namespace that may wait; one more is refused (QuotaExceeded). Default 200.
    pub queued: Option<i64>,
    /// How long a Pod may wait for a node or an image before the run fails. Default `5m`.
    pub startup_deadline: Option<String>,
}

/// Walls and sizes of the sandbox Pod.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPolicy {
    /// `Isolated` (default): a user namespace for the Pod; the runner refuses to start without it. `Shared`: none.
    #[serde(default)]
    pub host_users: HostUsers,
    /// Whether a run goes on only where its sandbox is seen to reach nothing but the gateway. `Required` (default); `ExceptNode`:
    /// the Pod's own node may be reached; `NotRequired`: whatever is reached, status says so.
    #[serde(default)]
    pub network_enforcement: NetworkEnforcement,
    /// RuntimeClass of the Pod. Unset: the cluster's default runtime.
    pub runtime_class_name: Option<String>,
    /// CPU limit of the executor container. Default `1`.
    pub cpu: Option<String>,
    /// Memory limit of the executor container. Default `1Gi`.
    pub memory: Option<String>,
    /// Size limit of the workspace. Default `1Gi`.
    pub workspace: Option<String>,
}

/// User namespaces.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostUsers {
    #[default]
    Isolated,
    Shared,
}
