//! Both stores on one volume, for one process: SQLite (WAL, synchronous FULL, one writer thread whose batches are the group
//! commit) and a folder of blobs.

mod append;
mod blobs;
mod ledger;
mod log;
mod readers;
mod upload;
mod writer;

#[cfg(test)]
mod crash;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests {
    //! The suites of all traits, on this back end.

    use super::super::suite::{self, Subject};
    use super::*;

    fn subject(quotas: Quotas) -> Subject {
        let folder = tempfile::tempdir().expect("folder");
        let clock = Clock::from_fn(|| 1_000);
        let store = Arc::new(Embedded::open(folder.path(), quotas, Limits::default(), clock).expect("store"));
        Subject { events: store.clone(), artifacts: store.clone(), ledger: store, _keep: Box::new(folder) }
    }

    suite::event_store!(subject);
    suite::artifact_store!(subject);
    suite::budget_ledger!(subject);
}

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::budget_notes::BudgetNotes;
use super::folder_lock::FolderLock;
use super::wakes::Wakes;
use super::{Quotas, StoreError};
use crate::clock::Clock;
use readers::Readers;
use writer::Writer;

/// How much the embedded stores take of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Writes that may wait for the writer thread.
    pub queue: usize,
    /// Connections that read at the same time.
    pub readers: usize,
    /// Longest wait for the database's lock or for a place in the queue.
    pub patience: Duration,
    pub database_max_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { queue: 256, readers: 4, patience: Duration::from_secs(2), database_max_bytes: None }
    }
}

/// Event store and artifact store in one folder.
pub struct Embedded {
    writer: Writer,
    readers: Readers,
    wakes: Wakes,
    quotas: Quotas,
    clock: Clock,
    blobs: Arc<blobs::Folder>,
    notes: BudgetNotes,
    /// Held for as long as the store is open: no two processes write the same folder.
    _lock: FolderLock,
}

impl Embedded {
    /// Open or create. Blocking. A damaged or newer database is refused, never replaced.
    pub fn open(folder: &Path, quotas: Quotas, limits: Limits, clock: Clock) -> Result<Self, StoreError> {
        std::fs::create_dir_all(folder)?;
        let lock = FolderLock::take(folder)?;
        let database = folder.join("agentrun.db");
        let connection = connect(&database, limits.patience)?;
        migrate(&connection)?;
        if let Some(most) = limits.database_max_bytes {
            let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
            let pages = (i64::try_from(most).unwrap_or(i64::MAX) / page.max(1)).clamp(16, 0xffff_fffe);
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get::<_, i64>(0))?;
        }
        // The first reader shows at once whether the file can be read.
        let readers = Readers::open(&database, limits.readers, limits.patience)?;
        let blobs = Arc::new(blobs::Folder::open(folder.join("blobs"))?);
        let notes = BudgetNotes::open(&folder.join("budget-notes"));
        let writer = Writer::start(connection, limits.queue, limits.patience)?;
        Ok(Embedded { writer, readers, wakes: Wakes::default(), quotas, clock, blobs, notes, _lock: lock })
    }
}

fn connect(database: &PathBuf, patience: Duration) -> Result<Connection, StoreError> {
    let connection = Connection::open(database)?;
    connection.busy_timeout(patience)?;
    connection.set_prepared_statement_cache_capacity(64);
    // The pragma answers with the mode that is in force.
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::Failed(format!(
            "{} does not support WAL (journal mode {mode}); a local file system is needed",
            database.display()
        )));
    }
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA journal_size_limit = 67108864;")?;
    Ok(connection)
}

const SCHEMA_VERSION: i64 = 2;

/// `runs.next` is the number that the next event gets, `first` the lowest that is still there. `truncated` has one bit for
/// each class of events that has met its quota.
const FIRST_SCHEMA: &str = "
BEGIN IMMEDIATE;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    next INTEGER NOT NULL DEFAULT 1,
    first INTEGER NOT NULL DEFAULT 1,
    closed_at INTEGER,
    purged INTEGER NOT NULL DEFAULT 0,
    sandbox_events INTEGER NOT NULL DEFAULT 0,
    sandbox_bytes INTEGER NOT NULL DEFAULT 0,
    gateway_events INTEGER NOT NULL DEFAULT 0,
    gateway_bytes INTEGER NOT NULL DEFAULT 0,
    truncated INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0,
    blobs INTEGER NOT NULL DEFAULT 0,
    blob_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_namespace ON runs (namespace, blob_bytes);
CREATE INDEX runs_closed ON runs (closed_at) WHERE purged = 0;
CREATE TABLE events (
    run INTEGER NOT NULL REFERENCES runs (id),
    seq INTEGER NOT NULL,
    time INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    origin INTEGER NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_seq ON events (run, seq);
CREATE UNIQUE INDEX events_key ON events (run, attempt, origin, key);
CREATE TABLE blob_refs (
    run INTEGER NOT NULL REFERENCES runs (id),
    digest TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (run, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_refs_digest ON blob_refs (digest);
CREATE TABLE artifacts (
    run INTEGER NOT NULL REFERENCES runs (id),
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
COMMIT;
";

fn migrate(connection: &Connection) -> Result<(), StoreError> {
    match connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))? {
        0 => {
            connection.execute_batch(FIRST_SCHEMA)?;
            second(connection)
        }
        1 => second(connection),
        SCHEMA_VERSION => Ok(()),
        other => Err(StoreError::Failed(format!("the database has version {other}; this gateway knows {SCHEMA_VERSION}"))),
    }
}

/// From the first version to the second.
fn second(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.execute_batch(&format!("BEGIN IMMEDIATE; {} PRAGMA user_version = 2; COMMIT;", ledger::TABLE))?)
}

/// The row of a run, made if it is not there.
fn run_row(connection: &Connection, run: &super::RunRef) -> Result<i64, StoreError> {
    let mut insert =
        connection.prepare_cached("INSERT INTO runs (uid, namespace, name) VALUES (?1, ?2, ?3) ON CONFLICT (uid) DO NOTHING")?;
    insert.execute([&run.uid, &run.namespace, &run.name])?;
    Ok(connection.prepare_cached("SELECT id FROM runs WHERE uid = ?1")?.query_row([&run.uid], |row| row.get(0))?)
}
