//! The leased ledger: calls are admitted and settled in memory within a slice that this process holds in the run's status.
//! Slices are taken, renewed and given back by compare-and-swap, one task per busy run; near the limit a slice is as large as
//! the calls that wait, so that each call is a compare-and-swap of its own. What is settled is written soon after.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentrun_crds::budget::{Budget, Gate, Spent};
use agentrun_crds::{AgentRun, AgentRunStatus};
use agentrun_protocol::token::Claims;
use futures::future::{BoxFuture, ready};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::reservation::Book;
use super::slice::{Lease, Renewal, Renewed, Slice, View};
use super::{Ask, Charge, Ledger, NotAdmitted, Reserved, Settled};
use crate::auth::check_active;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::runs::{self, RunDirectory, StatusWriter};
use crate::store::{BudgetLedger, StoreError, Taken, TakenSlice};

/// Most reservations of one run that wait for a write.
const MAX_WAITING: usize = 512;
/// Wait between tries while nothing can be written.
const RETRY: Duration = Duration::from_millis(500);
/// How long a call waits for what other processes hold in advance.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How often another look is taken meanwhile; changes that the watch brings are looked at at once.
const LOOK: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(250);
/// Settled amounts are written after this, a slice that nobody uses goes back after that.
const WRITE_AFTER: Duration = Duration::from_millis(1000);
const REST_AFTER: Duration = Duration::from_millis(1500);
/// A run takes in advance only while its calls follow each other this closely; else it would be written more often, not less.
const BUSY_WITHIN: Duration = Duration::from_secs(2);
/// A run that nothing was heard of is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// With more than this, what is known of runs that are gone is kept on disk only.
const KNOWN_RUNS: usize = 4096;

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

/// What a run's next write must do at least, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Nothing,
    /// Write what was settled; take more if it makes sense.
    Renew,
    /// The same, and give back what is not needed.
    Exact,
    /// Give back everything that no call holds.
    Return,
}

struct Entry {
    run: Arc<AgentRun>,
    lease: Lease,
    waiting: Vec<Op>,
    need: Need,
    /// A task works for the run.
    working: bool,
    /// The run is about to end or others are short: nothing is taken in advance.
    frugal: bool,
    /// The last write could not take more.
    no_growth: bool,
    touched: Instant,
    /// When the last two calls asked.
    asked: [Instant; 2],
    unwritten_since: Option<Instant>,
    /// Version of our last write.
    version: u64,
    spent: Spent,
    requests_limit: i64,
}

enum Op {
    Reserve {
        id: String,
        claims: Claims,
        ask: Ask,
        until: Instant,
        answer: oneshot::Sender<Result<Reserved, NotAdmitted>>,
    },
    /// Charge another's reservation in full.
    Charge {
        id: String,
    },
    /// Give back everything, here and elsewhere.
    Rest {
        until: Instant,
        answer: oneshot::Sender<()>,
    },
}

/// One write under way.
struct Job {
    run: Arc<AgentRun>,
    view: View,
    ops: Vec<Op>,
    grow: bool,
}

impl LeasedLedger {
    /// `instance` survives restarts of the process, the random half of the holder's name does not.
    pub fn new(instance: &str, writer: StatusWriter, directory: RunDirectory, store: Arc<dyn BudgetLedger>, clock: Clock) -> Self {
        let life = uuid::Uuid::new_v4().simple().to_string()[..12].to_owned();
        let holder = format!("{instance}/{life}");
        let (runs, known, rested) = (Mutex::default(), Mutex::default(), Notify::new());
        LeasedLedger(Arc::new(Shared { writer, directory, clock, holder, life, ids: AtomicU64::new(0), store, runs, known, rested }))
    }

    /// What is written is on disk before it is used.
    async fn keep_on_disk(&self, uid: &str, renewed: &Renewed) -> Result<(), ApiError> {
        let slice = renewed.slice().map(|(id, amount)| TakenSlice { id: id.to_owned(), amount, used: None });
        Ok(self.0.store.take(uid, Taken { spent: renewed.spent, slice }).await?)
    }

