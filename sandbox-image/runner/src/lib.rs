//! The runner: the trusted half of a sandbox Pod. It attests its confinement, exchanges its credentials for tokens that live
//! in memory only, drives the executor, runs the agent's loop and the checks, and reports what changed, by bytes it hashed.

pub mod agent;
pub mod approval_action;
pub mod approvals;
pub mod base_commit;
pub mod changes;
pub mod checks;
pub mod clip;
pub mod confinement;
pub mod connection;
pub mod conversation;
pub mod credentials;
pub mod deadline;
pub mod events;
pub mod exchange;
pub mod executor;
pub mod gateway;
pub mod harness;
pub mod live_output;
pub mod model;
pub mod network;
pub mod prompt;
pub mod report;
pub mod run;
pub mod staging;
pub mod termination;
pub mod tokens;
pub mod tool_arguments;
pub mod tool_definitions;
pub mod tools;

pub use run::{Config, run};
pub use termination::Failed;
