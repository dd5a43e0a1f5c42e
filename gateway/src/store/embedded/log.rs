//! The event store on SQLite.

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::watch;

use super::Embedded;
use crate::store::{Answer, EventStore, LogState, NewRecord, Origin, Page, PageLimit, Record, RunRef, StoreError, batch};

impl EventStore for Embedded {
    fn append(&self, run: &RunRef, attempt: i64, origin: Origin, records: Vec<NewRecord>) -> Answer<'_, Vec<i64>> {
        let (run, quotas, clock, wakes) = (run.clone(), self.quotas, self.clock.clone(), self.wakes.clone());
        let uid = run.uid.clone();
        Box::pin(async move {
            let work = move |connection: &Connection| {
                super::append::append(connection, &run, attempt, origin, &records, &quotas, clock.unix_millis())
            };
            let committed = move |appended: &super::append::Appended| {
                if appended.grew {
                    wakes.wake(&uid);
                }
            };
            Ok(self.writer.transact(work, committed).await?.seqs)
        })
    }

    fn read(&self, run_uid: &str, after: i64, limit: PageLimit) -> Answer<'_, Page> {
        let uid = run_uid.to_owned();
        Box::pin(self.readers.read(move |connection| read(connection, &uid, after, limit)))
    }

    fn subscribe(&self, run_uid: &str) -> watch::Receiver<u64> {
        self.wakes.subscribe(run_uid)
    }

    fn state(&self, run_uid: &str) -> Answer<'_, Option<LogState>> {
        let uid = run_uid.to_owned();
        Box::pin(self.readers.read(move |connection| {
            let mut select = connection.prepare_cached("SELECT next - 1, closed_at IS NOT NULL, dropped FROM runs WHERE uid = ?1")?;
            let state = |row: &rusqlite::Row<'_>| Ok(LogState { last: row.get(0)?, closed: row.get(1)?, dropped: row.get(2)? });
            Ok(select.query_row([uid], state).optional()?)
        }))
    }

    fn open_logs(&self) -> Answer<'_, Vec<RunRef>> {
        Box::pin(self.readers.read(|connection| {
            let mut select = connection.prepare_cached("SELECT uid, namespace, name FROM runs WHERE closed_at IS NULL")?;
            Ok(select.query_map([], run_ref)?.collect::<Result<_, _>>()?)
        }))
    }

    fn expired(&self, closed_before: i64, limit: usize) -> Answer<'_, Vec<RunRef>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Box::pin(self.readers.read(move |connection| {
            let mut select = connection
                .prepare_cached("SELECT uid, namespace, name FROM runs WHERE purged = 0 AND closed_at < ?1 ORDER BY closed_at LIMIT ?2")?;
            Ok(select.query_map([closed_before, limit], run_ref)?.collect::<Result<_, _>>()?)
        }))
    }

    fn purge(&self, run_uid: &str) -> Answer<'_, ()> {
        let uid = run_uid.to_owned();
        Box::pin(async move {
            let work = move |connection: &Connection| {
                let mut update = connection.prepare_cached(
                    "UPDATE runs SET purged = 1, first = max(first, next - 1) WHERE uid = ?1 AND closed_at IS NOT NULL RETURNING id, first",
                )?;
                let row = update.query_row([&uid], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))).optional()?;
                if let Some((id, first)) = row {
                    connection.prepare_cached("DELETE FROM events WHERE run = ?1 AND seq < ?2")?.execute([id, first])?;
                }
                Ok(())
            };
            self.writer.transact(work, |()| ()).await
        })
    }
}

fn run_ref(row: &rusqlite::Row<'_>) -> rusqlite::Result<RunRef> {
    Ok(RunRef { uid: row.get(0)?, namespace: row.get(1)?, name: row.get(2)? })
}

fn read(connection: &Connection, uid: &str, after: i64, limit: PageLimit) -> Result<Page, StoreError> {
    // One snapshot for the counters and the rows.
    let snapshot = connection.unchecked_transaction()?;
    let row = snapshot
        .prepare_cached("SELECT id, next - 1, first, closed_at IS NOT NULL FROM runs WHERE uid = ?1")?
        .query_row([uid], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, bool>(3)?)))
        .optional()?;
    let (id, last, first, closed) = row.unwrap_or((0, 0, 1, false));
    if after > last {
        return Err(StoreError::CursorAhead { after, last });
    }
    let gap = (after + 1 < first).then_some((after + 1, first - 1));
    let mut page = Page { gap, records: Vec::new(), last, closed };
    let mut select =
        snapshot.prepare_cached("SELECT seq, time, kind, data FROM events WHERE run = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3")?;
    let mut rows = select.query(params![id, after.max(first - 1), i64::try_from(limit.events.max(1)).unwrap_or(i64::MAX)])?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let kind: String = row.get(2)?;
        let record = Record { seq: row.get(0)?, time: row.get(1)?, kind: batch::kind(&kind)?, data: row.get(3)? };
        bytes += record.data.len();
        page.records.push(record);
        if bytes >= limit.bytes {
            break;
        }
    }
    Ok(page)
}
