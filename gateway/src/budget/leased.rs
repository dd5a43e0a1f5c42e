//! The leased ledger: calls are admitted and settled in memory within a slice that this process holds in an account's status.
//! Slices are taken, renewed and given back by compare-and-swap, one task per busy account; near the limit a slice is as large as
//! the calls that wait, so that each call is a compare-and-swap of its own. What is settled is written soon after. A call is held
//! by its run's account and by those of its namespace's periods, or by none.

mod book;
mod decide;
mod entry;
mod periods;
mod upkeep;
mod writing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_protocol::token::Claims;
use futures::future::{BoxFuture, ready};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::book::AccountBook;
use self::entry::{Entry, Need, Op};
use super::account::Account;
use super::accounts::Accounts;
use super::slice::Lease;
use super::{Ask, Ledger, NotAdmitted, Reserved};
use crate::clock::Clock;
use crate::error::ApiError;
use crate::store::{BudgetLedger, StoreError, Taken, TakenSlice};

/// Most reservations of one account that wait for a write.
const MAX_WAITING: usize = 512;
/// How long a call waits for what other processes hold in advance.
const PATIENCE: Duration = Duration::from_millis(2500);
const TICK: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Clone)]
pub struct LeasedLedger(Arc<Shared>);

struct Shared {
    accounts: Accounts,
    kube: kube::Client,
    clock: Clock,
    holder: String,
    /// Of this life, for ids.
    life: String,
    ids: AtomicU64,
    store: Arc<dyn BudgetLedger>,
    entries: Mutex<HashMap<String, Entry>>,
    /// What the store has of accounts that nothing is under way for.
    known: Mutex<HashMap<String, Taken>>,
    rested: Notify,
}

impl LeasedLedger {
    /// `instance` survives restarts of the process, the random half of the holder's name does not.
    pub fn new(instance: &str, accounts: Accounts, kube: kube::Client, store: Arc<dyn BudgetLedger>, clock: Clock) -> Self {
        let life = uuid::Uuid::new_v4().simple().to_string()[..12].to_owned();
        let holder = format!("{instance}/{life}");
        let (entries, known, rested) = (Mutex::default(), Mutex::default(), Notify::new());
        LeasedLedger(Arc::new(Shared { accounts, kube, clock, holder, life, ids: AtomicU64::new(0), store, entries, known, rested }))
    }
}

impl Shared {
    /// Never used before, by no process.
    fn fresh_id(&self) -> String {
        format!("{}-{:x}", self.life, self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn entry<'a>(&self, entries: &'a mut HashMap<String, Entry>, key: &str, account: &Account) -> &'a mut Entry {
        entries.entry(key.to_owned()).or_insert_with(|| {
            let taken = self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(key).unwrap_or_default();
            let slice = taken.slice.map(|TakenSlice { id, amount, used }| {
                let (used, attempts) = used.unwrap_or((amount, amount.requests.max(1)));
                (id, amount, used, attempts)
            });
            Entry::new(account, Lease::recovered(taken.spent, slice))
        })
    }

