//! The budget ledger on PostgreSQL: what was spent is shared by all gateways, and only rises; a slice is its gateway's. What
//! calls have taken of a slice is noted on this machine's disk only, so a gateway that starts elsewhere charges it in full.

use agentrun_crds::budget::{Amount, Spent};
use tokio_postgres::Row;

use super::Postgres;
use crate::store::Answer;
use crate::store::ledger::{BudgetLedger, Taken, TakenSlice};

const TAKE: &str = "
WITH held AS (
    INSERT INTO budget_slices (uid, instance, slice, requests, input_tokens, output_tokens, cost_micros)
    SELECT $1, $7, $8, $9, $10, $11, $12 WHERE $8 <> ''
    ON CONFLICT (uid, instance) DO UPDATE SET slice = excluded.slice, requests = excluded.requests,
        input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens, cost_micros = excluded.cost_micros
), given_back AS (
    DELETE FROM budget_slices WHERE uid = $1 AND instance = $7 AND $8 = ''
)
INSERT INTO budget_spent AS b (uid, requests, upstream_attempts, input_tokens, output_tokens, cost_micros)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (uid) DO UPDATE SET requests = greatest(b.requests, excluded.requests),
    upstream_attempts = greatest(b.upstream_attempts, excluded.upstream_attempts),
    input_tokens = greatest(b.input_tokens, excluded.input_tokens),
    output_tokens = greatest(b.output_tokens, excluded.output_tokens),
    cost_micros = greatest(b.cost_micros, excluded.cost_micros)";

impl BudgetLedger for Postgres {
    fn take(&self, run_uid: &str, taken: Taken) -> Answer<'_, ()> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let Taken { spent, slice } = taken;
            let TakenSlice { id, amount, .. } = slice.unwrap_or_default();
            self.database
                .query(
                    TAKE,
                    &[
                        &uid,
                        &spent.requests,
                        &spent.upstream_attempts,
                        &spent.input_tokens,
                        &spent.output_tokens,
                        &spent.cost_micros,
                        &self.instance,
                        &id,
                        &amount.requests,
                        &amount.input_tokens,
                        &amount.output_tokens,
                        &amount.cost_micros,
                    ],
                )
                .await
                .map(drop)
        })
    }

    fn note(&self, run_uid: &str, slice: &str, used: Amount, attempts: i64) {
        self.notes.write(run_uid, slice, used, attempts);
    }

    fn spent(&self, run_uid: &str) -> Answer<'_, Spent> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let sql = "SELECT requests, upstream_attempts, input_tokens, output_tokens, cost_micros FROM budget_spent WHERE uid = $1";
            Ok(self.database.query_opt(sql, &[&uid]).await?.as_ref().map(spent).unwrap_or_default())
        })
    }

    fn taken(&self) -> Answer<'_, Vec<(String, Taken)>> {
        Box::pin(async move {
            let rows = self
                .database
                .query(
                    "SELECT b.requests, b.upstream_attempts, b.input_tokens, b.output_tokens, b.cost_micros,
                     b.uid, s.slice, s.requests, s.input_tokens, s.output_tokens, s.cost_micros
                     FROM budget_spent b LEFT JOIN budget_slices s ON s.uid = b.uid AND s.instance = $1",
                    &[&self.instance],
                )
                .await?;
            let notes = self.notes.found();
            let slice = |row: &Row| -> Option<TakenSlice> {
                let id: String = row.get::<_, Option<_>>(6)?;
                let amount = Amount { requests: row.get(7), input_tokens: row.get(8), output_tokens: row.get(9), cost_micros: row.get(10) };
                Some(TakenSlice { used: notes.get(&id).copied(), id, amount })
            };
            Ok(rows.iter().map(|row| (row.get(5), Taken { spent: spent(row), slice: slice(row) })).collect())
        })
    }

    fn forget(&self, run_uid: &str) -> Answer<'_, ()> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let sql = "WITH slices AS (DELETE FROM budget_slices WHERE uid = $1) DELETE FROM budget_spent WHERE uid = $1";
            self.database.query(sql, &[&uid]).await.map(drop)
        })
    }
}

/// The first five columns.
fn spent(row: &Row) -> Spent {
    Spent {
        requests: row.get(0),
        upstream_attempts: row.get(1),
        input_tokens: row.get(2),
        output_tokens: row.get(3),
        cost_micros: row.get(4),
    }
}
