//! Git sources: a commit is fetched before its run gets a sandbox, verified object by object, and becomes the same kind of archive
//! that people upload. So no sandbox ever speaks to a git server, and the credential is used where it is kept.
//!
//! Smart HTTP, protocol version 2, `git-upload-pack`, and nothing else. What a server says is bounded in size and time, and its
//! words are never repeated: they could hold the credential that it was shown.

mod address;
mod connection;
mod credential;
mod delta;
mod export;
mod failure;
mod fetch;
mod fetcher;
mod objects;
mod pack;
mod pkt_line;
mod refs;
mod server;
mod tree;

#[cfg(test)]
mod tests;

pub use fetcher::Fetcher;