    /// Put what calls have taken of a slice where a crash leaves it. Of a call's own slice all is in use.
    fn note(&self, key: &str, entry: &Entry) {
        if let Some((slice, used, attempts)) = entry.lease.taken().filter(|_| entry.lease.has_room()) {
            self.store.note(key, slice, used, attempts);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeasedLedger {
    /// Admit a call in one account. `claims` are checked on the run as given, which must be confirmed, or on the very object that
    /// the reservation is written to.
    fn reserve_in(&self, account: &Account, claims: Option<Claims>, ask: Ask) -> BoxFuture<'static, Result<Reserved, NotAdmitted>> {
        let id = self.0.fresh_id();
        let key = account.key();
        let mut entries = self.0.lock();
        let entry = self.0.entry(&mut entries, &key, account);
        entry.touched = Instant::now();
        entry.asked = [entry.asked[1], entry.touched];
        let in_memory = !entry.frugal && entry.waiting.is_empty() && entry.stands_in(account) && account.honours(claims.as_ref());
        if let Some(granted) = in_memory.then(|| entry.lease.admit(&id, &ask)).flatten() {
            self.0.note(&key, entry);
            if !entry.no_growth && entry.lease.runs_low() {
                self.kick(&key, entry, Need::Renew);
            }
            let book = Arc::new(AccountBook { ledger: self.clone(), key });
            return Box::pin(ready(Ok(Reserved::new(id, granted, book))));
        }
        if entry.waiting.len() >= MAX_WAITING {
            return Box::pin(ready(Err(NotAdmitted::TooManyInFlight)));
        }
        let (answer, reserved) = oneshot::channel();
        entry.waiting.push(Op::Reserve { id, claims, ask, until: Instant::now() + PATIENCE, answer });
        self.kick(&key, entry, Need::Nothing);
        drop(entries);
        Box::pin(async move {
            let lost = || NotAdmitted::Failed(ApiError::unavailable("shutting_down", "the gateway is shutting down; try again"));
            reserved.await.unwrap_or_else(|_| Err(lost()))
        })
    }
}

impl Ledger for LeasedLedger {
    fn reserve(&self, run: Arc<AgentRun>, claims: Claims, ask: Ask) -> BoxFuture<'static, Result<Reserved, NotAdmitted>> {
        let policy = self.policy_with_budgets(&run);
        let of_run = self.reserve_in(&Account::Run(run), Some(claims), ask);
        let Some(policy) = policy else { return of_run };
        let ledger = self.clone();
        Box::pin(async move { ledger.reserve_in_periods(of_run.await?, &policy, ask).await })
    }

    fn charge_in_full(&self, account: Account, ids: Vec<String>) {
        let key = account.key();
        let mut entries = self.0.lock();
        let entry = self.0.entry(&mut entries, &key, &account);
        entry.waiting.extend(ids.into_iter().map(|id| Op::Charge { id }));
        self.kick(&key, entry, Need::Nothing);
    }

    fn is_live(&self, id: &str) -> bool {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.values().any(|taken| taken.slice.as_ref().is_some_and(|slice| slice.id == id)) {
            return true;
        }
        drop(known);
        // While a write is under way, its slice is not in the lease yet.
        let ours = id.starts_with(&self.0.life);
        self.0.lock().values().any(|entry| entry.lease.answers_for(id) || (ours && entry.working))
    }

    fn holder(&self) -> &str {
        &self.0.holder
    }

    fn rest(&self, run: Arc<AgentRun>) -> BoxFuture<'static, ()> {
        let account = Account::Run(run);
        let key = account.key();
        let mut entries = self.0.lock();
        let entry = self.0.entry(&mut entries, &key, &account);
        let (answer, rested) = oneshot::channel();
        entry.waiting.push(Op::Rest { until: Instant::now() + PATIENCE, answer });
        self.kick(&key, entry, Need::Return);
        drop(entries);
        Box::pin(async move { drop(rested.await) })
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let taken = self.0.store.taken().await?;
            self.0.known.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
            Ok(())
        })
    }

    fn keep(&self) -> BoxFuture<'static, ()> {
        let ledger = self.clone();
        Box::pin(async move {
            let accounts = &ledger.0.accounts;
            let mut changes = accounts.changes();
            accounts.wait_synced().await;
            ledger.take_up();
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => ledger.tick(),
                    changed = accounts.changed(&mut changes, || ledger.0.clock.now()) => match changed {
                        Some(changed) => changed.iter().for_each(|account| ledger.heed(account)),
                        None => return,
                    }
                }
            }
        })
    }

    fn idle(&self) -> BoxFuture<'static, ()> {
        let ledger = self.clone();
        Box::pin(async move {
            loop {
                let mut rested = std::pin::pin!(ledger.0.rested.notified());
                rested.as_mut().enable();
                let busy = {
                    let mut entries = ledger.0.lock();
                    for (key, entry) in entries.iter_mut() {
                        if entry.lease.has_slack() || entry.unwritten_since.is_some() {
                            ledger.kick(key, entry, Need::Return);
                        }
                    }
                    entries.values().any(|entry| entry.working)
                };
                if !busy {
                    return;
                }
                rested.await;
            }
        })
    }
}
