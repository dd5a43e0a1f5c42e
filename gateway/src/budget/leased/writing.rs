//! The task that writes a busy account's budget: renewal after renewal, each answering whoever waited for it.

use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::budget::Budget;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::account::Account;
use super::super::accounts::Honours;
use super::super::slice::{Renewal, Renewed, Slice, View};
use super::super::{Granted, NotAdmitted, Reserved};
use super::LeasedLedger;
use super::book::AccountBook;
use super::decide::decide;
use super::entry::{BUSY_WITHIN, Entry, Need, Op};
use crate::error::ApiError;
use crate::store::{Taken, TakenSlice};

/// Wait between tries while nothing can be written.
const RETRY: Duration = Duration::from_millis(500);
/// How often another look is taken at what others hold; changes that the watch brings are looked at at once.
const LOOK: Duration = Duration::from_millis(200);
/// How long a slice should last a busy run.
const LASTS: Duration = Duration::from_secs(4);
const LEAST_AHEAD: i64 = 2;
const MOST_AHEAD: i64 = 16;

/// One write under way.
struct Job {
    account: Account,
    view: View,
    ops: Vec<Op>,
    grow: bool,
    ahead: i64,
}

impl LeasedLedger {
    /// Have a task write, if none does.
    pub(super) fn kick(&self, key: &str, entry: &mut Entry, need: Need) {
        entry.need = entry.need.max(need);
        if !std::mem::replace(&mut entry.working, true) {
            let (ledger, key) = (self.clone(), key.to_owned());
            tokio::spawn(async move { ledger.work(key).await });
        }
    }

