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
