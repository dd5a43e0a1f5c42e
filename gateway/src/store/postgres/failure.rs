//! Why an attempt on the database failed, and whether another may succeed.

use std::error::Error as _;

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::error::SqlState;

use crate::store::StoreError;

#[derive(Debug)]
pub(super) enum Failure {
    /// The request was refused; the database is well.
    Refused(StoreError),
    Postgres(tokio_postgres::Error),
    /// Every connection is in use.
    Crowded,
    /// No answer in time.
    Silent,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Refused(error)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Failure::Postgres(error)
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Failure::Postgres(error),
            PoolError::Timeout(TimeoutType::Wait) => Failure::Crowded,
            PoolError::Timeout(_) => Failure::Silent,
            other => Failure::Refused(StoreError::Failed(other.to_string())),
        }
    }
}

impl Failure {
    /// Whether it is the connection, or a conflict with another transaction: the same again may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Failure::Refused(_) | Failure::Crowded => false,
            Failure::Silent => true,
            Failure::Postgres(error) => match error.code() {
                Some(code) => is_conflict(code) || is_outage(code),
                None => error.is_closed() || broke(error),
            },
        }
    }

    /// Whether the connection is of no further use.
    pub fn is_fatal(&self) -> bool {
        match self {
            Failure::Refused(_) | Failure::Crowded => false,
            Failure::Silent => true,
            Failure::Postgres(error) => error.code().is_none_or(is_outage),
        }
    }

    pub fn into_store_error(self) -> StoreError {
        match self {
            Failure::Refused(error) => error,
            Failure::Crowded => StoreError::Busy,
            Failure::Silent => StoreError::Failed("the database did not answer in time".into()),
            Failure::Postgres(error) => match error.code() {
                Some(code) if *code == SqlState::DISK_FULL => StoreError::Full,
                Some(code) if *code == SqlState::QUERY_CANCELED || *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::Busy,
                _ => StoreError::Failed(format!("the database: {}", text(&error))),
            },
        }
    }
}

fn is_conflict(code: &SqlState) -> bool {
    *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED
}

/// Shut down, starting up, failed over, or out of connections.
fn is_outage(code: &SqlState) -> bool {
    let word = code.code();
    word.starts_with("08") || word.starts_with("57P") || word == "53300" || word == "25006"
}

/// Whether the network failed; a certificate that is not trusted comes as an IO error too, and stays as it is.
fn broke(error: &tokio_postgres::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| !io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()))
}

/// With the cause, which the client's own text leaves out.
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
