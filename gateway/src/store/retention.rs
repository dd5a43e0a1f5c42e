//! Payloads go some days after their run has ended: artifacts first, then events, so that a crash in between is resumed. Of several
//! gateways the leader does it; two at once find less to do.

use std::time::Duration;

use super::{StoreError, Stores};
use crate::clock::Clock;
use crate::leader::Leader;

/// When payloads go.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub days: u32,
}

const EVERY: Duration = Duration::from_secs(600);
const AT_ONCE: usize = 64;
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

impl Retention {
    /// Purge for ever; failures are logged and tried again.
    pub async fn run(self, stores: Stores, clock: Clock, mut leader: Leader) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !leader.gained().await {
                return;
            }
            if let Err(error) = self.pass(&stores, &clock).await {
                tracing::warn!(%error, "purging expired runs failed; it is tried again");
            }
        }
    }

    /// Purge everything that is due now; how many runs.
    pub async fn pass(self, stores: &Stores, clock: &Clock) -> Result<usize, StoreError> {
        let closed_before = clock.unix_millis() - i64::from(self.days) * DAY_MILLIS;
        let mut purged = 0;
        loop {
            let expired = stores.events.expired(closed_before, AT_ONCE).await?;
            if expired.is_empty() {
                break;
            }
            for run in &expired {
                stores.artifacts.purge(&run.uid).await?;
                stores.events.purge(&run.uid).await?;
                stores.ledger.forget(&run.uid).await?;
                tracing::info!(namespace = run.namespace, run = run.name, "purged the payloads of an ended run");
            }
            purged += expired.len();
        }
        stores.artifacts.collect().await?;
        Ok(purged)
    }
}
