//! The direct ledger: reservations and settlements of one run that are asked for at the same time are folded into one
//! compare-and-swap on its status. One task per busy run; order of arrival is order of decision.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentrun_crds::budget::{Amount, Budget, Reservation};
use agentrun_crds::quantity::micros_text;
use agentrun_crds::{AgentRun, AgentRunStatus};
use agentrun_protocol::token::Claims;
use futures::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::reservation::Book;
use super::{Ask, Charge, Granted, Ledger, NotAdmitted, Reserved, Settled, plan};
use crate::auth::check_active;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::runs::{self, RunDirectory, StatusWriter};

/// Most reservations of one run that wait to be decided.
const MAX_WAITING: usize = 512;
/// Wait between tries while settlements cannot be written.
const RETRY: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Clone)]
pub struct DirectLedger(Arc<Shared>);

struct Shared {
    writer: StatusWriter,
    directory: RunDirectory,
    clock: Clock,
    holder: String,
    state: Mutex<State>,
    idle: Notify,
}

#[derive(Default)]
struct State {
    /// Present while a task works for the run.
    queues: HashMap<String, Vec<Op>>,
    /// Ids this process answers for, from before the reservation is written until after it is settled.
    live: HashSet<String>,
}

enum Op {
    Reserve { id: String, claims: Claims, ask: Ask, answer: oneshot::Sender<Result<Reserved, NotAdmitted>> },
    Settle { id: String, charge: Charge, answer: Option<oneshot::Sender<Settled>> },
}

/// What a decision on one object came to, per operation.
enum Decided {
    Reserve(Result<Granted, NotAdmitted>),
    Settle(Option<Settled>),
}

impl DirectLedger {
    /// `instance` survives restarts of the process, the random half of the holder's name does not.
    pub fn new(instance: &str, writer: StatusWriter, directory: RunDirectory, clock: Clock) -> Self {
        let boot = uuid::Uuid::new_v4().simple().to_string();
        let holder = format!("{instance}/{}", &boot[..12]);
        DirectLedger(Arc::new(Shared { writer, directory, clock, holder, state: Mutex::default(), idle: Notify::new() }))
    }

    fn submit(&self, run: &Arc<AgentRun>, op: Op) {
        let uid = runs::uid(run).to_owned();
        let mut state = self.0.lock();
        if let Some(waiting) = state.queues.get_mut(&uid) {
            match op {
                Op::Reserve { id, answer, .. } if waiting.len() >= MAX_WAITING => {
                    state.live.remove(&id);
                    let _ = answer.send(Err(NotAdmitted::TooManyInFlight));
                }
                op => waiting.push(op),
            }
            return;
        }
        state.queues.insert(uid.clone(), vec![op]);
        drop(state);
        let (ledger, run) = (self.clone(), run.clone());
        tokio::spawn(async move { ledger.work(uid, run).await });
    }

