//! The real reconciler against an API server in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod caches;
#[path = "../fake_api/mod.rs"]
mod fake_api;
mod fence;
mod gitops;
mod records;
mod registration;
mod single;
mod stories;
mod world;
