//! The leased ledger: calls are admitted and settled in memory within a slice that this process holds in the run's status.
//! Slices are taken, renewed and given back by compare-and-swap, one task per busy run; near the limit a slice is as large as
//! the calls that wait, so that each call is a compare-and-swap of its own. What is settled is written soon after.

mod book;
mod decide;
mod entry;
mod upkeep;
mod writing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_protocol::token::Claims;
use futures::future::{BoxFuture, ready};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::book::RunBook;
use self::entry::{Entry, Need, Op};
use super::slice::Lease;
use super::{Ask, Ledger, NotAdmitted, Reserved};
use crate::auth::check_active;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::runs::{self, RunDirectory, StatusWriter};
use crate::store::{BudgetLedger, StoreError, Taken, TakenSlice};

/// Most reservations of one run that wait for a write.
const MAX_WAITING: usize = 512;
/// How long a call waits for what other processes hold in advance.
const PATIENCE: Duration = Duration::from_millis(2500);
const TICK: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Clone)]
pub struct LeasedLedger(Arc<Shared>);

struct Shared {
    writer: StatusWriter,
    directory: RunDirectory,
    clock: Clock,
    holder: String,
    /// Of this life, for ids.
    life: String,
    ids: AtomicU64,
    store: Arc<dyn BudgetLedger>,
    runs: Mutex<HashMap<String, Entry>>,
    /// What the store has of runs that nothing is under way for.
    known: Mutex<HashMap<String, Taken>>,
    rested: Notify,
}

impl LeasedLedger {
    /// `instance` survives restarts of the process, the random half of the holder's name does not.
    pub fn new(instance: &str, writer: StatusWriter, directory: RunDirectory, store: Arc<dyn BudgetLedger>, clock: Clock) -> Self {
        let life = uuid::Uuid::new_v4().simple().to_string()[..12].to_owned();
        let holder = format!("{instance}/{life}");
        let (runs, known, rested) = (Mutex::default(), Mutex::default(), Notify::new());
        LeasedLedger(Arc::new(Shared { writer, directory, clock, holder, life, ids: AtomicU64::new(0), store, runs, known, rested }))
    }
}

impl Shared {
    /// Never used before, by no process.
    fn fresh_id(&self) -> String {
        format!("{}-{:x}", self.life, self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn entry<'a>(&self, runs: &'a mut HashMap<String, Entry>, uid: &str, run: &Arc<AgentRun>) -> &'a mut Entry {
        runs.entry(uid.to_owned()).or_insert_with(|| {
            let taken = self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).unwrap_or_default();
            let slice = taken.slice.map(|TakenSlice { id, amount, used }| {
                let (used, attempts) = used.unwrap_or((amount, amount.requests.max(1)));
                (id, amount, used, attempts)
            });
            Entry::new(run, Lease::recovered(taken.spent, slice))
        })
    }

    /// Put what calls have taken of a slice where a crash leaves it. Of a call's own slice all is in use.
    fn note(&self, uid: &str, entry: &Entry) {
        if let Some((slice, used, attempts)) = entry.lease.taken().filter(|_| entry.lease.has_room()) {
            self.store.note(uid, slice, used, attempts);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger for LeasedLedger {
    fn reserve(&self, run: Arc<AgentRun>, claims: Claims, ask: Ask) -> BoxFuture<'static, Result<Reserved, NotAdmitted>> {
        let id = self.0.fresh_id();
        let uid = runs::uid(&run).to_owned();
        let mut runs = self.0.lock();
        let entry = self.0.entry(&mut runs, &uid, &run);
        entry.touched = Instant::now();
        entry.asked = [entry.asked[1], entry.touched];
        let in_memory = !entry.frugal && entry.waiting.is_empty() && entry.stands_in(&run) && check_active(&run, &claims).is_ok();
        if let Some(granted) = in_memory.then(|| entry.lease.admit(&id, &ask)).flatten() {
            self.0.note(&uid, entry);
            if !entry.no_growth && entry.lease.runs_low() {
                self.kick(&uid, entry, Need::Renew);
            }
            let book = Arc::new(RunBook { ledger: self.clone(), uid });
            return Box::pin(ready(Ok(Reserved::new(id, granted, book))));
        }
        if entry.waiting.len() >= MAX_WAITING {
            return Box::pin(ready(Err(NotAdmitted::TooManyInFlight)));
        }
        let (answer, reserved) = oneshot::channel();
        entry.waiting.push(Op::Reserve { id, claims, ask, until: Instant::now() + PATIENCE, answer });
        self.kick(&uid, entry, Need::Nothing);
        drop(runs);
        Box::pin(async move {
            let lost = || NotAdmitted::Failed(ApiError::unavailable("shutting_down", "the gateway is shutting down; try again"));
            reserved.await.unwrap_or_else(|_| Err(lost()))
        })
    }

    fn charge_in_full(&self, run: Arc<AgentRun>, ids: Vec<String>) {
        let uid = runs::uid(&run).to_owned();
        let mut runs = self.0.lock();
        let entry = self.0.entry(&mut runs, &uid, &run);
        entry.waiting.extend(ids.into_iter().map(|id| Op::Charge { id }));
        self.kick(&uid, entry, Need::Nothing);
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
        let uid = runs::uid(&run).to_owned();
        let mut runs = self.0.lock();
        let entry = self.0.entry(&mut runs, &uid, &run);
        let (answer, rested) = oneshot::channel();
        entry.waiting.push(Op::Rest { until: Instant::now() + PATIENCE, answer });
        self.kick(&uid, entry, Need::Return);
        drop(runs);
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
            let mut changes = ledger.0.directory.changes();
            ledger.0.directory.wait_synced().await;
            ledger.take_up();
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => ledger.tick(),
                    change = changes.recv() => match change {
                        Ok(run) => ledger.heed(&run),
                        Err(RecvError::Lagged(_)) => ledger.0.directory.snapshot().iter().for_each(|run| ledger.heed(run)),
                        Err(RecvError::Closed) => return,
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
                    let mut runs = ledger.0.lock();
                    for (uid, entry) in runs.iter_mut() {
                        if entry.lease.has_slack() || entry.unwritten_since.is_some() {
                            ledger.kick(uid, entry, Need::Return);
                        }
                    }
                    runs.values().any(|entry| entry.working)
                };
                if !busy {
                    return;
                }
                rested.await;
            }
        })
    }
}
