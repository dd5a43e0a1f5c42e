//! One file a verb. Each takes the cluster, its arguments and the output, and says with which status the process ends.

pub mod approvals;
pub mod artifacts;
pub mod cancel;
pub mod decide;
pub mod doctor;
pub mod events;
pub mod list;
pub mod patch;
pub mod rerun;
pub mod submit;
pub mod usage;
mod usage_of_namespace;
pub mod wait;
pub mod watch;
pub mod why;
