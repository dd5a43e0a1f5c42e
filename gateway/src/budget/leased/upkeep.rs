//! What happens now and then, and when a watch shows something: settled amounts are written, what nobody uses goes back.

use std::sync::PoisonError;
use std::time::Duration;

use super::super::account::Account;
use super::LeasedLedger;
use super::entry::{Entry, Need};
use crate::store::Taken;

/// Settled amounts are written after this, a slice that nobody uses goes back after that.
const WRITE_AFTER: Duration = Duration::from_millis(1000);
const REST_AFTER: Duration = Duration::from_millis(1500);
/// An account that nothing was heard of is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// With more than this, what is known of accounts that are gone is kept on disk only.
const KNOWN: usize = 4096;

impl LeasedLedger {
    /// Settle what an earlier life of this process has left in accounts that are still there, and let go of periods that are over.
    pub(super) fn take_up(&self) {
        let now = self.0.clock.now();
        let mut left = self.0.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for account in self.0.accounts.snapshot(now) {
            let key = account.key();
            let Some(taken) = left.remove(&key).filter(|_| !account.is_over(now)) else { continue };
            if taken.slice.is_some() || account.requests_spent() < taken.spent.requests {
                let mut entries = self.0.lock();
                let entry = self.0.entry(&mut entries, &key, &account);
                self.kick(&key, entry, Need::Exact);
            }
        }
        left.keys().filter(|key| Account::is_period_before(key, now)).for_each(|key| self.forget(key.clone()));
    }

    /// Now and then: write what was settled, give back what nobody uses, forget what has ended.
    pub(super) fn tick(&self) {
        let now = self.0.clock.now();
        let mut entries = self.0.lock();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut over = Vec::new();
        entries.retain(|key, entry| {
            let stays = entry.working || !entry.lease.is_empty() || !entry.waiting.is_empty() || entry.touched.elapsed() < FORGET_AFTER;
            if !stays && matches!(entry.account, Account::Period(..)) && entry.account.is_over(now) {
                over.push(key.clone());
            } else if !stays {
                known.insert(key.clone(), Taken { spent: entry.lease.known(), slice: None });
            }
            stays
        });
        over.extend(known.keys().filter(|key| Account::is_period_before(key, now)).cloned());
        if known.len() > KNOWN {
            known.retain(|key, _| self.0.accounts.has(key, now));
        }
        drop(known);
        for (key, entry) in entries.iter_mut().filter(|(_, entry)| !entry.working) {
            if entry.unwritten_since.is_some() {
                self.0.note(key, entry);
            }
            if entry.lease.has_slack() && entry.touched.elapsed() >= REST_AFTER {
                self.kick(key, entry, Need::Return);
            } else if entry.unwritten_since.is_some_and(|since| since.elapsed() >= WRITE_AFTER) {
                self.kick(key, entry, Need::Renew);
            }
        }
        drop(entries);
        over.into_iter().for_each(|key| self.forget(key));
    }

    /// Nothing is to be booked there any more.
    fn forget(&self, key: String) {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let store = self.0.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.forget(&key).await {
                tracing::warn!(%error, key, "a budget that is over could not be removed from the ledger");
            }
        });
    }

    /// What the watch shows of an account.
    pub(super) fn heed(&self, account: &Account) {
        let mut entries = self.0.lock();
        let key = account.key();
        if account.shows_another_limit() || self.knows_better(entries.get(&key), &key, account) {
            let entry = self.0.entry(&mut entries, &key, account);
            self.kick(&key, entry, Need::Exact);
        }
        let Some(entry) = entries.get_mut(&key) else { return };
        let limit_changed = !entry.lease.is_empty() && account.version() > entry.version && account.limit() != entry.lease.limit();
        if account.is_ending() || account.is_wanted(&self.0.holder) || limit_changed {
            entry.frugal = true;
            if !entry.lease.is_empty() && (entry.lease.has_slack() || entry.unwritten_since.is_some()) {
                self.kick(&key, entry, Need::Return);
            }
        }
    }

    /// Whether a version later than our last write says that less was spent than we know: the cluster's state is older than our
    /// ledger, or a policy was deleted and made again. Others, who may not know, are told before they admit from it.
    fn knows_better(&self, entry: Option<&Entry>, key: &str, account: &Account) -> bool {
        let known = || self.0.known.lock().unwrap_or_else(PoisonError::into_inner).get(key).map_or(0, |taken| taken.spent.requests);
        let (spent, version) = entry.map_or_else(|| (known(), 0), |entry| (entry.lease.known().requests, entry.version));
        !account.is_ending() && account.version() > version && account.requests_spent() < spent
    }
}
