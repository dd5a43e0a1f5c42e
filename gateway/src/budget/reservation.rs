//! Reservations as values that cannot be forgotten: dropped before dispatch they are released, dropped after it they are
//! charged in full. Only a dispatched one gives access to the provider's key.

use std::sync::Arc;

use agentrun_crds::budget::Amount;
use futures::future::BoxFuture;

use super::{Granted, Settled};

/// How a reservation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Nothing was sent.
    Release,
    /// The outcome is unknown: the reservation itself.
    Full { attempts: i64 },
    /// What the provider reported.
    Actual { amount: Amount, attempts: i64 },
}

/// Where a reservation is booked; the ledger's half.
pub trait Book: Send + Sync + 'static {
    /// Enqueue; resolves when it is written. The returned future may be dropped, the settlement goes on.
    fn settle(&self, id: String, charge: Charge) -> BoxFuture<'static, Option<Settled>>;
}

struct Open {
    id: String,
    book: Arc<dyn Book>,
}

/// What one call holds, the run's own first. Dropping it does nothing.
#[derive(Default)]
struct Holds {
    of_run: Option<Open>,
    of_periods: Vec<Open>,
}

impl Holds {
    /// Settle all, once; the answer is the run's.
    fn settle(&mut self, charge: Charge) -> Option<BoxFuture<'static, Option<Settled>>> {
        for Open { id, book } in self.of_periods.drain(..) {
            drop(book.settle(id, charge));
        }
        self.of_run.take().map(|Open { id, book }| book.settle(id, charge))
    }
}

/// Admitted, nothing sent yet. Dropping it gives everything back.
pub struct Reserved {
    holds: Holds,
    granted: Granted,
}

impl Reserved {
    pub(super) fn new(id: String, granted: Granted, book: Arc<dyn Book>) -> Self {
        Reserved { holds: Holds { of_run: Some(Open { id, book }), of_periods: Vec::new() }, granted }
    }

    /// Held by another account too, which was asked for no more than this one grants.
    pub(super) fn and(mut self, mut other: Reserved) -> Self {
        self.holds.of_periods.extend(other.holds.of_run.take());
        self.holds.of_periods.append(&mut other.holds.of_periods);
        self.granted = other.granted;
        self
    }

    /// The admitted worst case.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// From here on the provider may be billing.
    pub fn dispatch(mut self) -> Dispatched {
        Dispatched { holds: std::mem::take(&mut self.holds), granted: self.granted }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        drop(self.holds.settle(Charge::Release));
    }
}

/// Sent, outcome open. Dropping it charges the reservation in full.
pub struct Dispatched {
    holds: Holds,
    granted: Granted,
}

impl Dispatched {
    /// The admitted worst case.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// Its id, which is also the key of the call's event.
    pub fn id(&self) -> &str {
        self.holds.of_run.as_ref().map_or("", |open| &open.id)
    }

    /// Book what it took. Await the answer only to learn the totals.
    pub fn settle(mut self, charge: Charge) -> BoxFuture<'static, Option<Settled>> {
        self.holds.settle(charge).unwrap_or_else(|| Box::pin(std::future::ready(None)))
    }
}

impl Drop for Dispatched {
    fn drop(&mut self) {
        drop(self.holds.settle(Charge::Full { attempts: 1 }));
    }
}