    /// Decide and write batch after batch until nothing waits.
    async fn work(self, uid: String, mut run: Arc<AgentRun>) {
        loop {
            let batch = {
                let mut state = self.0.lock();
                match state.queues.get_mut(&uid).map(std::mem::take) {
                    Some(batch) if !batch.is_empty() => batch,
                    _ => {
                        state.queues.remove(&uid);
                        drop(state);
                        self.0.idle.notify_waiters();
                        return;
                    }
                }
            };
            if let Some(fresher) = self.0.directory.freshest(&uid) {
                run = fresher;
            }
            let now = self.0.clock.unix_seconds();
            match self.0.writer.update(&run, |current, status| Ok(decide(&batch, current, status, &self.0.holder, now))).await {
                Ok((decided, written)) => {
                    for (op, decided) in batch.into_iter().zip(decided) {
                        self.deliver(&written, op, decided);
                    }
                    run = written;
                }
                // The run is gone, and its budget with it.
                Err(error) if error.status == http::StatusCode::UNAUTHORIZED => self.fail(batch, &uid, &error, false),
                Err(error) => {
                    self.fail(batch, &uid, &error, true);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn deliver(&self, run: &Arc<AgentRun>, op: Op, decided: Decided) {
        match (op, decided) {
            (Op::Reserve { id, answer, .. }, Decided::Reserve(Ok(granted))) => {
                let book = Arc::new(RunBook { ledger: self.clone(), run: run.clone() });
                // If nobody waits any more, dropping the value releases it.
                let _ = answer.send(Ok(Reserved::new(id, granted, book)));
            }
            (Op::Reserve { id, answer, .. }, Decided::Reserve(Err(refused))) => {
                self.0.lock().live.remove(&id);
                let _ = answer.send(Err(refused));
            }
            (Op::Settle { id, answer, .. }, Decided::Settle(settled)) => {
                self.0.lock().live.remove(&id);
                if let (Some(answer), Some(settled)) = (answer, settled) {
                    let _ = answer.send(settled);
                }
            }
            _ => tracing::error!("a decision does not match its operation"),
        }
    }

    /// Refuse the reservations. Whether they were written is unknown, so they are released; settlements are kept for the
    /// next try if `keep`.
    fn fail(&self, batch: Vec<Op>, uid: &str, error: &ApiError, keep: bool) {
        let mut state = self.0.lock();
        let mut again = Vec::new();
        for op in batch {
            match op {
                Op::Reserve { id, answer, .. } => {
                    let refusal = if keep { NotAdmitted::Failed(error.clone()) } else { NotAdmitted::Inactive };
                    let _ = answer.send(Err(refusal));
                    again.push(Op::Settle { id, charge: Charge::Release, answer: None });
                }
                settle => again.push(settle),
            }
        }
        if !keep {
            for op in &again {
                let (Op::Settle { id, .. } | Op::Reserve { id, .. }) = op;
                state.live.remove(id);
            }
            return;
        }
        if let Some(waiting) = state.queues.get_mut(uid) {
            again.append(waiting);
            *waiting = again;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Apply a batch in order. Pure: called again on the live object after a conflict.
fn decide(batch: &[Op], run: &AgentRun, status: &mut AgentRunStatus, holder: &str, now: i64) -> Vec<Decided> {
    let Some(mut budget) = status.budget.clone() else {
        return batch
            .iter()
            .map(|op| match op {
                Op::Reserve { .. } => Decided::Reserve(Err(NotAdmitted::Inactive)),
                Op::Settle { .. } => Decided::Settle(None),
            })
            .collect();
    };
    let decided = batch
        .iter()
        .map(|op| match op {
            Op::Reserve { id, claims, ask, .. } => Decided::Reserve(match check_active(run, claims) {
                Ok(()) => reserve(&mut budget, id, ask, holder, now),
                Err(_) => Err(NotAdmitted::Inactive),
            }),
            Op::Settle { id, charge, .. } => Decided::Settle(settle(&mut budget, id, *charge)),
        })
        .collect();
    if status.budget.as_ref() != Some(&budget) {
        status.requests_text = Some(format!("{}/{}", budget.spent.requests, budget.limit.requests));
        status.cost_text = Some(micros_text(budget.spent.cost_micros));
        status.budget = Some(budget);
    }
    decided
}

fn reserve(budget: &mut Budget, id: &str, ask: &Ask, holder: &str, now: i64) -> Result<Granted, NotAdmitted> {
    // A write of ours whose answer was lost.
    if let Some(held) = budget.reservations.iter().find(|r| r.id == id) {
        return Ok(Granted { amount: held.amount });
    }
    let granted = plan(budget, ask)?;
    let reservation = Reservation { id: id.to_owned(), holder: holder.to_owned(), amount: granted.amount, since: now };
    match budget.reserve(reservation) {
        Ok(()) => Ok(granted),
        Err(agentrun_crds::budget::Refusal::Closed) => Err(NotAdmitted::Inactive),
        Err(agentrun_crds::budget::Refusal::Exhausted(dimension)) => Err(NotAdmitted::Exhausted(dimension)),
        Err(agentrun_crds::budget::Refusal::TooManyInFlight) => Err(NotAdmitted::TooManyInFlight),
    }
}

fn settle(budget: &mut Budget, id: &str, charge: Charge) -> Option<Settled> {
    let held = budget.reservations.iter().find(|r| r.id == id).map(|r| r.amount);
    let (actual, attempts) = match charge {
        Charge::Release => (Some(Amount::default()), 0),
        Charge::Full { attempts } => (None, attempts),
        Charge::Actual { amount, attempts } => (Some(amount), attempts),
    };
    let overrun_before = budget.overrun;
    budget.settle(id, actual, attempts);
    Some(Settled {
        // Closing has charged it in full before we came.
        actual: actual.or(held).unwrap_or_default(),
        requests_spent: budget.spent.requests,
        requests_limit: budget.limit.requests,
        overrun: budget.overrun != overrun_before,
    })
}

struct RunBook {
    ledger: DirectLedger,
    run: Arc<AgentRun>,
}

impl Book for RunBook {
    fn settle(&self, id: String, charge: Charge) -> BoxFuture<'static, Option<Settled>> {
        let (answer, settled) = oneshot::channel();
        self.ledger.submit(&self.run, Op::Settle { id, charge, answer: Some(answer) });
        Box::pin(async move { settled.await.ok() })
    }
}

impl Ledger for DirectLedger {
    fn reserve(&self, run: Arc<AgentRun>, claims: Claims, ask: Ask) -> BoxFuture<'static, Result<Reserved, NotAdmitted>> {
        let id = uuid::Uuid::new_v4().simple().to_string()[..20].to_owned();
        let (answer, reserved) = oneshot::channel();
        self.0.lock().live.insert(id.clone());
        self.submit(&run, Op::Reserve { id, claims, ask, answer });
        Box::pin(async move {
            let lost = || NotAdmitted::Failed(ApiError::unavailable("shutting_down", "the gateway is shutting down; try again"));
            reserved.await.unwrap_or_else(|_| Err(lost()))
        })
    }

    fn charge_in_full(&self, run: Arc<AgentRun>, ids: Vec<String>) {
        for id in ids {
            self.submit(&run, Op::Settle { id, charge: Charge::Full { attempts: 1 }, answer: None });
        }
    }

    fn is_live(&self, id: &str) -> bool {
        self.0.lock().live.contains(id)
    }

    fn holder(&self) -> &str {
        &self.0.holder
    }

    fn idle(&self) -> BoxFuture<'static, ()> {
        let shared = self.0.clone();
        Box::pin(async move {
            loop {
                let mut notified = std::pin::pin!(shared.idle.notified());
                notified.as_mut().enable();
                if shared.lock().queues.is_empty() {
                    return;
                }
                notified.await;
            }
        })
    }
}
