//! The operator: accepts AgentRuns, queues them, makes one sandbox Pod for each, and says how they ended. `main.rs` is the
//! start-up order; everything that decides is pure and is tested at the foot of its file.

pub mod admin;
pub mod agent_run;
pub mod aggregated;
pub mod apply;
pub mod backoff;
pub mod check;
pub mod config;
pub mod context;
pub mod driver;
pub mod error;
pub mod kinds;
pub mod leader;
pub mod metrics;
pub mod pki;
pub mod telemetry;
