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

/// Admitted, nothing sent yet. Dropping it gives everything back.
pub struct Reserved {
    open: Option<Open>,
    granted: Granted,
}

impl Reserved {
    pub(super) fn new(id: String, granted: Granted, book: Arc<dyn Book>) -> Self {
        Reserved { open: Some(Open { id, book }), granted }
    }

    /// The admitted worst case.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// From here on the provider may be billing.
    pub fn dispatch(mut self) -> Dispatched {
        Dispatched { open: self.open.take(), granted: self.granted }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(Open { id, book }) = self.open.take() {
            drop(book.settle(id, Charge::Release));
        }
    }
}

/// Sent, outcome open. Dropping it charges the reservation in full.
pub struct Dispatched {
    open: Option<Open>,
    granted: Granted,
}

impl Dispatched {
    /// The admitted worst case.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// Its id, which is also the key of the call's event.
    pub fn id(&self) -> &str {
        self.open.as_ref().map_or("", |open| &open.id)
    }

    /// Book what it took. Await the answer only to learn the totals.
    pub fn settle(mut self, charge: Charge) -> BoxFuture<'static, Option<Settled>> {
        match self.open.take() {
            Some(Open { id, book }) => book.settle(id, charge),
            None => Box::pin(std::future::ready(None)),
        }
    }
}

impl Drop for Dispatched {
    fn drop(&mut self) {
        if let Some(Open { id, book }) = self.open.take() {
            drop(book.settle(id, Charge::Full { attempts: 1 }));
        }
    }
}
