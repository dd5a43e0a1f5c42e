//! The gateway as processes against a real API server (tier T1): what must hold however calls arrive, and whoever sends them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod gateway {
    mod aggregated;
    mod approvals;
    mod cancel;
    mod cli;
    mod crash;
    mod events;
    mod exchange;
    mod git;
    mod leases;
    mod namespace_budget;
    mod overspend;
    mod people;
    mod revocation;
    mod rolling;
    mod stores;
    mod turn;
    mod wrong_tokens;
}
