//! The ledger's half of a reservation: what a call took is booked in memory, and written soon.

use futures::future::{BoxFuture, ready};
use tokio::time::Instant;

use super::super::reservation::Book;
use super::super::{Charge, Settled};
use super::LeasedLedger;
use super::entry::Need;

pub(super) struct AccountBook {
    pub(super) ledger: LeasedLedger,
    pub(super) key: String,
}

impl Book for AccountBook {
    fn settle(&self, id: String, charge: Charge) -> BoxFuture<'static, Option<Settled>> {
        let mut entries = self.ledger.0.lock();
        let Some(entry) = entries.get_mut(&self.key) else { return Box::pin(ready(None)) };
        let Some((actual, overrun)) = entry.lease.settle(&id, charge) else { return Box::pin(ready(None)) };
        let now = Instant::now();
        entry.touched = now;
        entry.unwritten_since.get_or_insert(now);
        let settled = Settled {
            actual,
            requests_spent: entry.spent.requests.saturating_add(entry.lease.unwritten().amount.requests),
            requests_limit: entry.requests_limit,
            overrun,
        };
        if overrun || entry.frugal || !entry.lease.has_room() {
            self.ledger.kick(&self.key, entry, Need::Exact);
        }
        Box::pin(ready(Some(settled)))
    }
}
