//! What one run, and one namespace, may store.

use super::{Origin, StoreError};

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

impl Quotas {
    /// A first look, so that a run over its quota does not even fill a temporary folder.
    pub fn begin_blob(&self, origin: Origin, run_bytes: i64) -> Result<(), StoreError> {
        if origin == Origin::Sandbox && run_bytes >= self.run_blob_bytes {
            return Err(StoreError::Quota { what: "the bytes of a run's blobs", most: self.run_blob_bytes });
        }
        Ok(())
    }

    /// Whether a run and its namespace may have this much, all blobs counted. What the gateway stores is bounded by who makes it.
    pub fn keep_blob(&self, origin: Origin, run_blobs: i64, run_bytes: i64, namespace_bytes: i64) -> Result<(), StoreError> {
        for (what, value, most, of_run) in [
            ("the blobs of a run", run_blobs, self.run_blobs, true),
            ("the bytes of a run's blobs", run_bytes, self.run_blob_bytes, true),
            ("the bytes of a namespace's blobs", namespace_bytes, self.namespace_blob_bytes, false),
        ] {
            if value > most && origin != Origin::Gateway && !(of_run && origin == Origin::Person) {
                return Err(StoreError::Quota { what, most });
            }
        }
        Ok(())
    }

    /// Whether a run may name one more blob than it has.
    pub fn name(&self, origin: Origin, named: i64) -> Result<(), StoreError> {
        if origin == Origin::Sandbox && named >= self.run_artifacts {
            return Err(StoreError::Quota { what: "the named artifacts of a run", most: self.run_artifacts });
        }
        Ok(())
    }
}
