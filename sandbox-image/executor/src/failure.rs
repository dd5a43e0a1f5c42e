//! Why a request failed, as the protocol's closed list of codes and a sentence for the agent.

use agentrun_protocol::executor;
use rustix::io::Errno;

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
}

pub const NOT_FOUND: &str = "not_found";
pub const ALREADY_EXISTS: &str = "already_exists";
pub const IS_DIRECTORY: &str = "is_directory";
pub const NOT_REGULAR: &str = "not_regular";
pub const ESCAPES: &str = "escapes";
pub const TOO_LARGE: &str = "too_large";
pub const NO_MATCH: &str = "no_match";
pub const NOT_UNIQUE: &str = "not_unique";
pub const NOT_STARTED: &str = "not_started";
pub const NO_SPACE: &str = "no_space";
pub const IO: &str = "io";
pub const INVALID: &str = "invalid";
pub const UNKNOWN_METHOD: &str = "unknown_method";
pub const CANCELLED: &str = "cancelled";
pub const BUSY: &str = "busy";

impl Failure {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }

    pub fn cancelled() -> Self {
        Failure::new(CANCELLED, "the request was cancelled")
    }

    /// What an operating system error on `what` means.
    pub fn os(what: &str, error: Errno) -> Self {
        let (code, why) = match error {
            Errno::NOENT => (NOT_FOUND, "does not exist".to_owned()),
            Errno::NOTDIR => (NOT_FOUND, "does not exist: a part of the path is not a directory".to_owned()),
            Errno::EXIST => (ALREADY_EXISTS, "exists already".to_owned()),
            Errno::ISDIR => (IS_DIRECTORY, "is a directory".to_owned()),
            Errno::LOOP => (ESCAPES, "is or leads through a symbolic link, which is not followed".to_owned()),
            Errno::XDEV => (ESCAPES, "leads out of the workspace".to_owned()),
            Errno::NXIO => (NOT_REGULAR, "is not a regular file".to_owned()),
            Errno::NOSPC | Errno::DQUOT => (NO_SPACE, "the workspace is full".to_owned()),
            Errno::NAMETOOLONG => (INVALID, "has a name that is too long".to_owned()),
            Errno::FBIG => (TOO_LARGE, "is too large".to_owned()),
            other => (IO, std::io::Error::from(other).to_string()),
        };
        Failure { code, message: format!("{what}: {why}") }
    }

    /// The same for the standard library's errors.
    pub fn io(what: &str, error: &std::io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Failure::os(what, errno),
            None => Failure::new(IO, format!("{what}: {error}")),
        }
    }

    pub fn into_error(self) -> executor::Error {
        executor::Error { code: self.code.to_owned(), message: self.message }
    }
}