    /// Write after write until nothing is to be written.
    async fn work(self, key: String) {
        loop {
            let mut changes = self.0.accounts.changes();
            let Some(job) = self.next(&key) else {
                self.0.rested.notify_waiters();
                return;
            };
            let Job { account, mut view, ops, grow, ahead } = job;
            match self.0.store.spent(&key).await {
                Ok(spent) => view.share(spent),
                Err(error) => {
                    tracing::error!(%error, "the budget's ledger could not be read; nothing is granted");
                    self.failed(&key, ops, view.doubtful(), &error.into());
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            let now = self.0.clock.unix_seconds();
            let mut doubtful = view.doubtful();
            let patient = ops.iter().any(|op| op.until().is_some_and(|until| Instant::now() < until));
            let decide = |budget: &mut Budget, honours: Honours<'_>| {
                let how = Renewal {
                    holder: &self.0.holder,
                    id: self.0.fresh_id(),
                    now,
                    grow,
                    ahead,
                    call_in: patient,
                    rest: ops.iter().any(|op| matches!(op, Op::Rest { .. })),
                    overrun_closes: matches!(account, Account::Run(_)),
                };
                decide(&view, &mut doubtful, &ops, budget, honours, &how)
            };
            match self.0.accounts.update(&account, decide).await {
                Ok(((renewed, budget), written, warning)) => {
                    if renewed.restored {
                        tracing::warn!(account = written.name(), "the cluster knew of less spending than our ledger, and was told");
                    }
                    if let Some(warning) = warning {
                        tokio::spawn(warning.tell(self.0.kube.clone(), self.0.holder.clone()));
                    }
                    if let Err(error) = self.keep_on_disk(&key, &renewed).await {
                        tracing::error!(error = %error.message, "the budget's ledger could not be written; nothing is granted");
                        self.failed(&key, ops, doubtful, &error);
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                    if self.written(&key, ops, &renewed, &budget, written) {
                        // Others hold what would be of use; they give it back when they see that it is asked for.
                        let _ = tokio::time::timeout(LOOK, changes.of(&account)).await;
                    }
                }
                // The object is gone, and its budget with it.
                Err(error) if error.status == http::StatusCode::UNAUTHORIZED => self.gone(&key, ops),
                Err(error) => {
                    self.failed(&key, ops, doubtful, &error);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn next(&self, key: &str) -> Option<Job> {
        let account = self.0.lock().get(key)?.account.clone();
        let freshest = self.0.accounts.freshest(&account);
        let mut entries = self.0.lock();
        let entry = entries.get_mut(key)?;
        if entry.waiting.is_empty() && entry.need == Need::Nothing {
            entry.working = false;
            return None;
        }
        if let Some(fresher) = freshest {
            entry.account = fresher;
        }
        let need = std::mem::replace(&mut entry.need, Need::Nothing);
        let ops = std::mem::take(&mut entry.waiting);
        let view = entry.lease.begin(!ops.is_empty() || need > Need::Renew);
        let asks = ops.iter().filter(|op| matches!(op, Op::Reserve { .. })).count();
        let rests = ops.iter().any(|op| matches!(op, Op::Rest { .. }));
        let busy = asks > 1 || entry.asked[0].elapsed() < BUSY_WITHIN;
        let grow = busy && (asks > 0 || need == Need::Renew) && need < Need::Return && !entry.frugal && !rests;
        let ahead = ahead(entry.renewed.elapsed());
        Some(Job { account: entry.account.clone(), view, ops, grow, ahead })
    }

    /// Answer whoever can be answered; whether somebody waits for others' slices.
    fn written(&self, key: &str, ops: Vec<Op>, renewed: &Renewed, budget: &Budget, written: Account) -> bool {
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
                        said.push(self.granting(key, id, *granted, answer));
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
        let mut entries = self.0.lock();
        if let Some(entry) = entries.get_mut(key) {
            if renewed.lost && entry.lease.in_flight() > 0 {
                tracing::info!(account = written.name(), "a slice was charged in full by somebody else");
            }
            entry.lease.written(renewed, &ids);
            entry.renewed = now;
            entry.version = written.version();
            entry.spent = budget.spent;
            entry.requests_limit = budget.limit.requests;
            entry.frugal = written.is_ending() || written.is_wanted(&self.0.holder);
            entry.unwritten_since = (entry.lease.unwritten() != Default::default()).then_some(now);
            // Settled during the write, with nothing held in advance.
            if entry.unwritten_since.is_some() && !entry.lease.has_room() {
                entry.need = entry.need.max(Need::Exact);
            }
            entry.account = written;
            // Who came during the write may find room in what it brought, and needs none of its own.
            for op in std::mem::take(&mut entry.waiting) {
                match op {
                    Op::Reserve { id, claims, ask, answer, .. }
                        if entry.admits(claims.as_ref())
                            && let Some(granted) = entry.lease.admit(&id, &ask) =>
                    {
                        said.push(self.granting(key, id, granted, answer));
                    }
                    op => still.push(op),
                }
            }
            entry.waiting = still;
            self.0.note(key, entry);
            entry.no_growth = renewed.short;
        }
        drop(entries);
        // Not before: what is dropped here may settle at once.
        said.into_iter().for_each(|say| say());
        waits
    }

    /// Tells who asked. If nobody waits any more, dropping the value releases it.
    fn granting(
        &self,
        key: &str,
        id: String,
        granted: Granted,
        answer: oneshot::Sender<Result<Reserved, NotAdmitted>>,
    ) -> Box<dyn FnOnce()> {
        let book = Arc::new(AccountBook { ledger: self.clone(), key: key.to_owned() });
        let reserved = Reserved::new(id, granted, book);
        Box::new(move || drop(answer.send(Ok(reserved))))
    }

    fn gone(&self, key: &str, ops: Vec<Op>) {
        let entry = self.0.lock().remove(key);
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
    fn failed(&self, key: &str, ops: Vec<Op>, doubtful: Vec<Slice>, error: &ApiError) {
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
        if let Some(entry) = self.0.lock().get_mut(key) {
            entry.lease.in_doubt(doubtful);
            entry.need = entry.need.max(Need::Exact);
            still.append(&mut entry.waiting);
            entry.waiting = still;
        }
        for answer in refused {
            let _ = answer.send(Err(NotAdmitted::Failed(error.clone())));
        }
    }

    /// What is written is on disk before it is used.
    async fn keep_on_disk(&self, key: &str, renewed: &Renewed) -> Result<(), ApiError> {
        let slice = renewed.slice().map(|(id, amount)| TakenSlice { id: id.to_owned(), amount, used: None });
        Ok(self.0.store.take(key, Taken { spent: renewed.spent, slice }).await?)
    }
}

/// How many times the calls since the last renewal a slice is for: those of the next seconds at the same pace, but never so many
/// more that a short burst would take all.
fn ahead(since: Duration) -> i64 {
    let times = LASTS.as_micros() / since.as_micros().max(1);
    i64::try_from(times).unwrap_or(MOST_AHEAD).clamp(LEAST_AHEAD, MOST_AHEAD)
}
