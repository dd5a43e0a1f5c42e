//! The stores of gateways that share them: everything in PostgreSQL but the content of blobs, which is in a bucket.

mod append;
mod artifacts;
mod collect;
mod database;
mod failure;
mod followers;
mod ledger;
mod log;
mod options;
mod refer;
mod runs;
mod schema;
mod upload;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub use options::DatabaseOptions;

use super::budget_notes::BudgetNotes;
use super::folder_lock::FolderLock;
use super::s3::Bucket;
use super::waiting::Waiting;
use super::{Quotas, StoreError};
use crate::clock::Clock;
use database::Database;
use followers::Followers;
use options::Address;

/// Event store, artifact store and budget ledger in one database.
pub struct Postgres {
    database: Database,
    followers: Followers,
    bucket: Bucket,
    notes: BudgetNotes,
    quotas: Quotas,
    clock: Clock,
    /// Whose slices are ours.
    instance: String,
    spool: PathBuf,
    uploads: AtomicU64,
    /// Notes and spool are this process' alone.
    _lock: FolderLock,
}

impl Postgres {
    /// Connect, and bring the tables up to date. While the database does not answer this waits and says so; what waiting cannot
    /// mend is an error. `folder` is for uploads under way and the notes of the budget.
    pub async fn open(
        folder: &Path,
        (url_file, options): (&Path, &DatabaseOptions),
        bucket: Bucket,
        quotas: Quotas,
        instance: &str,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        std::fs::create_dir_all(folder)?;
        let lock = FolderLock::take(folder)?;
        let spool = folder.join("spool");
        if spool.exists() {
            std::fs::remove_dir_all(&spool)?; // never acknowledged
        }
        std::fs::create_dir_all(&spool)?;
        let address = Address::read(url_file, options.database_ca_file.as_deref())?;
        migrate(&address).await?;
        let database = Database::new(&address, options.database_connections)?;
        let followers = Followers::start(database.clone(), address);
        let notes = BudgetNotes::open(&folder.join("budget-notes"));
        let instance = instance.to_owned();
        Ok(Postgres { database, followers, bucket, notes, quotas, clock, instance, spool, uploads: AtomicU64::new(0), _lock: lock })
    }

    /// For an upload under way.
    fn temporary(&self) -> PathBuf {
        self.spool.join(self.uploads.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

async fn migrate(address: &Address) -> Result<(), StoreError> {
    let mut waiting = Waiting::for_the(format!("database at {}", address.shown()));
    loop {
        match schema::migrate(address).await {
            Ok(()) => return Ok(()),
            Err(failure) if failure.is_passing() => waiting.again(&failure.into_store_error().to_string()).await,
            Err(failure) => return Err(StoreError::Failed(format!("{} (at {})", failure.into_store_error(), address.shown()))),
        }
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
