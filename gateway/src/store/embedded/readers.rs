//! Connections that read. They see committed state and never wait for the writer; how many read at once is bounded.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::store::StoreError;

pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
    patience: Duration,
}

impl Readers {
    pub(super) fn open(database: &Path, count: usize, patience: Duration) -> Result<Self, StoreError> {
        let mut idle = Vec::with_capacity(count);
        for _ in 0..count.max(1) {
            let connection = super::connect(&database.to_owned(), patience)?;
            connection.execute_batch("PRAGMA query_only = ON")?;
            connection.query_row("SELECT count(*) FROM (SELECT 1 FROM runs LIMIT 1)", [], |row| row.get::<_, i64>(0))?;
            idle.push(connection);
        }
        Ok(Readers { permits: Arc::new(Semaphore::new(idle.len())), idle: Arc::new(Mutex::new(idle)), patience })
    }

    /// Run `work` on a connection, off the async threads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = tokio::time::timeout(self.patience, self.permits.clone().acquire_owned())
            .await
            .map_err(|_| StoreError::Busy)?
            .map_err(|_| StoreError::Busy)?;
        let idle = self.idle.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let connection = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            // There are as many connections as permits; one is missing only if a read panicked.
            let Some(connection) = connection else { return Err(StoreError::Busy) };
            let outcome = work(&connection);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            outcome
        });
        task.await.map_err(|error| StoreError::Failed(format!("a read ended early: {error}")))?
    }
}
