//! AgentRuns as the gateway sees them: the watched directory with its consistent confirmations, and the one way to write
//! their status.

mod cancel;
mod directory;
mod status_writer;

pub use cancel::cancel;
pub use directory::{CONFIRMATION_TTL, RunDirectory};
pub use status_writer::StatusWriter;

use agentrun_crds::AgentRun;

/// For one request to the API server; its client's own retries could take minutes.
const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// UID of a run; every object from the API server has one.
pub fn uid(run: &AgentRun) -> &str {
    run.metadata.uid.as_deref().unwrap_or_default()
}

/// The UID under which a run's story is kept: its own, or that of the earlier run that it repeats.
pub fn kept_uid(run: &AgentRun) -> &str {
    let earlier = run.status.as_ref().and_then(|status| status.earlier.as_ref());
    earlier.map_or_else(|| uid(run), |earlier| &earlier.run_uid)
}

/// Name of a run.
pub fn name(run: &AgentRun) -> &str {
    run.metadata.name.as_deref().unwrap_or_default()
}

/// Namespace of a run.
pub fn namespace(run: &AgentRun) -> &str {
    run.metadata.namespace.as_deref().unwrap_or_default()
}

/// Whether the run has ended for good.
pub fn is_terminal(run: &AgentRun) -> bool {
    run.status.as_ref().is_some_and(|status| status.finished_at.is_some() || status.phase.is_some_and(|phase| phase.is_terminal()))
}
