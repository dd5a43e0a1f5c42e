//! Operator and gateway as processes against a real API server (tier T1) that fails under them, and that they do not survive:
//! whatever happened, each run comes to its right end, once, and nothing is spent, made or told twice.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod cluster_faults {
    mod crashes;
    mod matrix;
    mod process;
    mod sandbox;
    mod trial;
    mod witness;
    mod world;
}
