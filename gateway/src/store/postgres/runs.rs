//! The row of a run, which serialises what is written for it.

use deadpool_postgres::Transaction;

use super::failure::Failure;
use crate::store::batch::Usage;
use crate::store::{RunRef, StoreError};

/// A run's row, locked until the transaction ends.
pub(super) struct RunRow {
    pub id: i64,
    pub next: i64,
    pub closed: bool,
    pub usage: Usage,
}

/// Lock it; made if it is not there.
pub(super) async fn lock(transaction: &Transaction<'_>, run: &RunRef) -> Result<RunRow, Failure> {
    if let Some(row) = find(transaction, &run.uid).await? {
        return Ok(row);
    }
    let insert =
        transaction.prepare_cached("INSERT INTO runs (uid, namespace, name) VALUES ($1, $2, $3) ON CONFLICT (uid) DO NOTHING").await?;
    transaction.execute(&insert, &[&run.uid, &run.namespace, &run.name]).await?;
    let row = find(transaction, &run.uid).await?;
    row.ok_or_else(|| StoreError::Failed(format!("the row of run {} is gone", run.uid)).into())
}

async fn find(transaction: &Transaction<'_>, uid: &str) -> Result<Option<RunRow>, Failure> {
    let select = transaction
        .prepare_cached(
            "SELECT id, next, closed_at IS NOT NULL, sandbox_events, sandbox_bytes, gateway_events, gateway_bytes, truncated, dropped
             FROM runs WHERE uid = $1 FOR UPDATE",
        )
        .await?;
    let row = transaction.query_opt(&select, &[&uid]).await?;
    Ok(row.map(|row| RunRow {
        id: row.get(0),
        next: row.get(1),
        closed: row.get(2),
        usage: Usage { sandbox: (row.get(3), row.get(4)), gateway: (row.get(5), row.get(6)), truncated: row.get(7), dropped: row.get(8) },
    }))
}
