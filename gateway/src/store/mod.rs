//! What outlives a Pod: event logs and artifacts, each behind a trait with interchangeable back ends. Nothing here knows HTTP
//! handlers, tokens or Kubernetes; the suites in `suite` hold for every back end.

mod artifacts;
mod batch;
mod budget_notes;
mod digest;
pub mod embedded;
mod error;
mod events;
mod folder_lock;
mod gates;
mod ledger;
mod options;
pub mod postgres;
mod quotas;
mod refusal;
mod retention;
pub mod s3;
mod spool;
#[cfg(test)]
mod suite;
mod waiting;
mod wakes;

use std::path::Path;
use std::sync::Arc;

pub use artifacts::{Artifact, ArtifactStore, Blob, BlobStream, Totals, Upload, put};
pub use digest::{Digest, DigestError, Hasher};
pub use error::StoreError;
pub use events::{EventStore, LogState, NewRecord, Page, PageLimit, Record};
pub use gates::{Gate, GateGuard, Gates};
pub use ledger::{BudgetLedger, Taken, TakenSlice};
pub use options::StoreOptions;
pub use quotas::Quotas;
pub use retention::Retention;

use crate::clock::Clock;

/// An answer of a store, object-safe.
pub type Answer<'a, T> = futures::future::BoxFuture<'a, Result<T, StoreError>>;

/// Which run a payload belongs to. The UID alone decides; namespace and name are for quotas and people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunRef {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

impl RunRef {
    /// The reference of a run as the API server knows it.
    pub fn of(run: &agentrun_crds::AgentRun) -> Self {
        RunRef { uid: crate::runs::uid(run).into(), namespace: crate::runs::namespace(run).into(), name: crate::runs::name(run).into() }
    }
}

/// Who wrote: each has keys and quotas of its own, so the sandbox can neither take a key of ours nor crowd us out. What a person
/// uploads counts for the namespace only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Sandbox = 0,
    Gateway = 1,
    Person = 2,
}

/// The stores of this gateway. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    pub events: Arc<dyn EventStore>,
    pub artifacts: Arc<dyn ArtifactStore>,
    pub ledger: Arc<dyn BudgetLedger>,
    /// What one run may have in flight.
    pub gates: Gates,
}

impl Stores {
    /// The stores that the options name, for the gateway of this name. Waits for a database and a bucket that are not there yet.
    pub async fn open(folder: &Path, options: &StoreOptions, instance: &str, clock: Clock) -> Result<Self, StoreError> {
        match options.place()? {
            options::Place::Embedded => {
                let (folder, options) = (folder.to_owned(), options.clone());
                let opened = tokio::task::spawn_blocking(move || Stores::embedded(&folder, &options, clock)).await;
                opened.map_err(|error| StoreError::Failed(error.to_string()))?
            }
            options::Place::Shared(url_file) => {
                let bucket = s3::Bucket::open(&options.objects, s3::credentials()?).await?;
                let database = (url_file, &options.database);
                Ok(Self::of(postgres::Postgres::open(folder, database, bucket, options.quotas(), instance, clock).await?))
            }
        }
    }

    /// The embedded stores in `folder`, which no other process may use. Blocking; run it before serving.
    pub fn embedded(folder: &Path, options: &StoreOptions, clock: Clock) -> Result<Self, StoreError> {
        let limits = embedded::Limits { database_max_bytes: Some(options.database_max_bytes), ..embedded::Limits::default() };
        Ok(Self::of(embedded::Embedded::open(folder, options.quotas(), limits, clock)?))
    }

    fn of<S: EventStore + ArtifactStore + BudgetLedger>(store: S) -> Self {
        let store = Arc::new(store);
        Stores { events: store.clone(), artifacts: store.clone(), ledger: store, gates: Gates::default() }
    }
}
