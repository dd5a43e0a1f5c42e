//! What this process has of one budget, who waits for it, and what its next write must do.

use std::time::Duration;

use agentrun_crds::budget::Spent;
use agentrun_protocol::token::Claims;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::account::Account;
use super::super::slice::Lease;
use super::super::{Ask, NotAdmitted, Reserved};

/// More is taken in advance only while calls follow each other this closely; else the status would be written more often, not less.
pub(super) const BUSY_WITHIN: Duration = Duration::from_secs(2);

/// What the next write must do at least, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Nothing,
    /// Write what was settled; take more if it makes sense.
    Renew,
    /// The same, and give back what is not needed.
    Exact,
    /// Give back everything that no call holds.
    Return,
}

pub(super) struct Entry {
    pub(super) account: Account,
    pub(super) lease: Lease,
    pub(super) waiting: Vec<Op>,
    pub(super) need: Need,
    /// A task writes.
    pub(super) working: bool,
    /// The account is about to close, its limit has changed, or others are short: nothing is taken in advance.
    pub(super) frugal: bool,
    /// The last write could not take more.
    pub(super) no_growth: bool,
    pub(super) touched: Instant,
    /// When the last two calls asked.
    pub(super) asked: [Instant; 2],
    pub(super) unwritten_since: Option<Instant>,
    /// When the last renewal was written.
    pub(super) renewed: Instant,
    /// Version of our last write.
    pub(super) version: u64,
    pub(super) spent: Spent,
    pub(super) requests_limit: i64,
}

pub(super) enum Op {
    Reserve {
        id: String,
        /// Of the run that asks; a period asks for none.
        claims: Option<Claims>,
        ask: Ask,
        until: Instant,
        answer: oneshot::Sender<Result<Reserved, NotAdmitted>>,
    },
    /// Charge another's reservation in full.
    Charge { id: String },
    /// Give back everything, here and elsewhere.
    Rest { until: Instant, answer: oneshot::Sender<()> },
}
impl Op {
    /// How long it waits for others.
    pub(super) fn until(&self) -> Option<Instant> {
        match self {
            Op::Reserve { until, .. } | Op::Rest { until, .. } => Some(*until),
            Op::Charge { .. } => None,
        }
    }
}

impl Entry {
    pub(super) fn new(account: &Account, lease: Lease) -> Self {
        Entry {
            account: account.clone(),
            lease,
            waiting: Vec::new(),
            need: Need::Nothing,
            working: false,
            frugal: false,
            no_growth: false,
            touched: Instant::now(),
            asked: [Instant::now().checked_sub(BUSY_WITHIN).unwrap_or_else(Instant::now); 2],
            unwritten_since: None,
            renewed: Instant::now(),
            version: 0,
            spent: Spent::default(),
            requests_limit: 0,
        }
    }

    /// Whether an account that was read later than our last write still has our slice, and the same limit; without a slice there
    /// is nothing to miss.
    pub(super) fn stands_in(&self, account: &Account) -> bool {
        let Some(id) = self.lease.slice_id().filter(|_| !self.working && account.version() > self.version) else { return true };
        account.limit() == self.lease.limit() && account.reservations().iter().any(|r| r.id == id)
    }

    /// Whether the account as it was last written honours the token, and calls may be admitted in memory.
    pub(super) fn admits(&self, claims: Option<&Claims>) -> bool {
        !self.frugal && self.account.honours(claims)
    }
}
