//! What crosses processes and is not a CRD: run tokens, the exchange, the job, events, results, and the executor's
//! gRPC envelope. Plain data and pure checks; no IO.

pub mod approval;
pub mod archive;
pub mod error;
pub mod event;
pub mod exchange;
pub mod executor;
pub mod git_object;
pub mod job;
pub mod people;
pub mod result;
pub mod routes;
pub mod token;
