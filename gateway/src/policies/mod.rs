//! AgentPolicies as the gateway sees them: each namespace's budgets and rates from a watch, and the one way to write what was
//! spent into their status.

mod directory;
mod status_writer;
mod warning;

pub use directory::PolicyDirectory;
pub use status_writer::PolicyWriter;
pub use warning::{Warning, shares};

use agentrun_crds::AgentPolicy;

/// Namespace of a policy.
pub fn namespace(policy: &AgentPolicy) -> &str {
    policy.metadata.namespace.as_deref().unwrap_or_default()
}

/// Resource versions of custom resources are comparable integers; a wrong guess costs one conflict.
pub fn version(policy: &AgentPolicy) -> u64 {
    policy.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}
