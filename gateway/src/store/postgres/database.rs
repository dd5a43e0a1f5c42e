//! The pool of connections, and how work is done on one: again while the server is away for a moment, never for long.

use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Transaction};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::failure::Failure;
use super::options::Address;
use crate::store::StoreError;

/// How long a restart of the server is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time of one attempt, beyond what the server itself allows a statement.
const ATTEMPT: Duration = Duration::from_secs(15);
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Of each connection. Acknowledged means on disk, whatever the server's default is.
const SESSION: &str = "SET statement_timeout = '10s'; SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '15s';
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

pub(super) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// What is done in one transaction. It may run more than once: each time from what is committed.
pub(super) trait Work: Sync {
    type Value: Send;
    fn run(&self, transaction: &Transaction<'_>) -> impl Future<Output = Result<Self::Value, Failure>> + Send;
}

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Database(Pool);

impl Database {
    /// Connects only when it is used.
    pub fn new(address: &Address, connections: u16) -> Result<Self, StoreError> {
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config.clone(), address.tls.clone(), how);
        let begin = Hook::async_fn(|connection: &mut deadpool_postgres::ClientWrapper, _| {
            Box::pin(async move { connection.batch_execute(SESSION).await.map_err(HookError::Backend) })
        });
        let pool = Pool::builder(manager)
            .max_size(connections.into())
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(PATIENCE))
            .create_timeout(Some(PATIENCE))
            .recycle_timeout(Some(PATIENCE))
            .post_create(begin)
            .build();
        pool.map(Database).map_err(|error| StoreError::Failed(format!("the pool of database connections: {error}")))
    }

    /// Do it in a transaction, and answer when it is committed. Where the answer to a commit was lost it is done again, so work
    /// must find out by keys what was done before.
    pub async fn transact<W: Work>(&self, work: &W) -> Result<W::Value, StoreError> {
        attempts(|| self.once(work)).await
    }

    /// One statement and its rows.
    pub async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        attempts(|| self.query_once(sql, parameters)).await
    }

    /// The same, of which there is at most one.
    pub async fn query_opt(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Option<Row>, StoreError> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    async fn once<W: Work>(&self, work: &W) -> Result<W::Value, Failure> {
        let mut connection = self.0.get().await?;
        let done = timeout(ATTEMPT, async {
            let transaction = connection.transaction().await?;
            let value = work.run(&transaction).await?;
            transaction.commit().await?;
            Ok(value)
        });
        let done = done.await.unwrap_or(Err(Failure::Silent));
        discard_if_broken(connection, &done);
        done
    }

    async fn query_once(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        let connection = self.0.get().await?;
        let rows = timeout(ATTEMPT, async {
            let statement = connection.prepare_cached(sql).await?;
            Ok(connection.query(&statement, parameters).await?)
        });
        let rows = rows.await.unwrap_or(Err(Failure::Silent));
        discard_if_broken(connection, &rows);
        rows
    }
}

fn discard_if_broken<T>(connection: Object, done: &Result<T, Failure>) {
    if done.as_ref().is_err_and(Failure::is_fatal) {
        drop(Object::take(connection));
    }
}

async fn attempts<T, F: Future<Output = Result<T, Failure>>>(mut attempt: impl FnMut() -> F) -> Result<T, StoreError> {
    let (begun, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(failure) if failure.is_passing() && begun.elapsed() + wait < PATIENCE => {
                tracing::debug!(?failure, "the database failed; it is tried again");
                sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            Err(failure) => return Err(failure.into_store_error()),
        }
    }
}
