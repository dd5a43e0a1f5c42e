//! Revocation: while a run has calls open, it is confirmed by consistent reads; if it is not open any more, or could not be
//! confirmed for two seconds, all its calls are cut. What the watch of runs brings cuts them at once, without a promise.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_protocol::token::Claims;
use http::StatusCode;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::auth::{check_active, run_uid_text};
use crate::error::ApiError;
use crate::runs::{self, CONFIRMATION_TTL, RunDirectory};

/// How often an open run is read.
const POLL: Duration = Duration::from_millis(500);
/// Wait after a read that failed.
const RETRY: Duration = Duration::from_millis(100);

type Key = ([u8; 16], u32, [u8; 16]);

/// The runs with calls open on this process. Cheap to clone.
#[derive(Clone)]
pub struct Revocation(Arc<Shared>);

struct Shared {
    directory: RunDirectory,
    open: Mutex<BTreeMap<Key, Open>>,
    generations: AtomicU64,
}

struct Open {
    claims: Claims,
    calls: usize,
    /// It was cut because nobody could say whether the run is open, not because it is not.
    unconfirmed: Arc<AtomicBool>,
    /// Tells a revoked entry's permits from those of its successor.
    generation: u64,
    revoked: CancellationToken,
}

/// One open call. Dropping it is its end.
pub struct Permit {
    revocation: Revocation,
    key: Key,
    generation: u64,
    revoked: CancellationToken,
    unconfirmed: Arc<AtomicBool>,
}

impl Permit {
    /// Cancelled when the run has lost its authority.
    pub fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }

    /// What a revoked call is answered: final, or worth a retry if the API server could not be asked.
    pub fn refusal(&self) -> ApiError {
        if self.unconfirmed.load(Ordering::Acquire) {
            ApiError::unavailable("api_server_unavailable", "the run's state could not be confirmed for two seconds; try again")
                .kind("api_error")
        } else {
            ApiError::inactive_run_token()
        }
    }
}

impl Revocation {
    pub fn new(directory: RunDirectory) -> Self {
        Revocation(Arc::new(Shared { directory, open: Mutex::default(), generations: AtomicU64::new(0) }))
    }

    /// Open a call of a run that was confirmed at `since`; `None` if it has `most` open already.
    pub fn enter(&self, claims: &Claims, since: Instant, most: usize) -> Option<Permit> {
        let key = (claims.run_uid, claims.attempt, claims.nonce);
        let mut open = self.lock();
        if let Some(entry) = open.get_mut(&key)
            && !entry.revoked.is_cancelled()
        {
            if entry.calls >= most {
                return None;
            }
            entry.calls += 1;
            return Some(entry.permit(self, key));
        }
        let entry = Open {
            claims: *claims,
            calls: 1,
            unconfirmed: Arc::default(),
            generation: self.0.generations.fetch_add(1, Ordering::Relaxed),
            revoked: CancellationToken::new(),
        };
        let permit = entry.permit(self, key);
        let watch = Watch {
            revocation: self.clone(),
            key,
            generation: entry.generation,
            claims: *claims,
            revoked: entry.revoked.clone(),
            unconfirmed: entry.unconfirmed.clone(),
        };
        tokio::spawn(watch.run(since));
        open.insert(key, entry);
        Some(permit)
    }

    /// Cut, for ever, the calls of runs that the watch shows to be over. What it misses, the confirmations find.
    pub async fn heed_the_watch(self) {
        let mut changes = self.0.directory.changes();
        loop {
            match changes.recv().await {
                Ok(run) => self.heed(&run),
                Err(RecvError::Lagged(_)) => self.0.directory.snapshot().iter().for_each(|run| self.heed(run)),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Only what no later version of the run can take back counts here, since the watch may be behind.
    fn heed(&self, run: &AgentRun) {
        let Ok(uid) = uuid::Uuid::parse_str(runs::uid(run)).map(uuid::Uuid::into_bytes) else { return };
        for open in self.lock().range((uid, 0, [0; 16])..=(uid, u32::MAX, [u8::MAX; 16])).map(|(_, open)| open) {
            if check_active(run, &open.claims).is_err_and(|inactive| inactive.is_final()) {
                open.revoked.cancel();
            }
        }
    }

    /// Calls open now.
    pub fn open_calls(&self) -> usize {
        self.lock().values().map(|open| open.calls).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Open>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.revocation.lock();
        if let Some(entry) = open.get_mut(&self.key).filter(|entry| entry.generation == self.generation) {
            // The watcher lets the entry go, a moment later: the next call may be near.
            entry.calls -= 1;
            if entry.calls == 0 && entry.revoked.is_cancelled() {
                open.remove(&self.key); // nobody watches it any more
            }
        }
    }
}

impl Open {
    fn permit(&self, revocation: &Revocation, key: Key) -> Permit {
        let (revoked, unconfirmed) = (self.revoked.clone(), self.unconfirmed.clone());
        Permit { revocation: revocation.clone(), key, generation: self.generation, revoked, unconfirmed }
    }
}

/// Looks after one run while it has calls open.
struct Watch {
    revocation: Revocation,
    key: Key,
    generation: u64,
    claims: Claims,
    revoked: CancellationToken,
    unconfirmed: Arc<AtomicBool>,
}

impl Watch {
    async fn run(self, mut since: Instant) {
        let uid = run_uid_text(&self.claims);
        // The read that let the call in may be old already; what is left until it counts no more must suffice for the next.
        let mut wait = POLL.saturating_sub(since.elapsed());
        loop {
            tokio::select! {
                () = self.revoked.cancelled() => return self.let_go(),
                () = tokio::time::sleep(wait) => {}
            }
            if self.is_idle() {
                return;
            }
            let confirm = self.revocation.0.directory.confirm_within(&uid, POLL);
            tokio::select! {
                () = self.revoked.cancelled() => return self.let_go(),
                confirmed = tokio::time::timeout_at(since + CONFIRMATION_TTL, confirm) => match confirmed {
                    Ok(Ok((at, run))) if check_active(&run, &self.claims).is_ok() => {
                        since = at;
                        wait = POLL;
                    }
                    Ok(Err(error)) if error.status != StatusCode::UNAUTHORIZED => wait = RETRY,
                    decided => {
                        self.unconfirmed.store(decided.is_err(), Ordering::Release);
                        self.revoked.cancel();
                        return self.let_go();
                    }
                }
            }
        }
    }

    /// Whether no call is open any more; the entry is gone then.
    fn is_idle(&self) -> bool {
        let mut open = self.revocation.lock();
        let idle = open.get(&self.key).is_none_or(|entry| entry.generation != self.generation || entry.calls == 0);
        if idle && open.get(&self.key).is_some_and(|entry| entry.generation == self.generation) {
            open.remove(&self.key);
        }
        idle
    }

    /// Nobody watches it any more: the entry goes with its last call, or is replaced.
    fn let_go(&self) {
        self.is_idle();
    }
}
