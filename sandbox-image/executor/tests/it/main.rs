//! The real executor as a process, driven by the real runner over a real Unix socket; for whole runs the gateway is a small
//! one in the test. They live here because cargo tells only this package where its program is.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod approvals;
mod commands;
#[expect(clippy::result_large_err, reason = "axum takes a response as an error")]
mod fake_gateway;
mod files;
mod harness;
mod hostile_executor;
mod sandbox;
mod whole_run;
