//! `kubectl-agentrun` as a process, against a local fake of the API server's and the aggregated API's wire.

mod deciding;
mod fake;
mod following;
mod identity;
mod submitting;
mod terminal;
