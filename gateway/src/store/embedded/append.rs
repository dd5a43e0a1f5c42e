//! One append, inside the writer's transaction.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use crate::store::batch::{Batch, Stored, Usage, word};
use crate::store::{NewRecord, Origin, Quotas, RunRef, StoreError};

/// What an append did.
pub(super) struct Appended {
    pub seqs: Vec<i64>,
    /// Whether anything was written.
    pub grew: bool,
}

pub(super) fn append(
    connection: &Connection,
    run: &RunRef,
    attempt: i64,
    origin: Origin,
    records: &[NewRecord],
    quotas: &Quotas,
    now: i64,
) -> Result<Appended, StoreError> {
    let id = super::run_row(connection, run)?;
    let stored = stored(connection, id, attempt, origin, records)?;
    let batch = Batch::of(attempt, origin, records, &stored)?;
    if batch.is_stored() {
        return Ok(Appended { seqs: batch.seqs(), grew: false });
    }
    let (closed, usage) = usage(connection, id)?;
    let plan = batch.plan(closed, usage, quotas)?;
    let count = i64::try_from(plan.rows.len()).unwrap_or(i64::MAX);
    let first: Option<i64> = connection
        .prepare_cached(
            "UPDATE runs SET next = next + ?2, sandbox_events = ?3, sandbox_bytes = ?4, gateway_events = ?5, gateway_bytes = ?6,
             truncated = ?7, dropped = ?8, closed_at = ?9 WHERE id = ?1 AND closed_at IS NULL RETURNING next - ?2",
        )?
        .query_row(
            params![
                id,
                count,
                plan.usage.sandbox.0,
                plan.usage.sandbox.1,
                plan.usage.gateway.0,
                plan.usage.gateway.1,
                plan.usage.truncated,
                plan.usage.dropped,
                plan.ends.then_some(now)
            ],
            |row| row.get(0),
        )
        .optional()?;
    let first = first.ok_or(StoreError::Closed)?;
    let mut insert = connection
        .prepare_cached("INSERT INTO events (run, seq, time, attempt, origin, key, kind, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    for (seq, row) in (first..).zip(&plan.rows) {
        let record = &row.record;
        insert.execute(params![id, seq, now, row.attempt, row.origin as i64, record.key, word(record.kind)?, record.data])?;
    }
    Ok(Appended { grew: !plan.rows.is_empty(), seqs: batch.numbered(&plan, first) })
}

/// What is there already under these records' keys.
fn stored(
    connection: &Connection,
    id: i64,
    attempt: i64,
    origin: Origin,
    records: &[NewRecord],
) -> Result<HashMap<String, Stored>, StoreError> {
    let mut select =
        connection.prepare_cached("SELECT seq, kind, data FROM events WHERE run = ?1 AND attempt = ?2 AND origin = ?3 AND key = ?4")?;
    let mut found = HashMap::new();
    for record in records {
        let row = select
            .query_row(params![id, attempt, origin as i64, record.key], |row| {
                Ok(Stored { seq: row.get(0)?, kind: row.get(1)?, data: row.get(2)? })
            })
            .optional()?;
        found.extend(row.map(|row| (record.key.clone(), row)));
    }
    Ok(found)
}

fn usage(connection: &Connection, id: i64) -> Result<(bool, Usage), StoreError> {
    let mut select = connection.prepare_cached(
        "SELECT closed_at IS NOT NULL, sandbox_events, sandbox_bytes, gateway_events, gateway_bytes, truncated, dropped FROM runs WHERE id = ?1",
    )?;
    Ok(select.query_row([id], |row| {
        let usage = Usage {
            sandbox: (row.get(1)?, row.get(2)?),
            gateway: (row.get(3)?, row.get(4)?),
            truncated: row.get(5)?,
            dropped: row.get(6)?,
        };
        Ok((row.get(0)?, usage))
    })?)
}
