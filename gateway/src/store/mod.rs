//! What outlives a Pod: event logs and artifacts, each behind a trait with interchangeable back ends. Nothing here knows HTTP
//! handlers, tokens or Kubernetes; the suites in `suite` hold for every back end.

mod artifacts;
mod digest;
pub mod embedded;
mod error;
mod events;
mod gates;
mod ledger;
mod refusal;
mod retention;
#[cfg(test)]
mod suite;

use std::path::Path;
use std::sync::Arc;

pub use artifacts::{Artifact, ArtifactStore, Blob, BlobStream, Totals, Upload, put};
pub use digest::{Digest, DigestError, Hasher};
pub use error::StoreError;
pub use events::{EventStore, LogState, NewRecord, Page, PageLimit, Record};
pub use gates::{Gate, GateGuard, Gates};
pub use ledger::{BudgetLedger, Taken, TakenSlice};
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

/// What one run, and one namespace, may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Events that a sandbox may append to one run's log; `output` events stop at three quarters of it.
    pub sandbox_events: i64,
    /// Bytes of their `data`.
    pub sandbox_bytes: i64,
    /// The gateway's own `model_call` and `budget` events; phases, approvals, result and end are never dropped.
    pub gateway_events: i64,
    pub gateway_bytes: i64,
    /// Blobs of one run.
    pub run_blobs: i64,
    pub run_blob_bytes: i64,
    /// Named artifacts of one run.
    pub run_artifacts: i64,
    /// Blob bytes of all runs of a namespace, each run's counted in full.
    pub namespace_blob_bytes: i64,
}

impl Default for Quotas {
    fn default() -> Self {
        const MIB: i64 = 1024 * 1024;
        Quotas {
            sandbox_events: 20_000,
            sandbox_bytes: 32 * MIB,
            gateway_events: 20_000,
            gateway_bytes: 8 * MIB,
            run_blobs: 4096,
            run_blob_bytes: 64 * MIB,
            run_artifacts: 256,
            namespace_blob_bytes: 4096 * MIB,
        }
    }
}

/// Command-line options of the embedded stores.
#[derive(clap::Args, Clone, Debug)]
pub struct StoreOptions {
    /// Delete events and artifacts of a run so many days after it ended; the log then reads as a gap and its last event.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub retention_days: u32,
    /// Most bytes of the embedded database; appends answer 507 beyond it.
    #[arg(long, default_value_t = 64 << 30, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub database_max_bytes: u64,
    /// Most bytes of blobs of one namespace.
    #[arg(long, default_value_t = 4 << 30, value_parser = clap::value_parser!(i64).range(1 << 20..))]
    pub namespace_blob_max_bytes: i64,
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
    /// The embedded stores in `folder`, which no other process may use. Blocking; run it before serving.
    pub fn embedded(folder: &Path, options: &StoreOptions, clock: Clock) -> Result<Self, StoreError> {
        let quotas = Quotas { namespace_blob_bytes: options.namespace_blob_max_bytes, ..Quotas::default() };
        let limits = embedded::Limits { database_max_bytes: Some(options.database_max_bytes), ..embedded::Limits::default() };
        let store = Arc::new(embedded::Embedded::open(folder, quotas, limits, clock)?);
        Ok(Stores { events: store.clone(), artifacts: store.clone(), ledger: store, gates: Gates::default() })
    }
}
