//! The budget ledger on SQLite, with its notes in a file beside it.

use agentrun_crds::budget::{Amount, Spent};
use rusqlite::{Connection, OptionalExtension, params};

use super::Embedded;
use crate::store::ledger::{BudgetLedger, Taken, TakenSlice};
use crate::store::{Answer, StoreError};

/// One row a run; without a slice its id is empty.
pub(super) const TABLE: &str = "
CREATE TABLE budget_ledger (
    uid TEXT PRIMARY KEY,
    requests INTEGER NOT NULL,
    upstream_attempts INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,
    slice TEXT NOT NULL,
    slice_requests INTEGER NOT NULL,
    slice_input_tokens INTEGER NOT NULL,
    slice_output_tokens INTEGER NOT NULL,
    slice_cost_micros INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

impl BudgetLedger for Embedded {
    fn take(&self, run_uid: &str, taken: Taken) -> Answer<'_, ()> {
        let uid = run_uid.to_owned();
        Box::pin(self.writer.transact(move |connection| put(connection, &uid, &taken), |()| ()))
    }

    fn note(&self, run_uid: &str, slice: &str, used: Amount, attempts: i64) {
        self.notes.write(run_uid, slice, used, attempts);
    }

    fn spent(&self, run_uid: &str) -> Answer<'_, Spent> {
        let uid = run_uid.to_owned();
        Box::pin(self.readers.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT requests, upstream_attempts, input_tokens, output_tokens, cost_micros FROM budget_ledger WHERE uid = ?1",
            )?;
            Ok(select.query_row([uid], |row| spent(row, 0)).optional()?.unwrap_or_default())
        }))
    }

    fn taken(&self) -> Answer<'_, Vec<(String, Taken)>> {
        let notes = self.notes.found();
        Box::pin(self.readers.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT uid, requests, upstream_attempts, input_tokens, output_tokens, cost_micros,
                 slice, slice_requests, slice_input_tokens, slice_output_tokens, slice_cost_micros FROM budget_ledger",
            )?;
            let row = |row: &rusqlite::Row<'_>| {
                let spent = spent(row, 1)?;
                let id: String = row.get(6)?;
                let amount =
                    Amount { requests: row.get(7)?, input_tokens: row.get(8)?, output_tokens: row.get(9)?, cost_micros: row.get(10)? };
                let used = notes.get(&id).copied();
                let slice = (!id.is_empty()).then_some(TakenSlice { id, amount, used });
                Ok((row.get(0)?, Taken { spent, slice }))
            };
            Ok(select.query_map([], row)?.collect::<Result<_, _>>()?)
        }))
    }

    fn forget(&self, run_uid: &str) -> Answer<'_, ()> {
        let uid = run_uid.to_owned();
        let delete = move |connection: &Connection| -> Result<(), StoreError> {
            connection.prepare_cached("DELETE FROM budget_ledger WHERE uid = ?1")?.execute([&uid])?;
            Ok(())
        };
        Box::pin(self.writer.transact(delete, |()| ()))
    }
}

/// Five columns, from this one.
fn spent(row: &rusqlite::Row<'_>, from: usize) -> rusqlite::Result<Spent> {
    Ok(Spent {
        requests: row.get(from)?,
        upstream_attempts: row.get(from + 1)?,
        input_tokens: row.get(from + 2)?,
        output_tokens: row.get(from + 3)?,
        cost_micros: row.get(from + 4)?,
    })
}

fn put(connection: &Connection, uid: &str, taken: &Taken) -> Result<(), StoreError> {
    let TakenSlice { id, amount, .. } = taken.slice.clone().unwrap_or_default();
    connection.prepare_cached("INSERT OR REPLACE INTO budget_ledger VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)")?.execute(
        params![
            uid,
            taken.spent.requests,
            taken.spent.upstream_attempts,
            taken.spent.input_tokens,
            taken.spent.output_tokens,
            taken.spent.cost_micros,
            id,
            amount.requests,
            amount.input_tokens,
            amount.output_tokens,
            amount.cost_micros
        ],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::clock::Clock;
    use crate::store::Quotas;
    use crate::store::embedded::Limits;

    fn open(folder: &Path) -> Embedded {
        Embedded::open(folder, Quotas::default(), Limits::default(), Clock::from_fn(|| 1_000)).expect("a store")
    }

    #[tokio::test]
    async fn what_was_taken_is_there_after_a_restart_with_what_calls_used_of_it() {
        let folder = tempfile::tempdir().expect("folder");
        let amount = |n: i64| Amount { requests: n, input_tokens: 10 * n, output_tokens: 20 * n, cost_micros: 30 * n };
        let spent = Spent { requests: 5, upstream_attempts: 6, input_tokens: 7, output_tokens: 8, cost_micros: 9 };
        let slice = |id: &str| TakenSlice { id: id.into(), amount: amount(8), used: None };
        let store = open(folder.path());
        store.take("a", Taken { spent: Spent::default(), slice: Some(slice("first")) }).await.expect("taken");
        store.note("a", "first", amount(1), 1);
        store.take("a", Taken { spent, slice: Some(slice("second")) }).await.expect("taken again");
        store.note("a", "second", amount(2), 2);
        store.note("a", "second", amount(3), 4);
        store.take("b", Taken { spent, slice: Some(slice("unnoted")) }).await.expect("taken");
        store.take("c", Taken { spent, slice: None }).await.expect("taken");
        store.take("d", Taken { spent, slice: None }).await.expect("taken");
        store.forget("d").await.expect("forgotten");
        drop(store);

        let store = open(folder.path());
        assert_eq!(store.spent("b").await, Ok(spent));
        assert_eq!(store.spent("d").await, Ok(Spent::default()), "forgotten");
        let mut taken = store.taken().await.expect("read");
        taken.sort_by(|a, b| a.0.cmp(&b.0));
        let second = TakenSlice { used: Some((amount(3), 4)), ..slice("second") };
        let expected = [("a", Some(second)), ("b", Some(slice("unnoted"))), ("c", None)];
        assert_eq!(taken, expected.map(|(uid, slice)| (uid.to_owned(), Taken { spent, slice })));
    }

    #[test]
    fn a_database_of_the_first_version_gets_the_table() {
        let folder = tempfile::tempdir().expect("folder");
        let connection = Connection::open(folder.path().join("agentrun.db")).expect("a database");
        connection.execute_batch(super::super::FIRST_SCHEMA).expect("the first version");
        drop(connection);
        drop(open(folder.path()));
        let connection = Connection::open(folder.path().join("agentrun.db")).expect("a database");
        let rows: i64 = connection.query_row("SELECT count(*) FROM budget_ledger", [], |row| row.get(0)).expect("the table");
        assert_eq!(rows, 0);
    }
}
