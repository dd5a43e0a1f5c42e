//! One append, in one transaction.

use std::collections::HashMap;

use deadpool_postgres::Transaction;

use super::database::Work;
use super::failure::Failure;
use super::runs;
use crate::clock::Clock;
use crate::store::batch::{Batch, Plan, Stored, word};
use crate::store::{NewRecord, Origin, Quotas, RunRef, StoreError};

pub(super) struct Append {
    pub run: RunRef,
    pub attempt: i64,
    pub origin: Origin,
    pub records: Vec<NewRecord>,
    pub quotas: Quotas,
    pub clock: Clock,
}

/// What it did.
pub(super) struct Appended {
    pub seqs: Vec<i64>,
    /// Whether anything was written.
    pub grew: bool,
}

impl Work for Append {
    type Value = Appended;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<Appended, Failure> {
        let run = runs::lock(transaction, &self.run).await?;
        let stored = self.stored(transaction, run.id).await?;
        let batch = Batch::of(self.attempt, self.origin, &self.records, &stored)?;
        if batch.is_stored() {
            return Ok(Appended { seqs: batch.seqs(), grew: false });
        }
        let plan = batch.plan(run.closed, run.usage, &self.quotas)?;
        self.write(transaction, run.id, run.next, &plan).await?;
        Ok(Appended { grew: !plan.rows.is_empty(), seqs: batch.numbered(&plan, run.next) })
    }
}

impl Append {
    /// What is there already under the records' keys.
    async fn stored(&self, transaction: &Transaction<'_>, run: i64) -> Result<HashMap<String, Stored>, Failure> {
        let select = transaction
            .prepare_cached("SELECT key, seq, kind, data FROM events WHERE run = $1 AND attempt = $2 AND origin = $3 AND key = ANY($4)")
            .await?;
        let keys: Vec<&str> = self.records.iter().map(|record| record.key.as_str()).collect();
        let rows = transaction.query(&select, &[&run, &self.attempt, &number(self.origin), &keys]).await?;
        Ok(rows.iter().map(|row| (row.get(0), Stored { seq: row.get(1), kind: row.get(2), data: row.get(3) })).collect())
    }

    /// Rows from number `first` on. Nobody else takes numbers, since the run's row is locked.
    async fn write(&self, transaction: &Transaction<'_>, run: i64, first: i64, plan: &Plan) -> Result<(), Failure> {
        let now = self.clock.unix_millis();
        let (mut attempts, mut origins, mut keys, mut kinds, mut data) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in &plan.rows {
            attempts.push(row.attempt);
            origins.push(number(row.origin));
            keys.push(row.record.key.as_str());
            kinds.push(word(row.record.kind)?);
            data.push(row.record.data.as_str());
        }
        let write = transaction
            .prepare_cached(
                "WITH counted AS (
                     UPDATE runs SET next = $2::bigint + cardinality($11::bigint[]), closed_at = $3, sandbox_events = $4, sandbox_bytes = $5,
                     gateway_events = $6, gateway_bytes = $7, truncated = $8, dropped = $9 WHERE id = $1
                 )
                 INSERT INTO events (run, seq, time, attempt, origin, key, kind, data)
                 SELECT $1, $2 + r.place - 1, $10::bigint, r.attempt, r.origin, r.key, r.kind, r.data
                 FROM unnest($11::bigint[], $12::smallint[], $13::text[], $14::text[], $15::text[])
                 WITH ORDINALITY AS r (attempt, origin, key, kind, data, place)",
            )
            .await?;
        let usage = &plan.usage;
        let written = transaction
            .execute(
                &write,
                &[
                    &run,
                    &first,
                    &plan.ends.then_some(now),
                    &usage.sandbox.0,
                    &usage.sandbox.1,
                    &usage.gateway.0,
                    &usage.gateway.1,
                    &usage.truncated,
                    &usage.dropped,
                    &now,
                    &attempts,
                    &origins,
                    &keys,
                    &kinds,
                    &data,
                ],
            )
            .await?;
        if written != plan.rows.len() as u64 {
            return Err(StoreError::Failed(format!("{written} events were written, not {}", plan.rows.len())).into());
        }
        Ok(())
    }
}

fn number(origin: Origin) -> i16 {
    origin as i16
}
