//! The Kubernetes API of AgentRun (group `agentrun.dev`, version `v1alpha1`): types, validation, names, conditions and
//! the pure budget arithmetic on them. It talks to nothing and imports no other crate of this workspace.

pub mod agent_policy;
pub mod agent_policy_status;
pub mod agent_run;
pub mod agent_run_record;
pub mod agent_run_status;
pub mod agent_template;
pub mod approval_rules;
pub mod budget;
pub mod conditions;
pub mod git;
pub mod model_provider;
pub mod names;
pub mod network_probe;
pub mod paths;
pub mod period;
pub mod quantity;
pub mod run_deadline;
pub mod schema;

pub use agent_policy::{AgentPolicy, AgentPolicySpec};
pub use agent_policy_status::AgentPolicyStatus;
pub use agent_run::{AgentRun, AgentRunSpec};
pub use agent_run_record::{AgentRunRecord, AgentRunRecordSpec};
pub use agent_run_status::AgentRunStatus;
pub use agent_template::{AgentTemplate, AgentTemplateSpec};
pub use model_provider::{ModelProvider, ModelProviderSpec};
pub use schema::all;

/// API group of every kind.
pub const GROUP: &str = "agentrun.dev";
/// API version of every kind.
pub const VERSION: &str = "v1alpha1";