    /// Settle what an earlier life of this process has left in runs that are still there.
    fn take_up(&self) {
        let left: Vec<(String, Taken)> = self.0.known.lock().unwrap_or_else(PoisonError::into_inner).clone().into_iter().collect();
        for (uid, taken) in left {
            let Some(run) = self.0.directory.get(&uid).filter(|run| !runs::is_terminal(run)) else { continue };
            let spent = run.status.as_ref().and_then(|status| status.budget.as_ref()).map(|budget| budget.spent).unwrap_or_default();
            if taken.slice.is_some() || spent.requests < taken.spent.requests {
                let mut runs = self.0.lock();
                let entry = self.0.entry(&mut runs, &uid, &run);
                self.kick(&uid, entry, Need::Exact);
            }
        }
    }

    /// Have a task work for the run, if none does.
    fn kick(&self, uid: &str, entry: &mut Entry, need: Need) {
        entry.need = entry.need.max(need);
        if !std::mem::replace(&mut entry.working, true) {
            let (ledger, uid) = (self.clone(), uid.to_owned());
            tokio::spawn(async move { ledger.work(uid).await });
        }
    }

    /// Write after write until nothing is to be written.
    async fn work(self, uid: String) {
        loop {
            let mut changes = self.0.directory.changes();
            let Some(job) = self.next(&uid) else {
                self.0.rested.notify_waiters();
                return;
            };
            let Job { run, view, ops, grow } = job;
            let now = self.0.clock.unix_seconds();
            let mut doubtful = view.doubtful();
            let patient = ops.iter().any(|op| op.until().is_some_and(|until| Instant::now() < until));
            let decide = |current: &AgentRun, status: &mut AgentRunStatus| {
                let how = Renewal {
                    holder: &self.0.holder,
                    id: self.0.fresh_id(),
                    now,
                    grow,
                    call_in: patient,
                    rest: ops.iter().any(|op| matches!(op, Op::Rest { .. })),
                };
                Ok(decide(&view, &mut doubtful, &ops, current, status, &how))
            };
            match self.0.writer.update(&run, decide).await {
                Ok(((renewed, budget), written)) => {
                    if renewed.restored {
                        tracing::warn!(run = runs::name(&written), "the cluster knew of less spending than our ledger, and was told");
                    }
                    if let Err(error) = self.keep_on_disk(&uid, &renewed).await {
                        tracing::error!(error = %error.message, "the budget's ledger could not be written; nothing is granted");
                        self.failed(&uid, ops, doubtful, &error);
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                    if self.written(&uid, ops, &renewed, &budget, written) {
                        // Others hold what would be of use; they give it back when they see that it is asked for.
                        let changed = async { while !matches!(changes.recv().await, Ok(run) if runs::uid(&run) == uid) {} };
                        let _ = tokio::time::timeout(LOOK, changed).await;
                    }
                }
                // The run is gone, and its budget with it.
                Err(error) if error.status == http::StatusCode::UNAUTHORIZED => self.gone(&uid, ops),
                Err(error) => {
                    self.failed(&uid, ops, doubtful, &error);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn next(&self, uid: &str) -> Option<Job> {
        let freshest = self.0.directory.freshest(uid);
        let mut runs = self.0.lock();
        let entry = runs.get_mut(uid)?;
        if entry.waiting.is_empty() && entry.need == Need::Nothing {
            entry.working = false;
            return None;
        }
        if let Some(fresher) = freshest {
            entry.run = fresher;
        }
        let need = std::mem::replace(&mut entry.need, Need::Nothing);
        let ops = std::mem::take(&mut entry.waiting);
        let view = entry.lease.begin(!ops.is_empty() || need > Need::Renew);
        let asks = ops.iter().filter(|op| matches!(op, Op::Reserve { .. })).count();
        let rests = ops.iter().any(|op| matches!(op, Op::Rest { .. }));
        let busy = asks > 1 || entry.asked[0].elapsed() < BUSY_WITHIN;
        let grow = busy && (asks > 0 || need == Need::Renew) && need < Need::Return && !entry.frugal && !rests;
        Some(Job { run: entry.run.clone(), view, ops, grow })
    }

    /// Answer whoever can be answered; whether somebody waits for others' slices.
    fn written(&self, uid: &str, ops: Vec<Op>, renewed: &Renewed, budget: &Budget, written: Arc<AgentRun>) -> bool {
        let now = Instant::now();
        let ids: Vec<String> = ops.iter().filter_map(|op| if let Op::Reserve { id, .. } = op { Some(id.clone()) } else { None }).collect();
        let mut answers = renewed.answers.iter();
        let mut said: Vec<Box<dyn FnOnce()>> = Vec::new();
        let mut still = Vec::new();
        for op in ops {
            let waits = renewed.starved && op.until().is_some_and(|until| now < until);
            match op {
                Op::Reserve { id, answer, .. } if matches!(answers.clone().next(), Some(Ok(_))) => {
                    if let Some(Ok(granted)) = answers.next() {
                        let book = Arc::new(RunBook { ledger: self.clone(), uid: uid.to_owned() });
                        let reserved = Reserved::new(id, *granted, book);
                        // If nobody waits any more, dropping the value releases it.
                        said.push(Box::new(move || drop(answer.send(Ok(reserved)))));
                    }
                }
                Op::Reserve { id, claims, ask, until, answer } => match answers.next() {
                    Some(Err(NotAdmitted::Contended(_))) if waits => still.push(Op::Reserve { id, claims, ask, until, answer }),
                    Some(Err(refused)) => {
                        let refused = refused.clone();
                        said.push(Box::new(move || drop(answer.send(Err(refused)))));
                    }
                    _ => tracing::error!("a decision does not match its operation"),
                },
                Op::Charge { .. } => {}
                rest @ Op::Rest { .. } if waits => still.push(rest),
                Op::Rest { answer, .. } => said.push(Box::new(move || {
                    let _ = answer.send(());
                })),
            }
        }
        let waits = !still.is_empty();
        let mut runs = self.0.lock();
        if let Some(entry) = runs.get_mut(uid) {
            if renewed.lost && entry.lease.in_flight() > 0 {
                tracing::info!(run = runs::name(&written), "a slice was charged in full by somebody else");
            }
            entry.lease.written(renewed, &ids);
            self.0.note(uid, entry);
            entry.no_growth = entry.lease.runs_low();
            entry.version = runs::version(&written);
            entry.spent = budget.spent;
            entry.requests_limit = budget.limit.requests;
            entry.frugal = is_ending(&written) || is_wanted(&written, &self.0.holder);
            entry.unwritten_since = (entry.lease.unwritten() != Default::default()).then_some(now);
            // Settled during the write, with nothing held in advance.
            if entry.unwritten_since.is_some() && !entry.lease.has_room() {
                entry.need = entry.need.max(Need::Exact);
            }
            entry.run = written;
            still.append(&mut entry.waiting);
            entry.waiting = still;
        }
        drop(runs);
        // Not before: what is dropped here may settle at once.
        said.into_iter().for_each(|say| say());
        waits
    }

    fn gone(&self, uid: &str, ops: Vec<Op>) {
        let entry = self.0.lock().remove(uid);
        for op in ops.into_iter().chain(entry.map(|entry| entry.waiting).unwrap_or_default()) {
            match op {
                Op::Reserve { answer, .. } => drop(answer.send(Err(NotAdmitted::Inactive))),
                Op::Rest { answer, .. } => {
                    let _ = answer.send(());
                }
                Op::Charge { .. } => {}
            }
        }
    }

    /// Refuse the reservations; what may have been written is found out by the next write.
    fn failed(&self, uid: &str, ops: Vec<Op>, doubtful: Vec<Slice>, error: &ApiError) {
        let mut refused = Vec::new();
        let mut still = Vec::new();
        for op in ops {
            match op {
                Op::Reserve { answer, .. } => refused.push(answer),
                op if op.until().is_some_and(|until| Instant::now() >= until) => {
                    if let Op::Rest { answer, .. } = op {
                        let _ = answer.send(());
                    }
                }
                op => still.push(op),
            }
        }
        if let Some(entry) = self.0.lock().get_mut(uid) {
            entry.lease.in_doubt(doubtful);
            entry.need = entry.need.max(Need::Exact);
            still.append(&mut entry.waiting);
            entry.waiting = still;
        }
        for answer in refused {
            let _ = answer.send(Err(NotAdmitted::Failed(error.clone())));
        }
    }

    /// Now and then: write what was settled, give back what nobody uses, forget what has ended.
    fn tick(&self) {
        let mut runs = self.0.lock();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|uid, entry| {
            let stays = entry.working || !entry.lease.is_empty() || !entry.waiting.is_empty() || entry.touched.elapsed() < FORGET_AFTER;
            if !stays {
                known.insert(uid.clone(), Taken { spent: entry.lease.known(), slice: None });
            }
            stays
        });
        if known.len() > KNOWN_RUNS {
            known.retain(|uid, _| self.0.directory.get(uid).is_some());
        }
        drop(known);
        for (uid, entry) in runs.iter_mut().filter(|(_, entry)| !entry.working) {
            if entry.unwritten_since.is_some() {
                self.0.note(uid, entry);
            }
            if entry.lease.has_slack() && entry.touched.elapsed() >= REST_AFTER {
                self.kick(uid, entry, Need::Return);
            } else if entry.unwritten_since.is_some_and(|since| since.elapsed() >= WRITE_AFTER) {
                self.kick(uid, entry, Need::Renew);
            }
        }
    }

    /// What the watch shows of a run.
    fn heed(&self, run: &AgentRun) {
        let mut runs = self.0.lock();
        let Some(entry) = runs.get_mut(runs::uid(run)) else { return };
        if is_ending(run) || is_wanted(run, &self.0.holder) {
            entry.frugal = true;
            if !entry.lease.is_empty() && (entry.lease.has_slack() || entry.unwritten_since.is_some()) {
                self.kick(runs::uid(run), entry, Need::Return);
            }
        }
    }
}

impl Op {
    /// How long it waits for others.
    fn until(&self) -> Option<Instant> {
        match self {
            Op::Reserve { until, .. } | Op::Rest { until, .. } => Some(*until),
            Op::Charge { .. } => None,
        }
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

impl Entry {
    fn new(run: &Arc<AgentRun>, lease: Lease) -> Self {
        Entry {
            run: run.clone(),
            lease,
            waiting: Vec::new(),
            need: Need::Nothing,
            working: false,
            frugal: false,
            no_growth: false,
            touched: Instant::now(),
            asked: [Instant::now().checked_sub(BUSY_WITHIN).unwrap_or_else(Instant::now); 2],
            unwritten_since: None,
            version: 0,
            spent: Spent::default(),
            requests_limit: 0,
        }
    }

    /// Whether a run that was read later than our last write still has our slice; without one there is none to miss.
    fn stands_in(&self, run: &AgentRun) -> bool {
        let Some(id) = self.lease.slice_id().filter(|_| !self.working && runs::version(run) > self.version) else { return true };
        run.status.as_ref().and_then(|status| status.budget.as_ref()).is_some_and(|budget| budget.reservations.iter().any(|r| r.id == id))
    }
}

/// Apply a batch to one version of the run's status. Pure: called again on the live object after a conflict.
fn decide(
    view: &View,
    doubtful: &mut Vec<Slice>,
    ops: &[Op],
    run: &AgentRun,
    status: &mut AgentRunStatus,
    how: &Renewal<'_>,
) -> (Renewed, Budget) {
    let mut budget = status.budget.clone().unwrap_or_else(|| Budget { gate: Gate::Closed, ..Budget::default() });
    let mut asks = Vec::new();
    for op in ops {
        match op {
            Op::Reserve { claims, ask, .. } => asks.push((*ask, check_active(run, claims).is_ok())),
            Op::Charge { id } => drop(budget.settle(id, None, 1)),
            Op::Rest { .. } => {}
        }
    }
    let renewed = view.renew(doubtful, &mut budget, &asks, how);
    if status.budget.as_ref().is_some_and(|before| *before != budget) {
        status.requests_text = Some(budget.requests_text());
        status.cost_text = Some(budget.cost_text());
        status.budget = Some(budget.clone());
    }
    (renewed, budget)
}

/// Whether the run takes no more calls, or not for long.
fn is_ending(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    run.spec.cancel
        || run.metadata.deletion_timestamp.is_some()
        || runs::is_terminal(run)
        || status.is_none_or(|status| status.result.is_some() || status.budget.as_ref().is_none_or(|budget| budget.gate != Gate::Open))
}

/// Whether another process waits for what is held in advance.
fn is_wanted(run: &AgentRun, holder: &str) -> bool {
    let budget = run.status.as_ref().and_then(|status| status.budget.as_ref());
    budget.is_some_and(|budget| budget.reservations.iter().any(|r| r.is_request() && r.holder != holder))
}

struct RunBook {
    ledger: LeasedLedger,
    uid: String,
}

impl Book for RunBook {
    fn settle(&self, id: String, charge: Charge) -> BoxFuture<'static, Option<Settled>> {
        let mut runs = self.ledger.0.lock();
        let Some(entry) = runs.get_mut(&self.uid) else { return Box::pin(ready(None)) };
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
            self.ledger.kick(&self.uid, entry, Need::Exact);
        }
        Box::pin(ready(Some(settled)))
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
