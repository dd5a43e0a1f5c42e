//! What happens now and then, and when the watch shows something: settled amounts are written, what nobody uses goes back.

use std::sync::PoisonError;
use std::time::Duration;

use agentrun_crds::AgentRun;

use super::LeasedLedger;
use super::decide::{is_ending, is_wanted};
use super::entry::Need;
use crate::runs;
use crate::store::Taken;

/// Settled amounts are written after this, a slice that nobody uses goes back after that.
const WRITE_AFTER: Duration = Duration::from_millis(1000);
const REST_AFTER: Duration = Duration::from_millis(1500);
/// A run that nothing was heard of is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// With more than this, what is known of runs that are gone is kept on disk only.
const KNOWN_RUNS: usize = 4096;

impl LeasedLedger {
    /// Settle what an earlier life of this process has left in runs that are still there.
    pub(super) fn take_up(&self) {
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

    /// Now and then: write what was settled, give back what nobody uses, forget what has ended.
    pub(super) fn tick(&self) {
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
    pub(super) fn heed(&self, run: &AgentRun) {
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
