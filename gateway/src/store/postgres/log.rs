//! The event store on PostgreSQL.

use deadpool_postgres::Transaction;
use tokio::sync::watch;
use tokio_postgres::Row;

use super::append::Append;
use super::database::Work;
use super::failure::Failure;
use super::{Postgres, count};
use crate::store::{Answer, EventStore, LogState, NewRecord, Origin, Page, PageLimit, Record, RunRef, StoreError, batch};

impl EventStore for Postgres {
    fn append(&self, run: &RunRef, attempt: i64, origin: Origin, records: Vec<NewRecord>) -> Answer<'_, Vec<i64>> {
        let append = Append { run: run.clone(), attempt, origin, records, quotas: self.quotas, clock: self.clock.clone() };
        Box::pin(async move {
            let appended = self.database.transact(&append).await?;
            if appended.grew {
                self.followers.tell(&append.run.uid);
            }
            Ok(appended.seqs)
        })
    }

    fn read(&self, run_uid: &str, after: i64, limit: PageLimit) -> Answer<'_, Page> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            // One statement, so that counters and rows are of one snapshot. The first row has room whatever the limit is.
            let rows = self
                .database
                .query(
                    "SELECT r.next - 1, r.first, r.closed_at IS NOT NULL, e.seq, e.time, e.kind, e.data
                     FROM runs r LEFT JOIN LATERAL (
                         SELECT seq, time, kind, data, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before FROM (
                             SELECT seq, time, kind, data FROM events WHERE run = r.id AND seq > greatest($2, r.first - 1) ORDER BY seq LIMIT $3
                         ) found
                     ) e ON e.before < $4
                     WHERE r.uid = $1 ORDER BY e.seq",
                    &[&uid, &after, &count(limit.events.max(1)), &count(limit.bytes.max(1))],
                )
                .await?;
            page(&rows, after)
        })
    }

    fn subscribe(&self, run_uid: &str) -> watch::Receiver<u64> {
        self.followers.subscribe(run_uid)
    }

    fn state(&self, run_uid: &str) -> Answer<'_, Option<LogState>> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let row = self.database.query_opt("SELECT next - 1, closed_at IS NOT NULL, dropped FROM runs WHERE uid = $1", &[&uid]).await?;
            Ok(row.map(|row| LogState { last: row.get(0), closed: row.get(1), dropped: row.get(2) }))
        })
    }

    fn open_logs(&self) -> Answer<'_, Vec<RunRef>> {
        Box::pin(async move {
            let rows = self.database.query("SELECT uid, namespace, name FROM runs WHERE closed_at IS NULL", &[]).await?;
            Ok(rows.iter().map(run_ref).collect())
        })
    }

    fn expired(&self, closed_before: i64, limit: usize) -> Answer<'_, Vec<RunRef>> {
        Box::pin(async move {
            let rows = self
                .database
                .query(
                    "SELECT uid, namespace, name FROM runs WHERE NOT purged AND closed_at < $1 ORDER BY closed_at LIMIT $2",
                    &[&closed_before, &count(limit)],
                )
                .await?;
            Ok(rows.iter().map(run_ref).collect())
        })
    }

    fn purge(&self, run_uid: &str) -> Answer<'_, ()> {
        let purge = PurgeLog { uid: run_uid.to_owned() };
        Box::pin(async move { self.database.transact(&purge).await })
    }
}

struct PurgeLog {
    uid: String,
}

impl Work for PurgeLog {
    type Value = ();

    async fn run(&self, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let update = transaction
            .prepare_cached(
                "UPDATE runs SET purged = true, first = greatest(first, next - 1) WHERE uid = $1 AND closed_at IS NOT NULL RETURNING id, first",
            )
            .await?;
        if let Some(row) = transaction.query_opt(&update, &[&self.uid]).await? {
            let delete = transaction.prepare_cached("DELETE FROM events WHERE run = $1 AND seq < $2").await?;
            transaction.execute(&delete, &[&row.get::<_, i64>(0), &row.get::<_, i64>(1)]).await?;
        }
        Ok(())
    }
}

fn run_ref(row: &Row) -> RunRef {
    RunRef { uid: row.get(0), namespace: row.get(1), name: row.get(2) }
}

fn page(rows: &[Row], after: i64) -> Result<Page, StoreError> {
    let (last, first, closed) = rows.first().map_or((0, 1, false), |row| (row.get(0), row.get(1), row.get(2)));
    if after > last {
        return Err(StoreError::CursorAhead { after, last });
    }
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(seq) = row.get::<_, Option<i64>>(3) else { continue };
        records.push(Record { seq, time: row.get(4), kind: batch::kind(row.get(5))?, data: row.get(6) });
    }
    Ok(Page { gap: (after + 1 < first).then_some((after + 1, first - 1)), records, last, closed })
}
