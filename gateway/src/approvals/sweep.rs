//! Writes down what has lain past its time, and what was open when its run ended. Decisions and uses find that out by
//! themselves; the sweep is for those whom nobody asks about. Several gateways that find the same write it once, since each decides
//! anew on the live object.

use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::AgentRun;
use futures::StreamExt;

use super::decide::{self, Life, is_overdue};
use crate::clock::Clock;
use crate::error::ApiError;
use crate::runs::{self, RunDirectory, StatusWriter};

const EVERY: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 16;

/// The sweep.
pub struct Expiry {
    pub status: StatusWriter,
    pub directory: RunDirectory,
    pub clock: Clock,
}

impl Expiry {
    /// Sweep now and then, for ever.
    pub async fn run(self) {
        self.directory.wait_synced().await;
        loop {
            self.sweep().await;
            tokio::time::sleep(EVERY).await;
        }
    }

    pub(crate) async fn sweep(&self) {
        let now = self.clock.unix_seconds();
        let due = self.directory.snapshot().into_iter().filter(|run| {
            let status = run.status.as_ref();
            status.is_some_and(|status| is_overdue(status, now, life(run)))
        });
        let writes = futures::stream::iter(due).map(|run| async move {
            match expire(&self.status, &run, &self.clock).await {
                Ok(_) => {}
                // Gone, and its approvals with it.
                Err(error) if error.status == http::StatusCode::UNAUTHORIZED => {}
                Err(error) => {
                    tracing::warn!(%error, run = runs::name(&run), "an approval's expiry could not be written; it is tried again")
                }
            }
        });
        writes.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// Write the expiry of what is overdue in a run; the run as it is then.
pub(super) async fn expire(status: &StatusWriter, run: &AgentRun, clock: &Clock) -> Result<Arc<AgentRun>, ApiError> {
    let written = status.update(run, |live, status| {
        decide::expire(status, clock.unix_seconds(), life(live));
        Ok(())
    });
    written.await.map(|((), run)| run)
}

/// How a run stands to decisions.
pub(super) fn life(run: &AgentRun) -> Life {
    if runs::is_terminal(run) {
        Life::Ended
    } else if run.spec.cancel || run.metadata.deletion_timestamp.is_some() {
        Life::Ending
    } else {
        Life::Going
    }
}
