//! How a store's error is told to clients. What failed inside goes to the log, not to them.

use http::StatusCode;

use super::StoreError;
use crate::error::ApiError;

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::KeyConflict { ref key } => ApiError::conflict(
                "event_key_conflict",
                format!("key {key:?} was used in this attempt with another type or data; a key may be repeated only with the same body"),
            ),
            StoreError::Closed => ApiError::conflict("log_closed", "the run has ended and its log takes no new events"),
            StoreError::CursorAhead { after, last } => ApiError::conflict(
                "cursor_ahead",
                format!("there is no event {after} yet: the log's last is {last}; read from {last} or less (0 is the beginning)"),
            )
            .field("after"),
            StoreError::DigestMismatch { expected, actual } => ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "digest_mismatch",
                format!("the content has digest {actual}, the path says {expected}; nothing was kept"),
            )
            .field("digest"),
            StoreError::BlobTooLarge { most } => {
                ApiError::too_large(format!("a blob may have at most {most} bytes; nothing was kept")).field("body")
            }
            StoreError::Quota { what, most } => {
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "quota_exceeded", format!("{what} may be at most {most}; nothing was kept"))
            }
            StoreError::NoBlob(digest) => ApiError::not_found(format!("this run has no blob {digest}")).field("digest"),
            StoreError::NameTaken(name) => ApiError::conflict(
                "artifact_name_taken",
                format!("{name:?} names another blob of this run already; names are never reused"),
            )
            .field("name"),
            StoreError::Full => {
                tracing::error!("the store is full; nothing was written");
                ApiError::new(
                    StatusCode::INSUFFICIENT_STORAGE,
                    "storage_full",
                    "the gateway's storage is full and nothing was written; its administrator has to enlarge the volume or shorten the retention",
                )
            }
            StoreError::Busy => ApiError::unavailable("storage_busy", "the gateway's storage is busy and nothing was written; try again"),
            StoreError::Failed(cause) => {
                tracing::error!(%cause, "the store failed");
                ApiError::unavailable("storage_unavailable", "the gateway's storage failed; the gateway's log says why")
            }
        }
    }
}
