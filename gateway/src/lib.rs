//! The gateway: holder of provider keys and token keys. It exchanges tickets for run tokens, meters every model call
//! against the run's hard budget, and keeps events, artifacts and results. It creates no Pods and reads no Secret outside
//! its own namespace. The operator and the gateway never import each other; they meet in `AgentRun.status`.

pub mod aggregated;
pub mod app;
pub mod approvals;
pub mod artifacts;
pub mod auth;
pub mod body;
pub mod budget;
pub mod clock;
pub mod config;
pub mod error;
pub mod events;
pub mod exchange;
#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod fixtures;
mod followed;
pub mod git;
#[cfg(test)]
mod http_tests;
pub mod job;
pub mod leader;
pub mod metrics;
pub mod model;
pub mod people;
mod places;
pub mod policies;
pub mod result;
pub mod runs;
pub mod serve;
pub mod source;
mod status_update;
pub mod store;
pub mod tls;
