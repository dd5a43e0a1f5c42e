//! Why a store did not do what was asked, by who can act on it.

use super::Digest;

/// One error for both stores.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    // --- the caller's ---
    #[error("key {key:?} was used before with another body")]
    KeyConflict { key: String },
    #[error("the run's log is closed")]
    Closed,
    #[error("the cursor {after} is beyond the log's last event {last}")]
    CursorAhead { after: i64, last: i64 },
    #[error("the content's digest is {actual}, not {expected}")]
    DigestMismatch { expected: Digest, actual: Digest },
    #[error("the blob has more than {most} bytes")]
    BlobTooLarge { most: i64 },
    #[error("{what} would exceed the limit of {most}")]
    Quota { what: &'static str, most: i64 },
    #[error("the run has no blob {0}")]
    NoBlob(Digest),
    #[error("the name {0:?} stands for another blob already")]
    NameTaken(String),
    // --- the operator's of the gateway ---
    #[error("the store is full")]
    Full,
    #[error("the store is busy")]
    Busy,
    /// The text is for the log.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Whether the storage failed rather than the request.
    pub fn is_storage(&self) -> bool {
        matches!(self, StoreError::Full | StoreError::Busy | StoreError::Failed(_))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
            _ => StoreError::Failed(error.to_string()),
        }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StoreError::Full,
            _ => StoreError::Failed(error.to_string()),
        }
    }
}
