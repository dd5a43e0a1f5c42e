//! Objects in the bucket of an S3-compatible store: put, got, deleted, nothing else. What they are is for others to know.

mod client;
mod failure;
mod options;

pub use client::Bucket;
pub use options::{ObjectOptions, credentials};
