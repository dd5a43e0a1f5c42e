//! The budget ledger. A run's budget stands in `AgentRun.status`, its namespace's in `AgentPolicy.status`; this process takes
//! slices of them by compare-and-swap and admits calls from them.

mod account;
mod accounts;
mod ask;
mod leased;
mod orphans;
mod rate;
mod reservation;
mod slice;

use std::sync::Arc;

use agentrun_crds::AgentRun;
use agentrun_crds::budget::{Amount, Dimension};
use agentrun_crds::period::Window;
use agentrun_protocol::token::Claims;
use futures::future::BoxFuture;

use crate::error::ApiError;
use crate::store::StoreError;

pub use account::Account;
pub use accounts::Accounts;
pub use ask::{Ask, Granted, Price, plan};
pub use leased::LeasedLedger;
pub use orphans::Orphans;
pub use rate::{CallLimits, RateLimits, Rates, TooSoon};
pub use reservation::{Charge, Dispatched, Reserved};

/// Why a call is not admitted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// The token's run is not open (any more).
    #[error("the run is not active")]
    Inactive,
    /// Spent: no later retry can help.
    #[error("the budget's {0} are spent")]
    Exhausted(Dimension),
    /// The rest is reserved by calls in flight; a later retry can help.
    #[error("the rest of the budget's {0} is reserved by calls in flight")]
    Contended(Dimension),
    /// What all runs of the namespace may spend in a period is spent: no retry within it can help.
    #[error("the {dimension} of the namespace's budget of this {} are spent", window.period)]
    NamespaceExhausted { dimension: Dimension, window: Window, seconds_left: i64 },
    /// As many calls are in flight as a run may have.
    #[error("too many calls are in flight")]
    TooManyInFlight,
    /// A cost limit stands, but the model has no price.
    #[error("the model has no price, and the run has a cost limit")]
    Unpriced,
    /// The state could not be written or read.
    #[error(transparent)]
    Failed(ApiError),
}

/// Admits model calls and books what they took.
pub trait Ledger: Send + Sync + 'static {
    /// Admit one call at its worst case, in the run's budget and in those of its namespace. `claims` are checked on the run as
    /// given, which must be confirmed, or on the very object that the reservation is written to.
    fn reserve(&self, run: Arc<AgentRun>, claims: Claims, ask: Ask) -> BoxFuture<'static, Result<Reserved, NotAdmitted>>;

    /// Charge reservations in full whose holder no longer answers for them.
    fn charge_in_full(&self, account: Account, ids: Vec<String>);

    /// Ids that this process answers for.
    fn is_live(&self, id: &str) -> bool;

    /// This process, as written in `reservations[].holder`.
    fn holder(&self) -> &str;

    /// Write what was settled and give back what no call holds, here and on other processes. Waits for those for some
    /// seconds at most: they may be dead.
    fn rest(&self, run: Arc<AgentRun>) -> BoxFuture<'static, ()>;

    /// Read what an earlier life of this process has taken; before anything is reserved.
    fn recover(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Look after what is held, for ever.
    fn keep(&self) -> BoxFuture<'static, ()>;

    /// Wait until everything settled so far is written, and nothing is held that no call needs.
    fn idle(&self) -> BoxFuture<'static, ()>;
}

/// What a settlement came to, in the run's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub actual: Amount,
    pub requests_spent: i64,
    pub requests_limit: i64,
    /// The provider reported more than was reserved; the budget is closed.
    pub overrun: bool,
}
