//! The executor protocol, generated from `proto/executor.proto`, and its method names and bounds.

#[expect(clippy::all, clippy::pedantic, reason = "generated")]
mod generated {
    tonic::include_proto!("agentrun.executor.v1");
}
pub use generated::*;

/// Largest payload of one frame in bytes; an envelope stays under 1 MiB.
pub const MAX_CHUNK_BYTES: usize = 256 * 1024;
/// gRPC message limit, both ways.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;
/// Bytes of chunks an end may send before it waits for credit.
pub const INITIAL_CREDIT_BYTES: u64 = 4 * 1024 * 1024;

/// Method names, as advertised in `Hello`.
pub mod method {
    pub const PING: &str = "ping";
    pub const EXEC_START: &str = "exec.Start";
    pub const FS_READ: &str = "fs.Read";
    pub const FS_WRITE: &str = "fs.Write";
    pub const FS_EDIT: &str = "fs.Edit";
    pub const FS_LIST: &str = "fs.List";
    pub const FS_SEARCH: &str = "fs.Search";
    pub const FS_MANIFEST: &str = "fs.Manifest";
}
